//! The backing file by itself.

use std::fs;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const SIZE: u64 = 64 << 10;

fn made() -> (TempDir, Backing) {
    let dir = tempfile::tempdir().unwrap();
    let backing = Backing::open(&dir.path().join("b"), Some(SIZE)).unwrap();
    (dir, backing)
}

fn refusal(path: &Path, size: Option<u64>) -> String {
    match Backing::open(path, size) {
        Ok(_) => panic!("{} is taken", path.display()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_new_file_is_sparse_private_and_locked() {
    use std::os::unix::fs::MetadataExt;
    let (dir, backing) = made();
    let found = fs::metadata(backing.path()).unwrap();
    assert_eq!(
        (found.len(), found.blocks(), found.mode() & 0o777),
        (SIZE, 0, 0o600)
    );
    assert!(refusal(backing.path(), None).contains("another server"));
    let path = backing.path().to_owned();
    drop(backing);
    let again = Backing::open(&path, None).unwrap();
    assert_eq!(again.size_bytes(), SIZE);
    again.unmake();
    assert!(path.exists(), "it was there before");
    let (_other, new) = made();
    new.unmake();
    assert!(!new.path().exists());
    drop(dir);
}

#[test]
fn sizes_only_grow() {
    let (_dir, backing) = made();
    assert_eq!(backing.grow(SIZE - 4096), Err(Errno::PERM));
    assert_eq!(backing.grow(SIZE + 100), Err(Errno::INVAL));
    backing.grow(2 * SIZE).unwrap();
    assert_eq!(backing.size_bytes(), 2 * SIZE);
    let path = backing.path().to_owned();
    drop(backing);
    assert!(refusal(&path, Some(SIZE)).contains("cut off"));
    assert!(refusal(&path, Some(100)).contains("multiple of 4096"));
    assert_eq!(fs::metadata(&path).unwrap().len(), 2 * SIZE);
    drop(Backing::open_existing(&path, 3 * SIZE).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().len(), 3 * SIZE);
    let absent = path.with_extension("absent");
    assert!(Backing::open_existing(&absent, SIZE).is_err());
    assert!(!absent.exists());
}

#[test]
fn transfers_end_where_the_volume_does() {
    let (_dir, backing) = made();
    let mut out = [1; 100];
    assert_eq!(backing.read_at(&mut out, SIZE - 10), Ok(10));
    assert_eq!(backing.read_at(&mut out, SIZE), Ok(0));
    assert_eq!(backing.read_at(&mut out, u64::MAX), Ok(0));
    assert_eq!(backing.write_at(&out, SIZE - 10), Ok(10));
    assert_eq!(backing.write_at(&out, SIZE), Err(Errno::NOSPC));
    assert_eq!(backing.write_at(&[], SIZE), Ok(0));
    assert_eq!(fs::metadata(backing.path()).unwrap().len(), SIZE);
}

#[test]
fn what_was_cut_off_is_an_error() {
    let (_dir, backing) = made();
    backing.write_at(&[7; 4096], SIZE - 4096).unwrap();
    let file = fs::OpenOptions::new().write(true).open(backing.path());
    file.and_then(|file| file.set_len(SIZE / 2)).unwrap();
    let mut out = [0; 4096];
    assert_eq!(backing.read_at(&mut out, 0), Ok(4096));
    assert_eq!(backing.read_at(&mut out, SIZE - 4096), Err(Errno::IO));
    assert_eq!(backing.read_at(&mut out, SIZE / 2 - 10), Err(Errno::IO));
    assert_eq!(backing.sync(SyncScope::DataOnly), Err(Errno::IO));
}

#[test]
fn what_was_cut_off_never_comes_back_as_zeros() {
    let (_dir, backing) = made();
    backing.write_at(&[7; 4096], SIZE / 2).unwrap();
    let file = fs::OpenOptions::new().write(true).open(backing.path());
    let file = file.unwrap();
    file.set_len(SIZE / 2).unwrap();
    let mut out = [0; 4096];
    assert_eq!(backing.read_at(&mut out, SIZE / 2), Err(Errno::IO));
    // Written there, or put back by whoever cut it, the end is where it was. The data are not.
    assert_eq!(backing.write_at(&out, SIZE - 4096), Err(Errno::IO));
    assert_eq!(backing.grow(2 * SIZE), Err(Errno::IO));
    file.set_len(SIZE).unwrap();
    assert_eq!(backing.read_at(&mut out, SIZE / 2), Err(Errno::IO));
    let keep = FallocateFlags::KEEP_SIZE.bits();
    assert_eq!(backing.allocate(keep, SIZE / 2, 4096), Err(Errno::IO));
    assert_eq!(backing.sync(SyncScope::All), Err(Errno::IO));
    assert_eq!(backing.write_at(&out, SIZE / 2 - 4096), Ok(4096));
    assert_eq!(backing.read_at(&mut out, 0), Ok(4096));
}

#[test]
fn a_cut_that_was_seen_is_not_forgotten_when_the_length_is_back() {
    let (_dir, backing) = made();
    let file = fs::OpenOptions::new().write(true).open(backing.path());
    let file = file.unwrap();
    backing.glance();
    assert_eq!(backing.check_whole(), Ok(()));
    file.set_len(SIZE / 2).unwrap();
    backing.glance();
    file.set_len(SIZE).unwrap();
    assert_eq!(backing.write_at(&[1; 4096], SIZE / 2), Err(Errno::IO));
    assert_eq!(backing.check_whole(), Err(Errno::IO));
}

#[test]
fn growing_is_never_taken_for_a_cut() {
    let (_dir, backing) = made();
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            while backing.size_bytes() < 2000 * SIZE {
                backing.glance();
                backing.look();
            }
        });
        for times in 2..=2000 {
            backing.grow(times * SIZE).unwrap();
        }
        looker.join().unwrap();
    });
    assert_eq!(backing.check_whole(), Ok(()));
}

#[test]
fn a_flush_that_failed_fails_for_good() {
    let (_dir, backing) = made();
    assert_eq!(backing.flushed(Ok(())), Ok(()));
    assert_eq!(backing.flushed(Err(Errno::IO)), Err(Errno::IO));
    assert_eq!(backing.flushed(Err(Errno::NOSPC)), Err(Errno::NOSPC));
    assert_eq!(
        backing.sync(SyncScope::DataOnly),
        Err(Errno::IO),
        "the first one"
    );
    assert_eq!(backing.flushed(Ok(())), Err(Errno::IO));
    assert_eq!(backing.flush_error(), Some(Errno::IO));
    let mut out = [0; 4096];
    assert_eq!(backing.read_at(&mut out, 0), Ok(4096), "to be saved");
}

#[test]
fn growing_never_cuts_off_what_others_wrote_behind_the_end() {
    let (_dir, backing) = made();
    fs::OpenOptions::new()
        .write(true)
        .open(backing.path())
        .and_then(|file| file.set_len(4 * SIZE))
        .unwrap();
    assert_eq!(backing.grow(2 * SIZE), Err(Errno::PERM));
    assert_eq!(fs::metadata(backing.path()).unwrap().len(), 4 * SIZE);
    backing.grow(4 * SIZE).unwrap();
}

#[test]
fn direct_io_that_is_refused_goes_through_the_page_cache() {
    // Where there are disks beneath: memory filesystems refuse nothing.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let backing = Backing::open(&dir.path().join("b"), Some(SIZE)).unwrap();
    let Some(Direct { file, .. }) = backing.direct else {
        return;
    };
    // A promise the filesystem does not keep.
    let direct = Some(Direct { file, align: 1 });
    let backing = Backing { direct, ..backing };
    let data: Vec<u8> = (0..1000).map(|byte| byte as u8).collect();
    assert_eq!(backing.write_at(&data, 100), Ok(1000));
    let mut out = [0; 1000];
    assert_eq!(backing.read_at(&mut out, 100), Ok(1000));
    assert!(out[..] == data[..]);
    assert!(!backing.file_for(0, &[]).1);
}

#[test]
fn ranges_are_allocated_within_the_volume_only() {
    let (_dir, backing) = made();
    let keep = FallocateFlags::KEEP_SIZE.bits();
    let punch = FallocateFlags::PUNCH_HOLE.bits() | keep;
    let zero = FallocateFlags::ZERO_RANGE.bits() | keep;
    assert_eq!(backing.plan_allocation(punch, 0, SIZE), Ok(SIZE));
    assert_eq!(backing.plan_allocation(punch, SIZE - 10, 4096), Ok(10));
    assert_eq!(backing.plan_allocation(zero, SIZE, 4096), Ok(0));
    assert_eq!(
        backing.plan_allocation(0, SIZE - 10, 4096),
        Err(Errno::NOSPC)
    );
    assert_eq!(backing.plan_allocation(keep, 1, u64::MAX), Err(Errno::FBIG));
    for mode in [
        FallocateFlags::COLLAPSE_RANGE.bits(),
        FallocateFlags::INSERT_RANGE.bits(),
        punch | zero,
        1 << 30,
    ] {
        assert_eq!(
            backing.plan_allocation(mode, 0, 4096),
            Err(Errno::OPNOTSUPP)
        );
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    Read(u64, usize),
    Punch(u64, u64),
    Grow(u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Half of them aligned, so that both ways of writing meet on the same pages.
    let offset = prop_oneof![0..SIZE + 5000, (0..20_u64).prop_map(|page| page * 4096)];
    let length = prop_oneof![0..9000_usize, (0..4_usize).prop_map(|pages| pages * 4096)];
    prop_oneof![
        (offset.clone(), length.clone(), any::<u8>())
            .prop_map(|(at, len, byte)| Step::Write(at, vec![byte; len])),
        (offset.clone(), length).prop_map(|(at, len)| Step::Read(at, len)),
        (offset, 1..9000_u64).prop_map(|(at, len)| Step::Punch(at, len)),
        (0..6_u64).prop_map(|pages| Step::Grow(SIZE + pages * 4096)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn it_behaves_like_an_array(steps in prop::collection::vec(step(), 1..40)) {
        let (_dir, backing) = made();
        let mut model = vec![0; SIZE as usize];
        for step in steps {
            match step {
                Step::Write(at, data) => {
                    let start = model.len().min(at as usize);
                    let len = data.len().min(model.len() - start);
                    let expected = match (len, data.len()) {
                        (0, 1..) => Err(Errno::NOSPC),
                        _ => Ok(len),
                    };
                    prop_assert_eq!(backing.write_at(&data, at), expected);
                    model[start..start + len].copy_from_slice(&data[..len]);
                }
                Step::Read(at, len) => {
                    let start = model.len().min(at as usize);
                    let expected = &model[start..model.len().min(start + len)];
                    // On a page, as those of the server are.
                    let mut room = Box::new([Page([0; 4096]), Page([0; 4096]), Page([0; 4096])]);
                    let mut out: Vec<u8> = Vec::new();
                    for (number, page) in room.iter_mut().enumerate() {
                        let left = len.saturating_sub(number * 4096).min(4096);
                        let place = at + number as u64 * 4096;
                        let got = backing.read_at(&mut page.0[..left], place).unwrap();
                        out.extend(&page.0[..got]);
                    }
                    prop_assert_eq!(&out[..], &expected[..expected.len().min(3 * 4096)]);
                }
                Step::Punch(at, len) => {
                    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    backing.allocate(mode.bits(), at, len).unwrap();
                    let start = model.len().min(at as usize);
                    let end = model.len().min((at + len) as usize);
                    model[start..end].fill(0);
                }
                Step::Grow(size) => {
                    let grown = backing.grow(size);
                    if size < model.len() as u64 {
                        prop_assert_eq!(grown, Err(Errno::PERM));
                    } else {
                        grown.unwrap();
                        model.resize(size as usize, 0);
                    }
                }
            }
        }
        let mut all = vec![0; model.len()];
        prop_assert_eq!(backing.read_at(&mut all, 0), Ok(model.len()));
        prop_assert!(all == model);
        backing.sync(SyncScope::All).unwrap();
        prop_assert!(fs::read(backing.path()).unwrap() == model);
    }
}

/// A volume detached from a file on a pool could not be attached again at once: the kernel gives
/// such a lock up only after the close has returned.
#[test]
fn a_lock_that_is_about_to_go_is_waited_for() {
    let (_dir, backing) = made();
    let path = backing.path().to_owned();
    let ending = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        drop(backing);
    });
    let again = Backing::open(&path, None);
    ending.join().unwrap();
    assert_eq!(again.unwrap().size_bytes(), SIZE);
}

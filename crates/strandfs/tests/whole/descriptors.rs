//! Open files whose descriptors the server hands from table to table: the same bytes, the same locks,
//! the same file, whatever is done to its name meanwhile.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use crate::need_root;
use crate::support::files::{get, pattern, put, read_all, record_lock};
use crate::support::{Kind, Pool, eventually, run, say};

/// Room for some thirty open files at a time.
const NOFILE: u64 = 96;
/// Files in the model, of which each may be open several times.
const FILES: usize = 90;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// A file of the model: its bytes, and whoever has it open.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    name: Option<String>,
    open: Vec<Opened>,
}

struct Opened {
    file: File,
    appends: bool,
    reads: bool,
    writes: bool,
}

fn open(path: &Path, how: usize) -> Opened {
    let (reads, writes) = (how % 4 != 1, how % 4 != 2);
    let appends = writes && how % 8 >= 4;
    let file = OpenOptions::new()
        .read(reads)
        .write(writes && !appends)
        .append(appends)
        .open(path)
        .unwrap();
    Opened {
        file,
        appends,
        reads,
        writes,
    }
}

/// Some bytes somewhere, or at the end, by the handle and in the model.
fn write_some(random: &mut Random, handle: &Opened, bytes: &mut Vec<u8>) {
    let data = pattern(random.0, 1 + random.below(3000));
    let at = match handle.appends {
        true => bytes.len(),
        false => random.below(8000),
    };
    match handle.appends {
        true => (&handle.file).write_all(&data).unwrap(),
        false => handle.file.write_all_at(&data, at as u64).unwrap(),
    }
    let end = at + data.len();
    bytes.resize(bytes.len().max(end), 0);
    bytes[at..end].copy_from_slice(&data);
}

/// One change or look, by the handle of a file, or its name.
fn step(pool: &Pool, random: &mut Random, files: &mut [Model], names: &mut usize) -> &'static str {
    let number = random.below(files.len());
    let model = &mut files[number];
    let how = random.below(16);
    let another = model.name.is_some() && model.open.len() < 3;
    if model.open.is_empty() || how == 0 && another {
        let Some(name) = &model.name else {
            // Gone with its last handle: another takes its place.
            let name = format!("n{names}");
            *names += 1;
            put(pool.path(&name), &model.bytes);
            model.name = Some(name);
            return "make";
        };
        model.open.push(open(&pool.path(name), random.below(8)));
        return "open";
    }
    let which = random.below(model.open.len());
    let handle = &mut model.open[which];
    match how {
        1 => {
            drop(model.open.swap_remove(which));
            if model.open.is_empty() && model.name.is_none() {
                model.bytes.clear();
            }
            "close"
        }
        2 => {
            if let Some(name) = model.name.take() {
                fs::remove_file(pool.path(name)).unwrap();
            }
            "unlink"
        }
        3 => {
            if let Some(name) = &mut model.name {
                let new = format!("n{names}");
                *names += 1;
                fs::rename(pool.path(&*name), pool.path(&new)).unwrap();
                *name = new;
            }
            "rename"
        }
        4 if handle.writes => {
            let len = random.below(9000);
            handle.file.set_len(len as u64).unwrap();
            model.bytes.resize(len, 0);
            "truncate"
        }
        5 if handle.writes => {
            handle.file.sync_all().unwrap();
            "fsync"
        }
        6 => {
            let stat = handle.file.metadata().unwrap();
            assert_eq!(stat.len(), model.bytes.len() as u64, "file {number}");
            assert_eq!(
                stat.nlink(),
                u64::from(model.name.is_some()),
                "file {number}"
            );
            "fstat"
        }
        7..=11 if handle.writes => {
            write_some(random, handle, &mut model.bytes);
            "write"
        }
        _ if handle.reads => {
            let mut file = &handle.file;
            file.seek(SeekFrom::Start(0)).unwrap();
            let read = read_all(file).unwrap();
            assert!(
                read == model.bytes,
                "file {number}: {} bytes, not {}",
                read.len(),
                model.bytes.len()
            );
            "read"
        }
        _ => "nothing",
    }
}

fn compare_everything(pool: &Pool, files: &[Model]) {
    for (number, model) in files.iter().enumerate() {
        for handle in model.open.iter().filter(|handle| handle.reads) {
            let mut read = vec![0; model.bytes.len()];
            handle.file.read_exact_at(&mut read, 0).unwrap();
            assert!(read == model.bytes, "file {number} by its handle");
        }
        if let Some(name) = &model.name {
            assert!(
                get(pool.path(name)) == model.bytes,
                "file {number} by its name"
            );
        }
    }
}

/// `STRANDFS_DESCRIPTOR_STEPS=200000` makes it long; `STRANDFS_DESCRIPTOR_SEED` chooses the run.
#[test]
fn open_files_stay_the_same_while_their_descriptors_come_and_go() {
    need_root!();
    let from_env = |name, default| {
        let text = std::env::var(name);
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let steps = from_env("STRANDFS_DESCRIPTOR_STEPS", 6000);
    let seed = from_env("STRANDFS_DESCRIPTOR_SEED", u64::from(std::process::id()));
    say(&format!("STRANDFS_DESCRIPTOR_SEED={seed}"));
    for options in [
        "passthrough.io=off",
        "passthrough.headroom=0",
        "passthrough.headroom=0,cache.writeback",
    ] {
        let pool = Pool::build()
            .branch(Kind::Tmpfs("64m"), "")
            .branch(Kind::Tmpfs("64m"), "")
            .option(&format!("category.create=rand,{options}"))
            .nofile(NOFILE)
            .limit(Duration::from_secs(60 + steps / 20))
            .mount();
        let mut files: Vec<Model> = (0..FILES).map(|_| Model::default()).collect();
        let (mut random, mut names) = (Random(seed.wrapping_mul(0x9e37_79b9) | 1), 0);
        let mut done: HashMap<&str, u32> = HashMap::new();
        for _ in 0..steps {
            *done
                .entry(step(&pool, &mut random, &mut files, &mut names))
                .or_default() += 1;
        }
        compare_everything(&pool, &files);
        let descriptors = pool.status().held.descriptors.clone();
        let away = descriptors.files_in_other_tables;
        assert!(away > 20, "{options}: {descriptors:?}");
        say(&format!("{options}: {done:?}, {descriptors:?}"));
    }
}

#[test]
fn a_client_opens_more_files_than_the_server_may_have_descriptors() {
    need_root!();
    for options in ["passthrough.io=off", "passthrough.headroom=0"] {
        let pool = Pool::tmpfs(2).option(options).nofile(NOFILE).mount();
        let files: Vec<File> = (0..500)
            .map(|number| {
                put(pool.path(format!("f{number}")), format!("content {number}"));
                let path = pool.path(format!("f{number}"));
                OpenOptions::new()
                    .read(true)
                    .append(true)
                    .open(path)
                    .unwrap()
            })
            .collect();
        for (number, mut file) in files.iter().enumerate() {
            file.write_all(b" and more").unwrap();
            if number % 2 == 0 {
                fs::remove_file(pool.path(format!("f{number}"))).unwrap();
            }
        }
        for (number, file) in files.iter().enumerate().rev() {
            let expected = format!("content {number} and more");
            assert_eq!(read_all(file).unwrap(), expected.as_bytes(), "{options}");
        }
        drop(files);
        assert_eq!(get(pool.path("f499")), b"content 499 and more");
    }
}

/// Both kinds, of files most of whose descriptors are in other tables when others try.
#[test]
fn locks_hold_while_their_descriptors_are_in_other_tables() {
    need_root!();
    for options in ["passthrough.io=off", "passthrough.headroom=0"] {
        let pool = Pool::tmpfs(2).option(options).nofile(NOFILE).mount();
        let exclusive = FlockOperation::NonBlockingLockExclusive;
        let open = |number: usize| {
            let path = pool.path(format!("f{number}"));
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .unwrap()
        };
        let files: Vec<File> = (0..200).map(open).collect();
        for (number, file) in files.iter().enumerate() {
            match number % 2 {
                0 => rustix::fs::flock(file, exclusive).unwrap(),
                _ => rustix::fs::fcntl_lock(file, exclusive).unwrap(),
            }
        }
        let is_free = |number: usize| {
            let file = open(number);
            match number % 2 {
                0 => rustix::fs::flock(&file, exclusive).is_ok(),
                _ => record_lock(&file, libc::F_WRLCK).is_ok(),
            }
        };
        for number in 0..files.len() {
            assert!(!is_free(number), "{options}: {number}");
        }
        drop(files);
        for number in 0..200 {
            eventually("the lock to end", Duration::from_secs(20), || {
                is_free(number)
            });
        }
    }
}

/// A file that moves has all of its handles opened anew on the other branch: more than there is room
/// for.
#[test]
fn a_file_with_more_handles_than_the_server_may_have_descriptors_moves() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("2m"), "")
        .branch(Kind::Tmpfs("16m"), "")
        .option("category.create=ff,passthrough.io=off,moveonenospc=mfs")
        .nofile(NOFILE)
        .mount();
    let start = pattern(1, 1 << 20);
    put(pool.path("f"), &start);
    assert_eq!(pool.holders("f"), [0]);
    let open = |_| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(pool.path("f"))
            .unwrap()
    };
    let files: Vec<File> = (0..300).map(open).collect();
    let rest = pattern(2, 3 << 20);
    files[7].write_all_at(&rest, 1 << 20).unwrap();
    assert_eq!(pool.holders("f"), [1]);
    for file in &files {
        let mut edge = [0; 8];
        file.read_exact_at(&mut edge, (1 << 20) - 4).unwrap();
        assert_eq!(edge, [&start[(1 << 20) - 4..], &rest[..4]].concat()[..]);
    }
    files[299].write_all_at(b"last", 0).unwrap();
    assert_eq!(&get(pool.on(1, "f"))[..4], b"last");
}

/// A FUSE branch is asked at each close, and may have whoever closes a file wait.
#[test]
fn files_of_a_branch_with_a_server_have_tables_of_their_own() {
    need_root!();
    let inner = Pool::tmpfs(1).mount();
    let mut outer = Pool::tmpfs(1)
        .branch(Kind::Dir, "")
        .option("category.create=ff,passthrough.io=off")
        .nofile(NOFILE)
        .prepare();
    let (from, to) = (inner.root().to_str().unwrap(), outer.on(1, ""));
    run("mount", ["--bind", from, to.to_str().unwrap()]).ok();
    outer.start();
    let make = |(number, dir): (usize, &Path)| {
        let name = format!("f{number}");
        fs::write(dir.join(&name), &name).unwrap();
        OpenOptions::new()
            .read(true)
            .append(true)
            .open(outer.path(name))
            .unwrap()
    };
    // With a server first: their descriptors must not take the place of the others'.
    let dirs = [inner.root(), &outer.on(0, "")];
    let files: Vec<File> = (0..240)
        .map(|number| (number, dirs[number / 120]))
        .map(make)
        .collect();
    let descriptors = outer.status().held.descriptors.clone();
    assert!(descriptors.files_in_other_tables > 150);
    assert!(descriptors.other_tables >= 3, "{descriptors:?}");
    for (number, mut file) in files.iter().enumerate() {
        file.write_all(b" more").unwrap();
        assert_eq!(
            read_all(file).unwrap(),
            format!("f{number} more").as_bytes()
        );
    }
    drop(files);
    assert_eq!(get(inner.path("f7")), b"f7 more");
    assert_eq!(get(outer.on(0, "f200")), b"f200 more");
    drop(outer);
}

/// The threads that hold descriptors wait all the time, for nothing on a branch: both branches were
/// taken for dead, and every request failed with EIO.
#[test]
fn no_branch_is_given_up_while_descriptors_are_in_other_tables() {
    need_root!();
    let pool = Pool::tmpfs(2)
        .option("passthrough.io=off,branch-slow-after=500ms,branch-deadline=1s")
        .nofile(NOFILE)
        .mount();
    let files: Vec<File> = (0..300)
        .map(|number| File::create(pool.path(format!("f{number}"))).unwrap())
        .collect();
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        for file in files.iter().step_by(50) {
            file.write_all_at(b"still here", 0).unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(
        !pool.log().contains("a call has been waiting"),
        "{}",
        pool.log()
    );
}

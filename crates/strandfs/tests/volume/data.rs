//! What is written to a volume is what is in its backing file, on every way.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::ground::{Ground, text, ways};
use crate::support::files::{Aligned, errno, get, open_with, pattern};
use crate::support::{Kind, eventually, mounts, run};
use crate::{need_root, need_tool};

fn open(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

#[test]
fn data_arrives_in_the_backing_file_whatever_its_alignment() {
    need_root!();
    for disk in [Kind::Tmpfs("64m"), Kind::Loop("ext4", "64M")] {
        for (way, args) in ways() {
            let ground = Ground::new(disk);
            ground.serve(&[&["--size", "16M"], args].concat()).ok();
            assert_eq!(ground.status().io, args[1]);
            let volume = open(&ground.file());
            let mut expected = vec![0; 16 << 20];
            // The last one crosses the largest message and ends where the volume does.
            for (seed, offset, length) in [
                (1, 0, 4096),
                (2, 5, 100),
                (3, 4095, 2),
                (4, 1 << 20, 512),
                (5, (13 << 20) + 1, (3 << 20) - 1),
            ] {
                let data = pattern(seed, length);
                volume.write_all_at(&data, offset as u64).unwrap();
                expected[offset..offset + length].copy_from_slice(&data);
            }
            volume.sync_all().unwrap();
            volume.sync_data().unwrap();
            assert!(get(ground.file()) == expected, "{way}: the volume");
            assert!(get(ground.backing()) == expected, "{way}: the backing file");
            let mut end = [1; 10];
            assert_eq!(volume.read_at(&mut end, 16 << 20).unwrap(), 0, "{way}");
            assert_eq!(
                volume.read_at(&mut end, (16 << 20) - 3).unwrap(),
                3,
                "{way}"
            );
        }
    }
}

#[test]
fn direct_io_reads_what_was_written_past_all_caches() {
    need_root!();
    for (way, args) in ways() {
        let ground = Ground::new(Kind::Loop("xfs", "400M"));
        ground.serve(&[&["--size", "16M"], args].concat()).ok();
        let volume = open_with(ground.file(), libc::O_DIRECT).unwrap();
        let data = pattern(9, 2 << 20);
        let mut aligned = Aligned::new(&data);
        volume.write_all_at(aligned.slice(), 1 << 20).unwrap();
        let mut back = Aligned::new(&vec![0; 2 << 20]);
        volume.read_exact_at(back.slice(), 1 << 20).unwrap();
        assert!(back.slice() == data, "{way}");
    }
}

#[test]
fn holes_stay_holes_and_can_be_made() {
    need_root!();
    use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
    for (way, args) in ways() {
        let ground = Ground::new(Kind::Loop("ext4", "64M"));
        ground.serve(&[&["--size", "16M"], args].concat()).ok();
        assert!(ground.allocated_bytes() < 64 << 10, "{way}: sparse");
        let volume = open(&ground.file());
        volume.write_all_at(&pattern(1, 4 << 20), 0).unwrap();
        volume.sync_all().unwrap();
        let full = ground.allocated_bytes();
        assert!(full >= 4 << 20, "{way}: {full}");
        let keep = FallocateFlags::KEEP_SIZE;
        let punch = FallocateFlags::PUNCH_HOLE | keep;
        fallocate(&volume, punch, 0, 2 << 20).unwrap();
        volume.sync_all().unwrap();
        assert!(ground.allocated_bytes() <= full - (2 << 20), "{way}");
        assert_eq!(seek(&volume, SeekFrom::Data(0)).unwrap(), 2 << 20, "{way}");
        assert_eq!(
            seek(&volume, SeekFrom::Hole(2 << 20)).unwrap(),
            4 << 20,
            "{way}"
        );
        let zero = FallocateFlags::ZERO_RANGE | keep;
        fallocate(&volume, zero, 3 << 20, 4096).unwrap();
        let mut zeros = [1; 4096];
        volume.read_exact_at(&mut zeros, 3 << 20).unwrap();
        assert_eq!(zeros, [0; 4096], "{way}");
        let collapse = FallocateFlags::COLLAPSE_RANGE;
        let refused = errno(fallocate(&volume, collapse, 0, 4096));
        assert_eq!(refused, rustix::io::Errno::OPNOTSUPP, "{way}");
        assert_eq!(volume.metadata().unwrap().size(), 16 << 20, "{way}");
    }
}

#[test]
fn fstrim_inside_frees_space_outside() {
    need_root!();
    need_tool!("mkfs.ext4", "fstrim");
    for (way, args) in ways() {
        let ground = Ground::new(Kind::Tmpfs("100m"));
        ground.serve(&[&["--size", "64M"], args].concat()).ok();
        let mounted = ground.mounted();
        ground.attach(&[text(&mounted), "--mkfs", "ext4"]).ok();
        let empty = ground.allocated_bytes();
        std::fs::write(mounted.join("big"), pattern(1, 24 << 20)).unwrap();
        File::open(mounted.join("big")).unwrap().sync_all().unwrap();
        assert!(ground.allocated_bytes() >= empty + (24 << 20), "{way}");
        std::fs::remove_file(mounted.join("big")).unwrap();
        run("sync", ["-f", text(&mounted)]).ok();
        run("fstrim", [text(&mounted)]).ok();
        let left = ground.allocated_bytes();
        assert!(
            left < empty + (8 << 20),
            "{way}: {left}, {empty} when empty"
        );
        ground.detach(&mounted).ok();
    }
}

#[test]
fn fio_verifies_random_writes_through_a_loop_device() {
    need_root!();
    need_tool!("fio");
    for disk in [Kind::Tmpfs("100m"), Kind::Loop("xfs", "400M")] {
        for (way, args) in ways() {
            let ground = Ground::new(disk);
            ground.serve(&[&["--size", "16M"], args].concat()).ok();
            let device = ground.attach(&[]).ok().stdout.trim().to_owned();
            let target = format!("--filename={device}");
            let fio = [
                "--name=v",
                &target,
                "--rw=randwrite",
                "--bsrange=4k-256k",
                "--size=16m",
                "--direct=1",
                "--ioengine=libaio",
                "--iodepth=64",
                "--verify=crc32c",
                "--verify_state_save=0",
                "--do_verify=1",
                "--verify_fatal=1",
                "--end_fsync=1",
                // It would be left where the test was started.
                "--verify_state_save=0",
            ];
            let run = run("fio", fio).ok();
            assert!(run.stdout.contains("err= 0"), "{way}: {run:?}");
            ground.detach(&ground.backing()).ok();
        }
    }
}

#[test]
fn a_volume_grows_under_the_filesystem_on_it() {
    need_root!();
    need_tool!("mkfs.xfs", "xfs_growfs");
    for (way, args) in ways() {
        let ground = Ground::new(Kind::Tmpfs("700m"));
        ground.serve(&[&["--size", "320M"], args].concat()).ok();
        let mounted = ground.mounted();
        ground.attach(&[text(&mounted), "--mkfs", "xfs"]).ok();
        std::fs::write(mounted.join("kept"), pattern(3, 1 << 20)).unwrap();
        let resize =
            |size| crate::support::strandfs(["volume", "resize", text(&mounted), "--size", size]);
        let smaller = resize("300M");
        assert_eq!(smaller.code(), 2, "{way}: {smaller:?}");
        assert!(smaller.stderr.contains("never shrinks"), "{smaller:?}");
        resize("640M").ok();
        assert_eq!(ground.status().size_bytes, 640 << 20, "{way}");
        assert_eq!(ground.backing().metadata().unwrap().len(), 640 << 20);
        let before = rustix::fs::statvfs(&mounted).unwrap();
        run("xfs_growfs", ["-d", text(&mounted)]).ok();
        let after = rustix::fs::statvfs(&mounted).unwrap();
        assert!(after.f_blocks > before.f_blocks * 3 / 2, "{way}");
        assert!(get(mounted.join("kept")) == pattern(3, 1 << 20), "{way}");
        ground.detach(&mounted).ok();
        eventually(
            "nothing is mounted",
            std::time::Duration::from_secs(10),
            || !mounts::list().iter().any(|(path, _, _)| *path == mounted),
        );
    }
}

/// How often the disk that holds the backing file was told to make its cache last.
fn flushes(ground: &Ground) -> u64 {
    let source = run("findmnt", ["-n", "-o", "SOURCE", text(&ground.disk())]).ok();
    let name = source.stdout.trim().trim_start_matches("/dev/").to_owned();
    let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
    // The sixteenth figure: see Documentation/block/stat.rst of the kernel.
    stat.split_whitespace().nth(15).unwrap().parse().unwrap()
}

#[test]
fn what_is_written_with_o_dsync_or_o_sync_lasts_before_the_write_returns() {
    need_root!();
    const WRITES: u64 = 10;
    for (way, args) in ways() {
        let ground = Ground::new(Kind::Loop("ext4", "64M"));
        ground.serve(&[&["--size", "16M"], args].concat()).ok();
        for flag in [0, libc::O_DSYNC, libc::O_SYNC] {
            let volume = open_with(ground.file(), flag).unwrap();
            volume.sync_all().unwrap();
            let before = flushes(&ground);
            for number in 0..WRITES {
                let at = number * 65_536 + 512;
                volume.write_all_at(&pattern(number, 1536), at).unwrap();
            }
            let flushed = flushes(&ground) - before;
            match flag {
                0 => assert!(
                    flushed < WRITES,
                    "{way}: {flushed} flushes nobody asked for"
                ),
                _ => assert!(flushed >= WRITES, "{way}, flag {flag:o}: {flushed} flushes"),
            }
        }
        ground.detach(&ground.served()).ok();
    }
}

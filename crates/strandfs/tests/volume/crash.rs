//! The server is killed while a filesystem on the volume is being written to: the filesystem is
//! sound, and what fsync acknowledged is there. `STRANDFS_VOLUME_KILLS` sets how often.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use strandfs_fuzz::FaultRun;

use crate::ground::{Ground, text, ways};
use crate::support::files::{get, pattern};
use crate::support::{Kind, eventually, run};
use crate::{need_root, need_tool};

const DEFAULT_KILLS: u64 = 1;
const FILE_BYTES: usize = 200_000;

fn kills() -> u64 {
    let asked = std::env::var("STRANDFS_VOLUME_KILLS").ok();
    asked.map_or(DEFAULT_KILLS, |text| text.parse().expect("a number"))
}

/// Writes files until one fails; counts those that fsync acknowledged, their names included.
fn write_files(dir: &Path, round: u64, acknowledged: &AtomicU64, stop: &AtomicBool) {
    let directory = File::open(dir).unwrap();
    for number in 0.. {
        let path = dir.join(format!("{round}-{number}"));
        let written = File::create(&path)
            .and_then(|mut file| {
                file.write_all(&pattern(round << 32 | number, FILE_BYTES))?;
                file.sync_all()
            })
            .and_then(|()| directory.sync_all());
        if written.is_err() || stop.load(Ordering::Relaxed) {
            return;
        }
        acknowledged.store(number + 1, Ordering::Release);
    }
}

fn survive(filesystem: &str, check: &[&str]) {
    for (way, args) in ways() {
        // On a disk, where transfers are under way when the server dies.
        let ground = Ground::new(Kind::Loop("ext4", "1G"));
        let mounted = ground.mounted();
        let mut last: Vec<(u64, u64)> = Vec::new();
        let mut result = FaultRun::new("volume server killed", &format!("{filesystem}, {way}"));
        for round in 0..kills() {
            let mut serve = vec![text(&mounted)];
            serve.extend_from_slice(args);
            if round == 0 {
                serve.extend(["--size", "800M", "--mkfs", filesystem]);
            }
            ground.attach(&serve).ok();
            for &(round, count) in &last {
                result.verified_bytes += compare(&mounted, way, round, count);
            }
            // Room for the next round; the removal is made last by its first fsync.
            for (round, count) in last.drain(..) {
                for number in 0..count {
                    std::fs::remove_file(mounted.join(format!("{round}-{number}"))).unwrap();
                }
            }
            let acknowledged = Arc::new(AtomicU64::new(0));
            let stop = Arc::new(AtomicBool::new(false));
            let writer = std::thread::spawn({
                let (dir, count, stop) = (mounted.clone(), acknowledged.clone(), stop.clone());
                move || write_files(&dir, round, &count, &stop)
            });
            // Not always after the same number of writes.
            let least = 3 + round * 7 % 40;
            eventually("files are written", Duration::from_secs(60), || {
                acknowledged.load(Ordering::Acquire) > least || writer.is_finished()
            });
            ground.kill();
            result.injected += 1;
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap();
            let count = acknowledged.load(Ordering::Acquire);
            assert!(count > least, "{way}: the writer ended before the kill");
            last.push((round, count));
            let early = ground.attach(&[]);
            assert_eq!(early.code(), 2, "{way}: {early:?}");
            assert!(early.stderr.contains("is dead"), "{way}: {early:?}");
            eventually("what is left is cleared", Duration::from_secs(30), || {
                ground.detach(&ground.backing()).status.success()
            });
            result.verified_bytes += recover(&ground, check, way, round, count);
        }
    }
}

/// What the next mount does (its log is replayed), a look at the round's files without the volume,
/// then the check on the bare file. How many bytes were compared.
fn recover(ground: &Ground, check: &[&str], way: &str, round: u64, count: u64) -> u64 {
    let (backing, mounted) = (ground.backing(), ground.mounted());
    run("mount", ["-o", "loop", text(&backing), text(&mounted)]).ok();
    let compared = compare(&mounted, way, round, count);
    run("umount", [text(&mounted)]).ok();
    let (program, options) = check.split_first().unwrap();
    run(program, [options, &[text(&backing)]].concat()).ok();
    compared
}

/// Every file of the round that was acknowledged is whole. How many bytes that are.
fn compare(mounted: &Path, way: &str, round: u64, count: u64) -> u64 {
    for number in 0..count {
        let found = get(mounted.join(format!("{round}-{number}")));
        let right = found == pattern(round << 32 | number, FILE_BYTES);
        assert!(right, "{way}: file {number} of round {round}");
    }
    count * FILE_BYTES as u64
}

#[test]
fn xfs_on_a_volume_survives_the_death_of_the_server() {
    need_root!();
    need_tool!("mkfs.xfs", "xfs_repair");
    survive("xfs", &["xfs_repair", "-n"]);
}

#[test]
fn ext4_on_a_volume_survives_the_death_of_the_server() {
    need_root!();
    need_tool!("mkfs.ext4", "fsck.ext4");
    survive("ext4", &["fsck.ext4", "-f", "-n"]);
}

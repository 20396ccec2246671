//! Whether what a round wrote is there: who loses a write has no figure.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

use super::caller::{Sequence, Slice, open_for};
use super::plan::LatencyPlan;
use crate::pattern::{Aligned, Pattern};

/// Places of a round that are read back, at most.
const MOST_PLACES: usize = 256;
/// Two who write to the same place at once may each have a part of it, which begins and ends here.
const PIECE_BYTES: usize = 512;

/// Where in its pattern each caller's last write to a place begins; nowhere for one that did not write there.
type Writers = BTreeMap<usize, u64>;

/// Reads some of the places that a round, which has this seed, wrote last, for so long at most, and compares them.
///
/// # Errors
/// A sentence about the first byte that differs, or a place that cannot be read.
pub fn compare(
    plan: &LatencyPlan,
    path: &Path,
    seed: u64,
    slice: &Slice,
    limit: Duration,
) -> Result<(), String> {
    if !plan.operation.is_write() {
        return Ok(());
    }
    let begun = Instant::now();
    let file = open_for(plan, false, path).map_err(|error| error.to_string())?;
    let callers = 0..slice.by_caller.len();
    let seeds = callers.map(|caller| Sequence::new(plan, seed, caller).pattern_seed);
    let mut patterns: Vec<Pattern> = seeds.map(|it| Pattern::new(plan.block_bytes, it)).collect();
    let mut memory = Aligned::new(plan.block_bytes);
    for (place, writers) in drawn(plan, seed, slice) {
        // What the kernel holds is not what the server was given; for others than pools it is.
        let length = std::num::NonZeroU64::new(plan.block_bytes as u64);
        let _ = fadvise(&file, place, length, Advice::DontNeed);
        file.read_exact_at(memory.slice(), place)
            .map_err(|error| format!("{}: reading byte {place}: {error}", path.display()))?;
        if let Some(at) = differs(memory.slice(), &writers, &mut patterns) {
            let byte = place + at as u64;
            return Err(format!(
                "{}: byte {byte} is not what was written",
                path.display()
            ));
        }
        if begun.elapsed() > limit {
            break;
        }
    }
    Ok(())
}

/// Places, drawn from the operations of a round, and who wrote there last.
fn drawn(plan: &LatencyPlan, seed: u64, slice: &Slice) -> Vec<(u64, Writers)> {
    let all = || {
        let callers = slice.by_caller.iter().enumerate();
        callers.flat_map(|(caller, &count)| {
            let own = Sequence::new(plan, seed, caller).take(count as usize);
            own.map(move |(place, from)| (caller, place, from))
        })
    };
    let mut random = fastrand::Rng::with_seed(seed);
    let places = all().map(|(_, place, _)| place);
    let chosen = random.choose_multiple(places, MOST_PLACES).into_iter();
    let mut found: BTreeMap<u64, Writers> = chosen.map(|it| (it, Writers::new())).collect();
    for (caller, place, from) in all() {
        if let Some(writers) = found.get_mut(&place) {
            writers.insert(caller, from);
        }
    }
    let mut found: Vec<(u64, Writers)> = found.into_iter().collect();
    // Where time ends before them, all may still be among those that were looked at.
    random.shuffle(&mut found);
    found
}

/// The first byte that is nobody's.
fn differs(block: &[u8], writers: &Writers, patterns: &mut [Pattern]) -> Option<usize> {
    for (number, piece) in block.chunks(PIECE_BYTES).enumerate() {
        let at = number * PIECE_BYTES;
        let mut nearest = 0;
        let is_known = writers.iter().any(|(&caller, &from)| {
            let same = patterns
                .get_mut(caller)
                .map(|it| it.check(from + at as u64, piece));
            nearest = nearest.max(same.and_then(Result::err).unwrap_or(0));
            same == Some(Ok(()))
        });
        if !is_known {
            return Some(at + nearest);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::caller::slice;
    use super::super::plan::Operation;
    use super::*;
    use crate::layers::LayersPlan;
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicBool;

    const FILE_BYTES: u64 = 1 << 20;
    const LONG: Duration = Duration::from_secs(3600);

    fn plan(dir: &Path, operation: Operation, threads: usize) -> LatencyPlan {
        LatencyPlan {
            place: LayersPlan {
                file_bytes: FILE_BYTES,
                ..LayersPlan::new(PathBuf::new(), dir.to_path_buf())
            },
            modes: Vec::new(),
            operation,
            block_bytes: 4096,
            rate: None,
            threads,
            is_direct: false,
            is_synced: false,
            round: Duration::from_millis(50),
            rounds: 1,
            until_steady: false,
        }
    }

    /// Two rounds write all over the file; the second is lost.
    #[test]
    fn a_round_that_is_lost_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for (operation, threads) in [
            (Operation::RandomWrite, 1),
            (Operation::RandomWrite, 3),
            (Operation::Write, 1),
            (Operation::Write, 3),
        ] {
            fs::write(&path, vec![0; FILE_BYTES as usize]).unwrap();
            let plan = plan(dir.path(), operation, threads);
            // Where others keep the machine busy a round may end before it began.
            let round = |seed| {
                let rounds = std::iter::repeat_with(|| {
                    slice(&plan, &path, seed, &AtomicBool::new(false)).unwrap()
                });
                let mut done = rounds.filter(|it| it.work.operations > 0);
                done.next().unwrap()
            };
            let first = round(1);
            compare(&plan, &path, 1, &first, LONG).unwrap();
            let before = fs::read(&path).unwrap();
            let second = round(100);
            compare(&plan, &path, 100, &second, LONG).unwrap();
            fs::write(&path, before).unwrap();
            let said = compare(&plan, &path, 100, &second, LONG).unwrap_err();
            assert!(said.contains("is not what was written"), "{said}");
            // However little time there is, something is looked at.
            compare(&plan, &path, 100, &second, Duration::ZERO).unwrap_err();
        }
    }

    #[test]
    fn a_file_that_became_shorter_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, vec![0; FILE_BYTES as usize]).unwrap();
        let plan = plan(dir.path(), Operation::RandomWrite, 1);
        let stop = AtomicBool::new(false);
        let mut rounds = std::iter::repeat_with(|| slice(&plan, &path, 1, &stop).unwrap());
        let round = rounds.find(|it| it.work.operations > 0).unwrap();
        fs::write(&path, []).unwrap();
        let said = compare(&plan, &path, 1, &round, LONG).unwrap_err();
        assert!(said.contains("reading byte"), "{said}");
    }
}

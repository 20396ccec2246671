//! Options that may help: tried on the place that is slow, before anybody is told to try them.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::judge::{ALL_ROWS, Names};
use super::plan::{LayersPlan, Mode, Transport, main_rows};
use super::run::END;
use super::setup::Levels;
use crate::error::BenchError;
use crate::format;
use crate::layers::attribution::Layer;
use crate::progress::Progress;
use crate::result::{Report, Series, Tried, Verdict};
use crate::sequential::{ERROR, Mean};
use crate::storage::Medium;
use crate::trial::{self, Row, Trial, Until};

/// Repetitions of the trial, all planned: it is looked at once.
const REPETITIONS: usize = 8;
/// What the trial may take where the run has no end of its own.
const TIME: Duration = Duration::from_secs(60);
/// With less time left nothing is tried: to mount the pools takes a part of it.
const LEAST_TIME: Duration = Duration::from_secs(15);
/// Enough for every row, and little enough to be there beside the files of the run.
const FILE_BYTES: u64 = 16 << 20;
/// A gain that nobody would notice is none.
const WORTH: f64 = 1.05;
/// Rows on which options are tried, those on which the layer costs most.
const MOST_ROWS: usize = 2;

/// An option, and what it takes away.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Knob {
    pub(crate) options: &'static str,
    /// Empty: nothing.
    pub(crate) caveat: &'static str,
}

/// Everything that is tried for a row of a pool in this mode.
pub(crate) fn knobs(row: &Row, mode: Mode, transport: Transport) -> Vec<Knob> {
    let plain = |options| Knob {
        options,
        caveat: "",
    };
    let mut all = Vec::new();
    let is_root = rustix::process::geteuid().is_root();
    if let Row::Data(workload) = row {
        let is_write = !workload.name.contains("read");
        if mode != Mode::Passthrough && is_root {
            all.push(plain(Mode::Passthrough.options()));
        }
        if mode == Mode::Direct {
            all.push(plain(Mode::Cached.options()));
        }
        match (mode, is_write) {
            (Mode::Passthrough, _) => {}
            (_, true) => {
                all.push(Knob {
                    options: "passthrough.io=off,cache.files=auto-full,cache.writeback=true",
                    caveat: "branches must not change behind the pool then",
                });
                all.push(Knob {
                    options: "security-capability=false",
                    caveat: "file capabilities are gone then",
                });
            }
            (_, false) => all.push(plain("async-read=false")),
        }
    } else {
        all.extend([
            Knob {
                options: "cache.negative-entry=60",
                caveat: "a file that appears behind the pool may stay unseen for a minute",
            },
            Knob {
                options: "security-capability=false",
                caveat: "file capabilities are gone then",
            },
            Knob {
                options: "xattr=nosys",
                caveat: "there are no extended attributes then",
            },
            Knob {
                options: "posix-acl=false",
                caveat: "access lists count no longer then",
            },
        ]);
    }
    all.push(match transport {
        Transport::Device => plain("transport=uring"),
        Transport::Uring => plain("transport=dev"),
    });
    all
}

/// Tries what may help with the first target and way, if its answer is one that options can change, and adds
/// what was measured to the answers.
///
/// # Errors
/// Those of setting up and of measuring; an option that cannot be had is left out.
pub(crate) fn try_out(
    plan: &LayersPlan,
    levels: &mut Levels,
    names: &Names,
    report: &mut Report,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<(), BenchError> {
    let rows = rows(report, names);
    let deadline = match plan.deadline {
        Some(deadline) => deadline.checked_sub(END),
        None => Instant::now().checked_add(TIME),
    };
    let left = deadline.map_or(TIME, |it| it.saturating_duration_since(Instant::now()));
    if rows.is_empty() {
        return Ok(());
    }
    if left < LEAST_TIME {
        report
            .warnings
            .push("no option was tried: there was no time left (--time-limit)".to_owned());
        return Ok(());
    }
    let per_row = left / u32::try_from(rows.len()).unwrap_or(1);
    for row in rows {
        let until = Instant::now().checked_add(per_row);
        let tried = one_row(plan, levels, names, &row, until, stop, progress)?;
        for verdict in &mut report.verdicts {
            let is_about =
                verdict.about == row.name() || verdict.about == ALL_ROWS && verdict.layer.is_some();
            if verdict.subject == names.pool_target && is_about {
                verdict.tried.extend(tried.clone());
                say(verdict);
            }
        }
    }
    Ok(())
}

/// The rows on which an option may help, those first on which the layer costs most.
fn rows(report: &Report, names: &Names) -> Vec<Row> {
    let storage = report.subjects.iter().find(|it| it.name == names.target);
    let is_network = storage
        .and_then(|it| it.storage.as_ref())
        .is_some_and(|it| it.medium == Medium::Network);
    let may_help = |verdict: &&Verdict| match verdict.layer.as_deref() {
        Some(layer) if layer == Layer::Pool.name() || layer == Layer::Together.name() => true,
        Some(layer) => is_network && layer == Layer::Storage.name(),
        None => false,
    };
    let own = || {
        report
            .verdicts
            .iter()
            .filter(|it| it.subject == names.pool_target)
    };
    // What slows everything is the question, where that was asked.
    if own()
        .find(|it| it.about == ALL_ROWS)
        .is_some_and(|it| !may_help(&it))
    {
        return Vec::new();
    }
    let mut found: Vec<&Verdict> = own()
        .filter(|it| it.about != ALL_ROWS)
        .filter(may_help)
        .collect();
    let share = |it: &Verdict| it.share.map_or(0.0, |it| it.median);
    found.sort_by(|one, other| share(other).total_cmp(&share(one)));
    let row = |verdict: &Verdict| {
        main_rows()
            .into_iter()
            .find(|it| it.name() == verdict.about)
    };
    found.into_iter().filter_map(row).take(MOST_ROWS).collect()
}

fn one_row(
    plan: &LayersPlan,
    levels: &mut Levels,
    names: &Names,
    row: &Row,
    deadline: Option<Instant>,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Vec<Tried>, BenchError> {
    let mut pools = vec![("as it is".to_owned(), String::new())];
    let knobs = knobs(row, names.mode, names.transport);
    pools.extend(
        knobs
            .iter()
            .map(|it| (it.options.to_owned(), it.options.to_owned())),
    );
    let candidates = levels.variants(plan, names, &pools)?;
    let trial = Trial {
        candidates,
        rows: vec![row.clone()],
        file_bytes: plan.file_bytes.min(FILE_BYTES),
        prepare_limit: Duration::from_secs(1),
        repetitions: REPETITIONS,
        most_repetitions: REPETITIONS,
        until: Until::Stable,
        deadline,
        sample_limit: plan.sample_limit,
        seed: plan.seed,
    };
    let outcome = match trial::run(&trial, stop, progress) {
        Err(BenchError::Interrupted) => return Ok(Vec::new()),
        other => other?,
    };
    levels.drop_variants();
    let of = |name: &str| outcome.series.iter().find(|it| it.subject == name);
    let Some(base) = of("as it is") else {
        return Ok(Vec::new());
    };
    let judged = |knob: &Knob| judged(base, of(knob.options)?, knob, knobs.len());
    Ok(knobs.iter().filter_map(judged).collect())
}

/// The speed with an option to that without it, by repetition; it helps if a t test of their relative
/// difference says so at the error of an answer, shared out among all options that were tried.
fn judged(base: &Series, own: &Series, knob: &Knob, tried: usize) -> Option<Tried> {
    let speed = own.speed(base)?;
    let pairs = base.values().into_iter().zip(own.values());
    let gains: Vec<f64> = pairs
        .filter_map(|(without, with)| Some((without? - with?) / (without? + with?)))
        .collect();
    let chance = Mean::of(&gains)?.chance_if_not_above_zero();
    Some(Tried {
        row: base.workload.clone(),
        options: knob.options.to_owned(),
        speed,
        helps: chance <= ERROR / tried.max(1) as f64 && speed.median >= WORTH,
        caveat: knob.caveat.to_owned(),
    })
}

/// Puts what was found into the answer's words.
fn say(verdict: &mut Verdict) {
    if let Some(at) = verdict.text.find(TRIED) {
        verdict.text.truncate(at);
    }
    verdict.text.push_str(&words(&verdict.tried));
}

const TRIED: &str = " Tried here";

/// What helped, with its gain; that nothing did.
fn words(tried: &[Tried]) -> String {
    let mut helped: Vec<&Tried> = tried.iter().filter(|it| it.helps).collect();
    helped.sort_by(|one, other| other.speed.median.total_cmp(&one.speed.median));
    let one = |it: &&Tried| {
        let gain = format::between(&it.speed, format::ratio);
        let caveat = match it.caveat.is_empty() {
            true => String::new(),
            false => format!(" ({})", it.caveat),
        };
        format!("{}, {}: {gain} times as fast{caveat}", it.options, it.row)
    };
    match (tried.is_empty(), helped.is_empty()) {
        (true, _) => String::new(),
        (false, true) => {
            let mut all: Vec<&str> = tried.iter().map(|it| it.options.as_str()).collect();
            all.dedup();
            format!("{TRIED}, and not shown to help: {}.", all.join("; "))
        }
        _ => {
            let helped: Vec<String> = helped.iter().map(one).collect();
            format!("{TRIED}: {}.", helped.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Work;

    #[test]
    fn every_option_that_is_tried_exists() {
        for row in main_rows() {
            for mode in Mode::ALL {
                for transport in Transport::ALL {
                    for knob in knobs(&row, mode, transport) {
                        for item in knob.options.split(',') {
                            let name = item.split('=').next().unwrap();
                            let known = strandfs_options::TABLE.iter().any(|it| it.name == name);
                            assert!(known, "{item}");
                        }
                    }
                }
            }
        }
    }

    fn series(times: [f64; 8]) -> Series {
        let work = Work {
            operations: 10,
            bytes: 5120,
        };
        Series::of_seconds("", "write-512", work, &times)
    }

    #[test]
    fn an_option_is_named_only_where_it_was_measured_to_help() {
        let base = series([2.0, 2.1, 1.9, 2.0, 2.2, 1.8, 2.0, 2.1]);
        let twice = series([1.0, 1.05, 0.95, 1.0, 1.1, 0.9, 1.0, 1.04]);
        let same = series([2.1, 2.0, 2.0, 1.9, 2.1, 1.9, 2.1, 2.0]);
        let knob = Knob {
            options: "a=b",
            caveat: "",
        };
        let good = judged(&base, &twice, &knob, 4).unwrap();
        assert!(good.helps, "{good:?}");
        let other = Knob {
            options: "c=d",
            caveat: "",
        };
        let none = judged(&base, &same, &other, 4).unwrap();
        assert!(!none.helps, "{none:?}");
        let said = words(&[none.clone(), good]);
        assert!(
            said.starts_with(" Tried here: a=b, write-512: 2.00 ["),
            "{said}"
        );
        assert!(!said.contains("c=d"), "{said}");
        assert_eq!(words(&[none]), " Tried here, and not shown to help: c=d.");
        assert_eq!(words(&[]), "");
    }
}

//! Which part of a pool is slow, from what it has counted of its own requests.
//!
//! The rule, which is also in `docs/benchmarks.md`:
//! - fewer than [`REQUESTS_MIN`] requests that were timed: nothing can be told;
//! - a mean of less than [`SLOW_NS`]: nothing is slow, unless requests were under way all the time or the
//!   pool calls a branch slow, failed or missing: then nothing can be told;
//! - a part is named if it has at least half of the time of all requests, and is the largest in nearly
//!   all slices of the time that have requests enough: one long request in a quiet minute does not
//!   name it;
//! - of the branches one is named if it has at least half of the time in branches and its calls take
//!   at least [`RATIO`] times as long as calls of the same kinds to the others; or if no other branch
//!   was asked anything comparable and it has [`ALONE`] of the time.

use std::collections::BTreeMap;

use serde::Serialize;
use strandfs_pool::metrics::Latency;

use crate::live_figures::mean_ns;

/// Requests of which something can be told.
pub const REQUESTS_MIN: u64 = 500;
/// The same of one slice.
const SLICE_REQUESTS_MIN: u64 = 20;
/// Slices that must have so many.
const SLICES_MIN: usize = 3;
/// Requests that take less are not slow, on average.
pub const SLOW_NS: f64 = 1e6;
/// The part of the time that one must have to be named.
const MOST: f64 = 0.5;
/// The part of the slices in which it must be the largest.
const STEADY: f64 = 0.8;
/// How many times as long as the others' a slow branch's calls take.
const RATIO: f64 = 3.0;
/// The part of the time in branches by which a branch is named that nothing can be compared with.
const ALONE: f64 = 0.8;
/// Calls of a kind that can be compared.
const CALLS_MIN: u64 = 20;

/// A part of a request's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Waiting for a thread of the server.
    Queue,
    /// The server's own work, and waiting for leases and room.
    Server,
    /// Calls to branches.
    Branches,
    /// Handing the answer to the kernel.
    Answer,
}

impl Layer {
    /// All of them, on a request's way.
    pub const ALL: [Layer; 4] = [Layer::Queue, Layer::Server, Layer::Branches, Layer::Answer];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Queue => "queue",
            Layer::Server => "server",
            Layer::Branches => "branches",
            Layer::Answer => "answer",
        }
    }
}

/// The time of requests by part of their way, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Requests that were timed.
    pub requests: u64,
    /// In the order of [`Layer::ALL`].
    pub by_layer: [f64; 4],
}

impl Times {
    /// Of so many requests that took so long together, of which these parts are known.
    pub fn new(requests: u64, whole: u64, queue: u64, branches: u64, answer: u64) -> Times {
        let known = queue.saturating_add(branches).saturating_add(answer);
        let parts = [queue, whole.saturating_sub(known), branches, answer];
        Times {
            requests,
            by_layer: parts.map(|ns| ns as f64),
        }
    }

    fn whole(&self) -> f64 {
        self.by_layer.iter().sum()
    }

    /// The part of the time that a layer has.
    pub fn part(&self, layer: Layer) -> f64 {
        let own = Layer::ALL.iter().position(|other| *other == layer);
        let own = own.and_then(|at| self.by_layer.get(at)).copied();
        match self.whole() {
            whole if whole > 0.0 => own.unwrap_or(0.0) / whole,
            _ => 0.0,
        }
    }

    fn largest(&self) -> Option<Layer> {
        let parts = Layer::ALL.iter().zip(self.by_layer);
        let largest = parts.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        (largest.1 > 0.0).then_some(*largest.0)
    }

    fn add(&mut self, other: &Times) {
        self.requests += other.requests;
        for (own, more) in self.by_layer.iter_mut().zip(other.by_layer) {
            *own += more;
        }
    }
}

/// The calls to one branch, by kind.
#[derive(Clone, Debug, Default)]
pub struct BranchCalls {
    /// Its path.
    pub path: String,
    /// How long they took.
    pub kinds: BTreeMap<String, Latency>,
}

impl BranchCalls {
    /// Of all kinds, in nanoseconds.
    pub fn total_ns(&self) -> f64 {
        self.kinds.values().map(|it| it.total_ns as f64).sum()
    }
}

/// What is in no figure, since it did not end.
#[derive(Clone, Debug, PartialEq)]
pub struct Unended {
    /// Requests that were with the server all the time; none where it does not tell.
    pub requests: Option<u64>,
    /// Branches that the pool itself calls slow, failed or missing, with that word.
    pub branches: Vec<String>,
}

impl Unended {
    /// Nothing can be told by the requests that ended alone.
    pub fn judge(&self, verdict: Verdict) -> Verdict {
        let mut said = Vec::new();
        let requests = match self.requests {
            Some(0) => None,
            Some(1) => Some("1 request".to_owned()),
            Some(many) => Some(format!("{many} requests")),
            None => {
                said.push(
                    "its server is of another version and does not tell of requests without an answer"
                        .to_owned(),
                );
                None
            }
        };
        said.extend(requests.map(|requests| {
            format!(
                "at least {requests} had no answer all the time, and what does not end is in no figure"
            )
        }));
        if !self.branches.is_empty() {
            let branches = self.branches.join(", ");
            said.push(format!(
                "the pool calls {branches} (strandfs status says more)"
            ));
        }
        match verdict {
            Verdict::NothingSlow { .. } if !said.is_empty() => Verdict::CannotTell {
                why: said.join("; "),
            },
            Verdict::CannotTell { why } => {
                said.push(why);
                Verdict::CannotTell {
                    why: said.join("; "),
                }
            }
            other => other,
        }
    }
}

/// What is slow.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// Nothing can be told, and why.
    CannotTell {
        /// A clause.
        why: String,
    },
    /// Nothing is.
    NothingSlow {
        /// How long a request takes on average.
        mean_ns: f64,
    },
    /// A part of the requests' way.
    Slow {
        /// The part.
        layer: Layer,
        /// Its part of the time, 0 to 1.
        part: f64,
        /// The branch, where it is one.
        branch: Option<SlowBranch>,
    },
}

/// A branch that is to blame.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlowBranch {
    /// Its path.
    pub path: String,
    /// Its part of the time in branches, 0 to 1.
    pub part: f64,
    /// How many times as long as the same calls to other branches its calls take; none where there
    /// was nothing to compare with.
    pub times_as_long: Option<f64>,
}

/// Judges what was counted in slices of equal length.
pub fn judge(slices: &[Times], branches: &[BranchCalls]) -> Verdict {
    let mut all = Times::default();
    slices.iter().for_each(|slice| all.add(slice));
    if all.requests < REQUESTS_MIN {
        let why = format!(
            "there were {} requests that were timed, and {REQUESTS_MIN} are needed",
            all.requests
        );
        return Verdict::CannotTell { why };
    }
    let mean_ns = all.whole() / all.requests as f64;
    if mean_ns < SLOW_NS {
        return Verdict::NothingSlow { mean_ns };
    }
    let Some(layer) = all.largest() else {
        return Verdict::NothingSlow { mean_ns };
    };
    let part = all.part(layer);
    if part < MOST {
        let why = format!(
            "no part has half of the time: the largest is {} with {:.0} %",
            layer.name(),
            part * 100.0
        );
        return Verdict::CannotTell { why };
    }
    let enough = slices.iter().filter(|it| it.requests >= SLICE_REQUESTS_MIN);
    let enough: Vec<&Times> = enough.collect();
    let agree = enough
        .iter()
        .filter(|it| it.largest() == Some(layer))
        .count();
    if enough.len() < SLICES_MIN || (agree as f64) < enough.len() as f64 * STEADY {
        let why = format!(
            "{} had most of the time in {agree} of {} parts of the time with requests enough: it is \
             not steady",
            layer.name(),
            enough.len()
        );
        return Verdict::CannotTell { why };
    }
    let branch = match layer {
        Layer::Branches => slow_branch(branches),
        _ => None,
    };
    Verdict::Slow {
        layer,
        part,
        branch,
    }
}

fn slow_branch(branches: &[BranchCalls]) -> Option<SlowBranch> {
    let all: f64 = branches.iter().map(BranchCalls::total_ns).sum();
    let slow = branches
        .iter()
        .max_by(|a, b| a.total_ns().total_cmp(&b.total_ns()))?;
    let part = slow.total_ns() / all.max(1.0);
    let times_as_long = compare(slow, branches);
    let is_slow = match times_as_long {
        Some(ratio) => part >= MOST && ratio >= RATIO,
        None => part >= ALONE,
    };
    is_slow.then(|| SlowBranch {
        path: slow.path.clone(),
        part,
        times_as_long,
    })
}

/// How many times as long its calls take as the same kinds of calls to the others.
fn compare(slow: &BranchCalls, branches: &[BranchCalls]) -> Option<f64> {
    let (mut own, mut expected) = (0.0, 0.0);
    for (kind, calls) in &slow.kinds {
        let others = branches.iter().filter(|other| other.path != slow.path);
        let others = crate::live_figures::sum(others.filter_map(|other| other.kinds.get(kind)));
        if calls.count < CALLS_MIN || others.count < CALLS_MIN {
            continue;
        }
        own += calls.total_ns as f64;
        expected += calls.count as f64 * mean_ns(&others)?;
    }
    (expected > 0.0).then(|| own / expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Six slices in which requests take so many milliseconds in each part.
    fn slices(requests: u64, [queue, server, branches, answer]: [u64; 4]) -> Vec<Times> {
        let ns = |ms: u64| ms * MS * requests;
        let whole = ns(queue + server + branches + answer);
        vec![Times::new(requests, whole, ns(queue), ns(branches), ns(answer)); 6]
    }

    fn calls(path: &str, kind: &str, count: u64, ms_each: u64) -> BranchCalls {
        let latency = Latency {
            count,
            total_ns: count * ms_each * MS,
            buckets: Vec::new(),
        };
        BranchCalls {
            path: path.to_owned(),
            kinds: [(kind.to_owned(), latency)].into(),
        }
    }

    fn why(verdict: Verdict) -> String {
        match verdict {
            Verdict::CannotTell { why } => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_is_told_of_few_requests_however_slow_they_are() {
        let few = slices(REQUESTS_MIN / 6 - 1, [0, 0, 900, 0]);
        assert!(why(judge(&few, &[])).contains("are needed"));
        assert!(why(judge(&[], &[])).contains("there were 0 requests"));
    }

    #[test]
    fn quick_requests_name_nothing() {
        let quick = Times::new(1000, 1000 * 900_000, 0, 1000 * 800_000, 0);
        assert_eq!(
            judge(&[quick; 6], &[]),
            Verdict::NothingSlow { mean_ns: 900_000.0 }
        );
    }

    #[test]
    fn the_part_with_most_of_the_time_is_named() {
        for (parts, expected) in [
            ([9, 1, 2, 0], Layer::Queue),
            ([1, 9, 2, 0], Layer::Server),
            ([1, 2, 9, 0], Layer::Branches),
            ([1, 2, 1, 9], Layer::Answer),
        ] {
            match judge(&slices(200, parts), &[]) {
                Verdict::Slow { layer, branch, .. } => {
                    assert_eq!((layer, branch), (expected, None));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(why(judge(&slices(200, [4, 3, 4, 0]), &[])).contains("half of the time"));
    }

    #[test]
    fn what_does_not_end_keeps_everything_else_from_being_called_quick() {
        let quick = || Verdict::NothingSlow { mean_ns: 9.0 };
        let of = |requests| Unended {
            requests,
            branches: Vec::new(),
        };
        assert_eq!(of(Some(0)).judge(quick()), quick());
        assert!(why(of(Some(2)).judge(quick())).contains("at least 2 requests had no answer"));
        assert!(why(of(None).judge(quick())).contains("does not tell"));
    }

    #[test]
    fn one_bad_moment_does_not_name_a_part() {
        let mut times = slices(200, [0, 2, 1, 0]);
        times[3] = Times::new(200, 2_000_000 * MS, 0, 1_999_000 * MS, 0);
        assert!(why(judge(&times, &[])).contains("not steady"));
        // All requests in one slice.
        let once = Times::new(1000, 9000 * MS, 0, 9000 * MS, 0);
        assert!(why(judge(&[once, Times::default()], &[])).contains("not steady"));
    }

    #[test]
    fn a_branch_is_named_that_is_slower_than_the_others_at_the_same() {
        let named = |branches: &[BranchCalls]| match judge(&slices(200, [0, 0, 9, 0]), branches) {
            Verdict::Slow { branch, .. } => branch,
            other => panic!("{other:?}"),
        };
        let slow = calls("/slow", "lookup", 500, 12);
        let branch = named(&[calls("/quick", "lookup", 500, 1), slow.clone()]).unwrap();
        assert_eq!((&*branch.path, branch.times_as_long), ("/slow", Some(12.0)));
        // It does more, not worse.
        assert_eq!(
            named(&[calls("/quick", "lookup", 50, 12), slow.clone()]),
            None
        );
        // Both are slow.
        assert_eq!(named(&[calls("/b", "lookup", 450, 12), slow.clone()]), None);
        // Nothing comparable: by its part alone.
        let other = |ms| calls("/other", "write", 500, ms);
        assert_eq!(
            named(&[other(1), slow.clone()]).unwrap().times_as_long,
            None
        );
        assert_eq!(named(&[other(6), slow.clone()]), None);
        assert_eq!(named(&[slow]).unwrap().path, "/slow");
    }
}

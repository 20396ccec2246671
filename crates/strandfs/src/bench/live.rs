//! `strandfs bench live`: which part of a mounted pool is slow, from its own requests.

pub mod verdict;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Serialize;
use strandfs_pool::metrics::{Latency, Metrics};

use crate::args::bench::live::LiveArgs;
use crate::failure::Failure;
use crate::live_figures::{mean_ns, percentile_ns, since, sum, whole};
use crate::logging::one_line;
use crate::{metrics, mounts};
use verdict::{BranchCalls, Layer, Times, Unended, Verdict, judge};

/// The time is looked at in so many slices.
const SLICES: u32 = 6;
/// How soon a signal is seen.
const TICK: Duration = Duration::from_millis(100);
/// What the pool says of a branch whose calls come back.
const HEALTHY: [&str; 3] = ["ok", "read-only", ""];
/// Requests that wait for others on purpose, for as long as these like.
const WAITING: [&str; 1] = ["setlkw"];

/// What is printed with `--json`.
#[derive(Serialize)]
struct Answer<'a> {
    schema: u32,
    mountpoint: &'a str,
    seconds: f64,
    requests: u64,
    mean_ns: Option<f64>,
    parts: BTreeMap<&'static str, f64>,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

/// Watches the pool's requests for a while and judges them.
///
/// # Errors
/// No pool is mounted there, or its server does not answer.
pub fn run(args: &LiveArgs) -> Result<ExitCode, Failure> {
    let mountpoint = metrics::named(&args.mountpoint)?;
    let stop = super::stop_on_signals()?;
    let take =
        || mounts::metrics(&mountpoint).map_err(|error| Failure::not_told(&mountpoint, &error));
    if !args.json {
        eprintln!(
            "strandfs: watching the requests of {} for {} s",
            one_line(&mountpoint.to_string_lossy()),
            args.seconds
        );
    }
    let began = Instant::now();
    let mut looks = vec![take()?];
    for slice in 1..=SLICES {
        let until = Duration::from_secs(args.seconds) * slice / SLICES;
        while began.elapsed() < until && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(TICK.min(until.saturating_sub(began.elapsed())));
        }
        looks.push(take()?);
    }
    let seen = Seen::of(&looks);
    let Some(seen) = seen else {
        return Err(Failure::Refused(
            "the pool was mounted anew meanwhile: run this again".to_owned(),
        ));
    };
    let seconds = began.elapsed().as_secs_f64();
    let unended = Unended::of(&looks);
    let verdict = unended.judge(judge(&seen.slices, &seen.branches));
    match args.json {
        true => println!("{:#}", seen.json(&verdict, seconds)?),
        false => seen.print(&verdict, seconds),
    }
    Ok(match verdict {
        Verdict::CannotTell { .. } => crate::exit::Exit::Degraded.into(),
        _ => ExitCode::SUCCESS,
    })
}

/// What happened between the first look and the last.
struct Seen {
    mountpoint: String,
    bounds: Vec<u64>,
    whole: Latency,
    slices: Vec<Times>,
    all: Times,
    branches: Vec<BranchCalls>,
}

impl Seen {
    /// None if not all looks are at one server.
    fn of(looks: &[Metrics]) -> Option<Seen> {
        let (first, last) = (looks.first()?, looks.last()?);
        if looks.iter().any(|look| look.pid != first.pid) {
            return None;
        }
        let pairs = looks.iter().zip(looks.iter().skip(1));
        Some(Seen {
            mountpoint: last.mountpoint.clone().unwrap_or_default(),
            bounds: last.bucket_bounds_ns.clone(),
            whole: since(&whole(first), &whole(last)),
            slices: pairs.map(|(before, after)| times(before, after)).collect(),
            all: times(first, last),
            branches: branches(first, last),
        })
    }

    fn json(&self, verdict: &Verdict, seconds: f64) -> Result<serde_json::Value, Failure> {
        let parts = Layer::ALL.iter();
        let answer = Answer {
            schema: 1,
            mountpoint: &self.mountpoint,
            seconds,
            requests: self.all.requests,
            mean_ns: mean_ns(&self.whole),
            parts: parts
                .map(|layer| (layer.name(), self.all.part(*layer)))
                .collect(),
            verdict,
        };
        serde_json::to_value(answer)
            .map_err(|error| Failure::system("writing the verdict")(error.into()))
    }

    fn print(&self, verdict: &Verdict, seconds: f64) {
        let ms = |ns: Option<f64>| ns.map_or("-".to_owned(), |ns| format!("{:.2} ms", ns / 1e6));
        println!(
            "{}: {} requests in {seconds:.0} s, mean {}, 99 of 100 within {}",
            one_line(&self.mountpoint),
            self.all.requests,
            ms(mean_ns(&self.whole)),
            ms(percentile_ns(&self.whole, &self.bounds, 0.99)),
        );
        let parts = Layer::ALL.iter();
        let parts =
            parts.map(|layer| format!("{} {:.0} %", layer.name(), self.all.part(*layer) * 100.0));
        println!("  of their time: {}", parts.collect::<Vec<_>>().join(", "));
        for branch in &self.branches {
            let calls = sum(branch.kinds.values());
            println!(
                "  branch {}: {} calls, mean {}, 99 of 100 within {}",
                one_line(&branch.path),
                calls.count,
                ms(mean_ns(&calls)),
                ms(percentile_ns(&calls, &self.bounds, 0.99)),
            );
        }
        println!("{}", said(verdict));
        println!("What programs read and write in passthrough is not among the requests.");
    }
}

impl Unended {
    /// By what the server has said of itself: callers that wait for no more than a CPU look to the kernel like
    /// those that wait for an answer.
    fn of(looks: &[Metrics]) -> Unended {
        let (first, last) = (looks.first(), looks.last());
        let began = first.map_or(0, |look| look.uptime_ms);
        let took = last.map_or(0, |look| look.uptime_ms.saturating_sub(began));
        let under_way = last.and_then(|look| look.under_way_ms.as_ref());
        let all_the_time = |ages: &Vec<u64>| ages.iter().filter(|age| **age >= took).count();
        let branches = last.into_iter().flat_map(|it| &it.branches);
        let troubled = branches.filter(|it| !HEALTHY.contains(&it.health.as_str()));
        Unended {
            requests: under_way.map(|ages| all_the_time(ages) as u64),
            branches: troubled
                .map(|it| format!("{} {}", one_line(&it.path), it.health))
                .collect(),
        }
    }
}

/// The verdict as a sentence.
fn said(verdict: &Verdict) -> String {
    match verdict {
        Verdict::CannotTell { why } => format!("Cannot tell what is slow: {why}."),
        Verdict::NothingSlow { mean_ns } => format!(
            "Nothing is slow: a request takes {:.2} ms on average, less than {:.0} ms.",
            mean_ns / 1e6,
            verdict::SLOW_NS / 1e6
        ),
        Verdict::Slow {
            layer,
            part,
            branch,
        } => {
            let what = match layer {
                Layer::Queue => "waiting for a thread of the server: see threads",
                Layer::Server => "the server's own work, leases and room",
                Layer::Branches => "calls to branches",
                Layer::Answer => "handing answers to the kernel",
            };
            let blamed = branch.as_ref().map(|branch| {
                let share = branch.part * 100.0;
                let path = one_line(&branch.path);
                match branch.times_as_long {
                    Some(ratio) => format!(
                        " It is {path}: {share:.0} % of that, and its calls take {ratio:.0} times as \
                         long as the same calls to the other branches."
                    ),
                    None => format!(
                        " It is {path}: {share:.0} % of that; no other branch was asked the same."
                    ),
                }
            });
            format!(
                "Slow is {}: {:.0} % of the requests' time is {what}.{}",
                layer.name(),
                part * 100.0,
                blamed.unwrap_or_default()
            )
        }
    }
}

/// The time between two looks, without requests that wait on purpose.
fn times(before: &Metrics, after: &Metrics) -> Times {
    let none = strandfs_pool::metrics::Operation::default();
    let counted = after.operations.iter();
    let counted = counted.filter(|(name, _)| !WAITING.contains(&name.as_str()));
    let [mut whole, mut queue, mut below, mut answer] = [const { Vec::new() }; 4];
    for (name, now) in counted {
        let was = before.operations.get(name).unwrap_or(&none);
        whole.push(since(&was.whole, &now.whole));
        queue.push(since(&was.queue, &now.queue));
        below.push(since(&was.branches, &now.branches));
        answer.push(since(&was.answer, &now.answer));
    }
    let whole = sum(&whole);
    Times::new(
        whole.count,
        whole.total_ns,
        sum(&queue).total_ns,
        sum(&below).total_ns,
        sum(&answer).total_ns,
    )
}

fn branches(before: &Metrics, after: &Metrics) -> Vec<BranchCalls> {
    let none = strandfs_pool::metrics::Branch::default();
    let branches = after.branches.iter().map(|now| {
        let was = before.branches.iter().find(|it| it.path == now.path);
        let was = was.unwrap_or(&none);
        let kinds = now.calls.iter().map(|(kind, calls)| {
            let empty = Latency::default();
            let past = was.calls.get(kind).map_or(&empty, |calls| &calls.took);
            (kind.clone(), since(past, &calls.took))
        });
        BranchCalls {
            path: now.path.clone(),
            kinds: kinds.collect(),
        }
    });
    branches.collect()
}

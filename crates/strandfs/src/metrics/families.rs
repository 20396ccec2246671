//! Every family of metrics: its name, what it means and where it comes from. The text, the page
//! `docs/metrics.md` and the check of the dashboard are made of this list.

use prometheus_client::metrics::MetricType;
use strandfs_pool::metrics::{Branch, Latency, Metrics};

/// The labels of a sample beside `pool`, and what they say.
pub type Labels = Vec<(&'static str, String)>;

/// What a sample says.
pub enum Value {
    /// A number.
    Number(u64),
    /// Milliseconds, to be shown as seconds.
    Milliseconds(u64),
    /// How long things took.
    Took(Latency),
}

/// What a family is measured in; part of its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    None,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
}

/// One family of metrics. Its name never changes.
pub struct Family {
    /// Without `strandfs_`, unit and `_total`.
    pub name: &'static str,
    /// What it is measured in.
    pub unit: Unit,
    /// counter, gauge or histogram.
    pub kind: MetricType,
    /// What it means. No full stop at the end.
    pub help: &'static str,
    /// The labels beside `pool`.
    pub labels: &'static [&'static str],
    /// The samples of one pool.
    pub samples: fn(&Metrics) -> Vec<(Labels, Value)>,
}

impl Family {
    /// The name that is exported, of a histogram without `_bucket`, `_sum` and `_count`.
    pub fn full_name(&self) -> String {
        let unit = match self.unit {
            Unit::None => "",
            Unit::Seconds => "_seconds",
            Unit::Bytes => "_bytes",
        };
        let total = match self.kind {
            MetricType::Counter => "_total",
            _ => "",
        };
        format!("strandfs_{}{unit}{total}", self.name)
    }

    /// The kind, in a word.
    pub fn kind_word(&self) -> &'static str {
        match self.kind {
            MetricType::Counter => "counter",
            MetricType::Histogram => "histogram",
            _ => "gauge",
        }
    }
}

/// A family of things that are counted, or of the moment.
macro_rules! family {
    ($kind:ident, $name:literal, $unit:ident, [$($label:literal),*], $help:literal, $samples:expr) => {
        Family {
            name: $name,
            unit: Unit::$unit,
            kind: MetricType::$kind,
            help: $help,
            labels: &[$($label),*],
            samples: $samples,
        }
    };
}

/// The states that a branch may be in.
const HEALTH: [&str; 6] = ["ok", "read-only", "slow", "failed", "missing", "replaced"];

/// All families, in the order of the text.
pub const FAMILIES: &[Family] = &[
    family!(
        Gauge,
        "build_info",
        None,
        ["version"],
        "Always 1; says the server's version",
        |pool| { vec![(vec![("version", pool.version.clone())], Value::Number(1))] }
    ),
    family!(
        Gauge,
        "uptime",
        Seconds,
        [],
        "How long there has been this server",
        |pool| { vec![(Vec::new(), Value::Milliseconds(pool.uptime_ms))] }
    ),
    family!(
        Counter,
        "requests",
        None,
        ["operation"],
        "Requests of the kernel",
        |pool| {
            let unknown = ("unknown".to_owned(), pool.unknown_requests);
            let known = pool.operations.iter();
            let known = known.map(|(name, operation)| (name.clone(), operation.requests));
            numbers("operation", known.chain([unknown]))
        }
    ),
    family!(
        Counter,
        "request_errors",
        None,
        ["operation"],
        "Requests answered with an error, such as a name that is not there",
        |pool| {
            let all = pool.operations.iter();
            numbers(
                "operation",
                all.map(|(name, operation)| (name.clone(), operation.errors)),
            )
        }
    ),
    family!(
        Counter,
        "errors",
        None,
        ["errno"],
        "Requests answered with this error",
        |pool| { numbers("errno", pool.errors.clone()) }
    ),
    family!(
        Histogram,
        "request_duration",
        Seconds,
        ["operation"],
        "From when a request came to the server to when its thread was done with it",
        |pool| {
            let all = pool.operations.iter();
            let taken = all.map(|(name, it)| (vec![("operation", name.clone())], &it.whole));
            taken.filter_map(took).collect()
        }
    ),
    family!(
        Histogram,
        "request_stage_duration",
        Seconds,
        ["operation", "stage"],
        "The part of a request's time that it waited for a thread (queue), was in calls to branches \
         (branches) or was handed to the kernel (answer; over /dev/fuse alone), of requests that had \
         such a part",
        |pool| {
            let stages = pool.operations.iter().flat_map(|(name, it)| {
                let stages = [
                    ("queue", &it.queue),
                    ("branches", &it.branches),
                    ("answer", &it.answer),
                ];
                stages.map(|(stage, latency)| {
                    let labels = vec![("operation", name.clone()), ("stage", stage.to_owned())];
                    (labels, latency)
                })
            });
            stages.filter_map(took).collect()
        }
    ),
    family!(
        Gauge,
        "threads",
        None,
        [],
        "Threads that carry requests out",
        |pool| { number(pool.threads.now) }
    ),
    family!(
        Gauge,
        "threads_limit",
        None,
        [],
        "The most threads there may be",
        |pool| { number(pool.threads.limit) }
    ),
    family!(
        Counter,
        "thread_hand_offs",
        None,
        [],
        "How often another thread took over reading from one that was about to block",
        |pool| number(pool.threads.reliefs)
    ),
    family!(
        Gauge,
        "open_files",
        None,
        [],
        "Files open in the pool",
        |pool| { number(pool.held.open_files) }
    ),
    family!(
        Gauge,
        "open_files_limit",
        None,
        [],
        "How many files may be open",
        |pool| { number(pool.held.descriptors.open_files_limit) }
    ),
    family!(
        Gauge,
        "inodes_known",
        None,
        [],
        "Inodes that the kernel knows of",
        |pool| { number(pool.held.nodes) }
    ),
    family!(
        Gauge,
        "directory_descriptors",
        None,
        [],
        "Directories of branches held open",
        |pool| { number(pool.held.directory_descriptors) }
    ),
    family!(
        Counter,
        "passthrough_opens",
        None,
        [],
        "Files opened so that the kernel reads and writes them without the server",
        |pool| number(pool.opens.get(PASSED).copied().unwrap_or_default())
    ),
    family!(
        Counter,
        "passthrough_refusals",
        None,
        ["reason"],
        "Files opened so that the server reads and writes them, by why",
        |pool| {
            let others = pool.opens.iter().filter(|(how, _)| *how != PASSED);
            numbers("reason", others.map(|(how, count)| (how.clone(), *count)))
        }
    ),
    family!(
        Counter,
        "cache_hits",
        None,
        ["cache"],
        "How often something was found in memory and no branch was asked",
        |pool| {
            let all = pool.caches.iter();
            numbers("cache", all.map(|(name, cache)| (name.clone(), cache.hits)))
        }
    ),
    family!(
        Counter,
        "cache_misses",
        None,
        ["cache"],
        "How often something was looked for in memory and a branch had to be asked",
        |pool| {
            let all = pool.caches.iter();
            numbers(
                "cache",
                all.map(|(name, cache)| (name.clone(), cache.misses)),
            )
        }
    ),
    family!(
        Gauge,
        "branch_health",
        None,
        ["branch", "health"],
        "1 for the state that the branch is in, 0 for the others",
        |pool| {
            let states = pool.branches.iter().flat_map(|branch| {
                // One that only a newer server knows.
                let further = (!HEALTH.contains(&&*branch.health)).then_some(&*branch.health);
                HEALTH.into_iter().chain(further).map(|state| {
                    let labels = vec![
                        ("branch", branch.path.clone()),
                        ("health", state.to_owned()),
                    ];
                    (labels, Value::Number(u64::from(branch.health == state)))
                })
            });
            states.collect()
        }
    ),
    family!(
        Gauge,
        "branch_health_age",
        Seconds,
        ["branch"],
        "How long the branch has been in its state",
        |pool| of_branches(pool, |branch| Some(Value::Milliseconds(
            branch.health_for_ms
        )))
    ),
    family!(
        Gauge,
        "branch_available",
        Bytes,
        ["branch"],
        "Free for new files, when that was last asked for",
        |pool| of_branches(pool, |branch| branch.available_bytes.map(Value::Number))
    ),
    family!(
        Gauge,
        "branch_size",
        Bytes,
        ["branch"],
        "Free and used together, when that was last asked for",
        |pool| of_branches(pool, |branch| branch.total_bytes.map(Value::Number))
    ),
    family!(
        Counter,
        "branch_io_errors",
        None,
        ["branch"],
        "Failures of the branch's disk, filesystem or server that requests met",
        |pool| of_branches(pool, |branch| Some(Value::Number(branch.io_errors)))
    ),
    family!(
        Gauge,
        "branch_disk_idle",
        Seconds,
        ["branch"],
        "For how long nothing has been read from or written to the branch's disk, by anybody; looked at \
         every five seconds",
        |pool| of_branches(pool, |branch| branch.disk_idle_ms.map(Value::Milliseconds))
    ),
    family!(
        Counter,
        "branch_disk_idle_periods",
        None,
        ["branch", "minutes"],
        "How often the branch's disk was read or written, by anybody, after it had had nothing to do for \
         at least so many minutes",
        |pool| {
            let all = pool.branches.iter().flat_map(|branch| {
                branch.disk_idle_periods.iter().map(|periods| {
                    let labels = vec![
                        ("branch", branch.path.clone()),
                        ("minutes", periods.minutes.to_string()),
                    ];
                    (labels, Value::Number(periods.ended))
                })
            });
            all.collect()
        }
    ),
    family!(
        Counter,
        "branch_calls",
        None,
        ["branch", "call"],
        "What the branch was asked for on behalf of requests",
        |pool| of_calls(pool, |_, calls| Some(Value::Number(calls.calls)))
    ),
    family!(
        Counter,
        "branch_call_failures",
        None,
        ["branch", "call"],
        "Of these, how many failed for the branch's disk, filesystem or server",
        |pool| of_calls(pool, |_, calls| Some(Value::Number(calls.failures)))
    ),
    family!(
        Histogram,
        "branch_call_duration",
        Seconds,
        ["branch", "call"],
        "How long these took",
        |pool| of_calls(pool, |_, calls| (calls.took.count > 0)
            .then(|| Value::Took(calls.took.clone())))
    ),
    family!(
        Counter,
        "branch_transferred",
        Bytes,
        ["branch", "call"],
        "What was read and written through the server; not what passes it by",
        |pool| of_calls(pool, |name, calls| {
            matches!(name, "read" | "write").then_some(Value::Number(calls.bytes))
        })
    ),
    family!(
        Counter,
        "changes_seen",
        None,
        [],
        "Changes that others made on branches, as far as they were reported",
        |pool| number(pool.coherence.events)
    ),
    family!(
        Counter,
        "invalidations",
        None,
        [],
        "What the kernel was told to forget for them",
        |pool| number(pool.coherence.invalidations)
    ),
    family!(
        Counter,
        "redirected_creates",
        None,
        [],
        "Files made on another branch than the policy's first choice, which was full",
        |pool| number(pool.redirected_creates)
    ),
    family!(
        Counter,
        "relocated_files",
        None,
        ["why"],
        "Files moved to another branch: because theirs was full (full), would soon be (ahead), or for a \
         write in passthrough that waited for room (held)",
        |pool| {
            let all = [
                ("full", pool.moved_files),
                ("ahead", pool.relocate_ahead.moved_files),
                ("held", pool.held_writes.moved_files),
            ];
            numbers("why", all.map(|(why, files)| (why.to_owned(), files)))
        }
    ),
    family!(
        Counter,
        "relocated",
        Bytes,
        ["why"],
        "The bytes of these, where they are counted",
        |pool| {
            let all = [
                ("ahead", pool.relocate_ahead.moved_bytes),
                ("held", pool.held_writes.moved_bytes),
            ];
            numbers("why", all.map(|(why, bytes)| (why.to_owned(), bytes)))
        }
    ),
    family!(
        Gauge,
        "held_writes_waiting",
        None,
        [],
        "Writes in passthrough that wait for room",
        |pool| number(pool.held_writes.waiting)
    ),
    family!(
        Counter,
        "held_writes",
        None,
        [],
        "Writes in passthrough that have waited for room",
        |pool| number(pool.held_writes.held)
    ),
    family!(
        Counter,
        "held_writes_without_room",
        None,
        [],
        "Of these, how many went on without any",
        |pool| number(pool.held_writes.without_room)
    ),
];

/// How a file is opened that passes through.
const PASSED: &str = "passthrough";

fn number(number: u64) -> Vec<(Labels, Value)> {
    vec![(Vec::new(), Value::Number(number))]
}

fn numbers(
    label: &'static str,
    all: impl IntoIterator<Item = (String, u64)>,
) -> Vec<(Labels, Value)> {
    let all = all.into_iter();
    all.map(|(name, number)| (vec![(label, name)], Value::Number(number)))
        .collect()
}

fn took((labels, latency): (Labels, &Latency)) -> Option<(Labels, Value)> {
    (latency.count > 0).then(|| (labels, Value::Took(latency.clone())))
}

fn of_branches(pool: &Metrics, value: fn(&Branch) -> Option<Value>) -> Vec<(Labels, Value)> {
    let all = pool.branches.iter();
    all.filter_map(|branch| Some((vec![("branch", branch.path.clone())], value(branch)?)))
        .collect()
}

fn of_calls(
    pool: &Metrics,
    value: fn(&str, &strandfs_pool::metrics::Calls) -> Option<Value>,
) -> Vec<(Labels, Value)> {
    let all = pool.branches.iter().flat_map(|branch| {
        branch.calls.iter().filter_map(|(name, calls)| {
            let labels = vec![("branch", branch.path.clone()), ("call", name.clone())];
            Some((labels, value(name, calls)?))
        })
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// Every name that a text may speak of, with those that a histogram has.
    fn names() -> BTreeSet<String> {
        let all = FAMILIES.iter().flat_map(|family| {
            let name = family.full_name();
            match family.kind {
                MetricType::Histogram => ["_bucket", "_sum", "_count"]
                    .map(|part| format!("{name}{part}"))
                    .to_vec(),
                _ => vec![name],
            }
        });
        all.collect()
    }

    /// The words of an expression that begin as our names do.
    fn ours(expression: &str) -> impl Iterator<Item = &str> {
        let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        words.filter(|word| word.starts_with("strandfs_"))
    }

    fn each_text(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::String(text) => found.push(text.clone()),
            Value::Array(all) => all.iter().for_each(|one| each_text(one, found)),
            Value::Object(all) => all.values().for_each(|one| each_text(one, found)),
            _ => {}
        }
    }

    #[test]
    fn names_are_each_given_once_and_say_what_they_are() {
        let names: Vec<String> = FAMILIES.iter().map(Family::full_name).collect();
        let set: BTreeSet<&String> = names.iter().collect();
        assert_eq!(set.len(), names.len());
        for family in FAMILIES {
            let is_word = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(family.name.chars().all(is_word), "{}", family.name);
            assert!(!family.help.ends_with('.'), "{}", family.help);
            assert!(!family.name.ends_with("_total"), "{}", family.name);
        }
    }

    /// The dashboard in `packaging/grafana` is one that Grafana can load, and asks for nothing that
    /// is not exported, by no label that is not there.
    #[test]
    fn the_dashboard_asks_for_what_there_is() {
        let text = include_str!("../../../../packaging/grafana/strandfs.json");
        let dashboard: Value = serde_json::from_str(text).unwrap();
        assert_eq!(dashboard["uid"], "strandfs");
        let panels = dashboard["panels"].as_array().unwrap();
        let shown: Vec<&Value> = panels.iter().filter(|it| it["type"] != "row").collect();
        let mut ids = BTreeSet::new();
        for panel in panels {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
            let place = &panel["gridPos"];
            let number = |key: &str| place[key].as_u64().unwrap();
            assert!(number("x") + number("w") <= 24, "{panel}");
        }
        for panel in &shown {
            let targets = panel["targets"].as_array().unwrap();
            assert!(!targets.is_empty(), "{panel}");
            for target in targets {
                let expression = target["expr"].as_str().unwrap();
                assert!(ours(expression).next().is_some(), "{expression}");
                let balance = |open, close| {
                    let count = |c| expression.matches(c).count();
                    assert_eq!(count(open), count(close), "{expression}");
                };
                balance('(', ')');
                balance('{', '}');
                balance('[', ']');
            }
        }
        let (names, mut texts) = (names(), Vec::new());
        each_text(&dashboard, &mut texts);
        let mut asked = BTreeSet::new();
        for name in texts.iter().flat_map(|text| ours(text)) {
            assert!(names.contains(name), "{name} is not exported");
            asked.insert(name.to_owned());
        }
        assert!(asked.len() > 20, "{asked:?}");
        // Labels, in `by (...)`, selectors and legends.
        let labels = FAMILIES.iter().flat_map(|family| family.labels);
        // Those of where the samples were fetched are Prometheus's.
        let fetched = ["job", "instance"];
        let labels = labels.copied().chain(["pool", "le"]).chain(fetched);
        let labels: BTreeSet<&str> = labels.collect();
        for text in &texts {
            for by in text.split("by (").skip(1) {
                for label in by.split(')').next().unwrap().split(", ") {
                    assert!(labels.contains(label), "{label} in {text}");
                }
            }
            for legend in text.split("{{").skip(1) {
                let label = legend.split("}}").next().unwrap();
                assert!(labels.contains(label), "{label} in {text}");
            }
        }
    }
}

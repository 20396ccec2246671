//! What a pool has counted, as programs that collect metrics read it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::need_root;
use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::put;
use crate::support::{Kind, Pool, eventually, mounts, strandfs};

/// Far more than anything here takes.
const IN_TIME: Duration = Duration::from_secs(25);

/// Samples by name and labels, without the label `pool`.
type Samples = BTreeMap<String, f64>;

/// What a text says; every line of it must be understood.
fn samples(text: &str) -> Samples {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let read = lines.map(|line| {
        let (what, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
        // Mountpoints of tests have neither quotes nor backslashes.
        let (before, labels) = (what.split_once("pool=\"")).unwrap_or_else(|| panic!("{line}"));
        let (_, after) = labels.split_once('"').unwrap_or_else(|| panic!("{line}"));
        let after = after.strip_prefix(',').unwrap_or(after);
        (format!("{before}{after}"), value)
    });
    let mut all = Samples::new();
    for (what, value) in read {
        assert_eq!(
            all.insert(what.clone(), value),
            None,
            "{what} is said twice"
        );
    }
    all
}

fn counted(pool: &Pool) -> Samples {
    let ran = strandfs(["metrics", pool.root().to_str().unwrap()]).ok();
    assert!(ran.stdout.ends_with("# EOF\n"), "{ran:?}");
    samples(ran.stdout.strip_suffix("# EOF\n").unwrap())
}

fn value(all: &Samples, what: &str) -> f64 {
    *all.get(what)
        .unwrap_or_else(|| panic!("{what} in {all:#?}"))
}

#[test]
fn a_branch_is_in_one_state_and_in_no_other() {
    need_root!();
    let pool = Pool::tmpfs(2).mount();
    let all = counted(&pool);
    for branch in 0..2 {
        let path = pool.branch_status(branch).path;
        let beginning = format!("strandfs_branch_health{{branch=\"{path}\",health=");
        let own = all.iter().filter(|(what, _)| what.starts_with(&beginning));
        let is_in: Vec<&str> = own
            .clone()
            .filter(|(_, value)| **value != 0.0)
            .filter_map(|(what, _)| what.strip_prefix(&beginning))
            .collect();
        assert_eq!(is_in, ["\"ok\"}"], "{own:?}");
        assert_eq!(own.count(), 6);
    }
}

/// Once a directory is remembered, no branch is asked for names that are not in it: these are hits, not misses.
#[test]
fn what_is_known_is_a_hit_and_what_is_asked_of_a_branch_is_not() {
    need_root!();
    let pool = Pool::tmpfs(2).mount();
    put(pool.path("f"), "x");
    let look = |name: &str| assert!(fs::metadata(pool.path(name)).is_err());
    let counts = || {
        let all = counted(&pool);
        let of = |what: &str| {
            let name = format!("strandfs_cache_{what}_total{{cache=\"directories\"}}");
            value(&all, &name)
        };
        (of("hits"), of("misses"))
    };
    let mut tried = 0;
    eventually("the directory is remembered", IN_TIME, || {
        tried += 1;
        let before = counts();
        look(&format!("absent-{tried}"));
        counts().0 > before.0
    });
    let before = counts();
    for number in 0..50 {
        look(&format!("unknown-{number}"));
    }
    let after = counts();
    let (hits, misses) = (after.0 - before.0, after.1 - before.1);
    assert!(
        hits >= 45.0 && misses <= 5.0,
        "{hits} hits, {misses} misses"
    );
}

#[test]
fn requests_and_what_they_asked_of_branches_are_counted() {
    need_root!();
    let pool = Pool::tmpfs(2)
        .option("passthrough.io=off,category.create=ff,cache.files=off")
        .mount();
    put(pool.path("f"), "x".repeat(3000));
    let before = counted(&pool);
    assert_eq!(fs::read(pool.path("f")).unwrap().len(), 3000);
    assert!(fs::metadata(pool.path("absent")).is_err());
    let mut value_of = [0; 10];
    assert!(rustix::fs::getxattr(pool.path("f"), "user.none", &mut value_of[..]).is_err());
    fs::create_dir(pool.path("d")).unwrap();
    fs::rename(pool.path("d"), pool.path("e")).unwrap();
    fs::remove_dir(pool.path("e")).unwrap();
    fs::File::open(pool.path("f")).unwrap().sync_all().unwrap();
    assert_eq!(fs::read_dir(pool.root()).unwrap().count(), 1);
    let after = counted(&pool);
    let rise = |what: &str| value(&after, what) - before.get(what).copied().unwrap_or_default();
    for (operation, least) in [
        ("lookup", 1.0),
        ("open", 2.0),
        ("read", 1.0),
        ("mkdir", 1.0),
        ("rmdir", 1.0),
        ("fsync", 1.0),
    ] {
        let of = |name: &str| rise(&format!("strandfs_{name}{{operation=\"{operation}\"}}"));
        assert!(of("requests_total") >= least, "{operation}");
        assert!(of("request_duration_seconds_count") >= least, "{operation}");
        assert!(of("request_duration_seconds_sum") > 0.0, "{operation}");
    }
    // Nothing of this can be told from what the kernel knows.
    let errors = rise("strandfs_request_errors_total{operation=\"getxattr\"}");
    assert!(errors >= 1.0 && rise("strandfs_errors_total{errno=\"ENODATA\"}") >= 1.0);
    let first = pool.branch_status(0).path;
    let label = |call: &str| format!("{{branch=\"{first}\",call=\"{call}\"}}");
    for call in [
        "lookup", "open", "read", "make", "rename", "remove", "sync", "list",
    ] {
        let what = format!("strandfs_branch_calls_total{}", label(call));
        assert!(rise(&what) >= 1.0, "{call}");
        let failures = format!("strandfs_branch_call_failures_total{}", label(call));
        assert_eq!(rise(&failures), 0.0, "{call}");
    }
    let read = format!("strandfs_branch_transferred_bytes_total{}", label("read"));
    assert_eq!(rise(&read), 3000.0);
    let written = format!("strandfs_branch_transferred_bytes_total{}", label("write"));
    assert_eq!(value(&before, &written), 3000.0);
    assert_eq!(
        rise("strandfs_passthrough_refusals_total{reason=\"options\"}"),
        2.0
    );
    assert_eq!(rise("strandfs_passthrough_opens_total{}"), 0.0);
    // Time in branches is part of the whole.
    let whole = "strandfs_request_duration_seconds_sum{operation=\"read\"}";
    let below =
        "strandfs_request_stage_duration_seconds_sum{operation=\"read\",stage=\"branches\"}";
    assert!(value(&after, below) > 0.0 && value(&after, below) <= value(&after, whole));
    let health = format!("strandfs_branch_health{{branch=\"{first}\",health=\"ok\"}}");
    assert_eq!(value(&after, &health), 1.0);
    let available = format!("strandfs_branch_available_bytes{{branch=\"{first}\"}}");
    assert!(value(&after, &available) > 0.0);
}

/// The buckets of a histogram rise, and the last one has all.
#[test]
fn histograms_are_whole() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    for number in 0..20 {
        put(pool.path(format!("f{number}")), "x");
    }
    let ran = strandfs(["metrics", pool.root().to_str().unwrap()]).ok();
    let of_creates = |line: &&str| line.contains("operation=\"create\"");
    let lines: Vec<&str> = ran.stdout.lines().filter(of_creates).collect();
    let number = |line: &str| -> u64 { line.rsplit_once(' ').unwrap().1.parse().unwrap() };
    let buckets: Vec<&&str> = lines
        .iter()
        .filter(|line| line.starts_with("strandfs_request_duration_seconds_bucket"))
        .collect();
    assert!(
        buckets.is_sorted_by_key(|line| number(line)),
        "{buckets:#?}"
    );
    let last = buckets.last().unwrap();
    assert!(
        last.contains("le=\"+Inf\"") && number(last) == 20,
        "{buckets:#?}"
    );
    let count = lines
        .iter()
        .find(|line| line.starts_with("strandfs_request_duration_seconds_count"));
    assert_eq!(number(count.unwrap()), 20);
}

#[test]
fn files_that_pass_through_are_counted_as_such() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    if !pool.status().passthrough.is_on() {
        return;
    }
    put(pool.path("f"), "x");
    let before = value(&counted(&pool), "strandfs_passthrough_opens_total{}");
    let held = fs::File::open(pool.path("f")).unwrap();
    fs::File::open(pool.path("f")).unwrap();
    let after = counted(&pool);
    assert_eq!(
        value(&after, "strandfs_passthrough_opens_total{}"),
        before + 2.0
    );
    assert!(value(&after, "strandfs_open_files{}") >= 1.0);
    drop(held);
}

/// Asks the control socket, and how long that took.
fn ask(socket: &str) -> (serde_json::Value, Duration) {
    let begun = Instant::now();
    let address = SocketAddr::from_abstract_name(socket).unwrap();
    let mut stream = UnixStream::connect_addr(&address).unwrap();
    stream.write_all(b"{\"do\":\"metrics\"}\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let took = begun.elapsed();
    (serde_json::from_str(&answer).unwrap(), took)
}

#[test]
fn a_branch_that_hangs_holds_up_no_metrics() {
    need_root!();
    let (mut pool, slow) =
        DelayFs::beside_memory("branch-slow-after=500ms,branch-deadline=0,category.create=ff");
    put(pool.outside("behind/there"), "x");
    pool.start();
    let mut socket = [0; 200];
    let control = pool.path(".strandfs");
    let len = rustix::fs::getxattr(&control, "user.strandfs.socket", &mut socket[..]).unwrap();
    let socket = String::from_utf8(socket[..len].to_vec()).unwrap();
    slow.set(Mood::Stuck);
    let mut readers: Vec<_> = ["there", "elsewhere", "."]
        .iter()
        .map(|name| {
            Command::new("ls")
                .arg("-l")
                .arg(pool.path(name))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    eventually("the branch to be asked", IN_TIME, || slow.waiting() > 0);
    // This machine may be busy with other tests: the quickest of some is what it takes.
    let asked: Vec<_> = (0..20).map(|_| ask(&socket)).collect();
    let quickest = asked.iter().map(|(_, took)| *took).min().unwrap();
    assert!(quickest < Duration::from_millis(50), "{quickest:?}");
    let branches = &asked[0].0["metrics"]["branches"];
    assert_eq!(branches.as_array().unwrap().len(), 2, "{branches}");
    let root = pool.root().to_str().unwrap();
    eventually("the branch to count as slow", IN_TIME, || {
        let ran = strandfs(["metrics", root]).ok();
        let is_slow = |line: &str| {
            line.starts_with("strandfs_branch_health{") && line.ends_with("health=\"slow\"} 1")
        };
        ran.stdout.lines().any(is_slow)
    });
    slow.set(Mood::Well);
    for reader in &mut readers {
        reader.wait().unwrap();
    }
}

#[test]
fn names_of_branches_are_escaped() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    let odd = pool.outside("odd");
    for name in [&b"quote\"d"[..], b"two\nlines", b"back\\slash"] {
        fs::create_dir_all(odd.join(OsStr::from_bytes(name))).unwrap();
    }
    let root = pool.root().to_str().unwrap();
    let further = format!("branches=+>{}/*", odd.to_str().unwrap());
    strandfs(["set", root, &further]).ok();
    let all = counted(&pool);
    let odd = odd.to_str().unwrap();
    for name in ["quote\\\"d", "two\\nlines", "back\\\\slash"] {
        let what = format!("strandfs_branch_health{{branch=\"{odd}/{name}\",health=\"ok\"}}");
        assert_eq!(value(&all, &what), 1.0);
    }
}

/// The older form says the same.
#[test]
fn both_forms_say_the_same() {
    need_root!();
    let pool = Pool::tmpfs(2).mount();
    put(pool.path("f"), "x");
    let root = pool.root().to_str().unwrap();
    let older = strandfs(["metrics", root, "--format", "prometheus"]).ok();
    let (older, newer) = (samples(&older.stdout), counted(&pool));
    // They write the bounds of buckets in different ways.
    let names = |all: &Samples| -> Vec<String> {
        let plain = all.keys().filter(|name| !name.contains("_bucket{"));
        plain.cloned().collect()
    };
    assert_eq!(names(&older), names(&newer));
    let version = older
        .keys()
        .any(|name| name.starts_with("strandfs_build_info{version="));
    assert!(version, "{older:#?}");
}

/// Such a branch cannot be had, so that no text need be made of its name.
#[test]
fn a_branch_whose_name_is_no_text_is_refused() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    let odd = pool.outside("odd");
    fs::create_dir_all(odd.join(OsStr::from_bytes(b"no\xfftext"))).unwrap();
    let further = format!("branches=+>{}/*", odd.to_str().unwrap());
    let ran = strandfs(["set", pool.root().to_str().unwrap(), &further]);
    assert_eq!(ran.code(), 2, "{ran:?}");
    assert!(ran.stderr.contains("not UTF-8"), "{ran:?}");
}

#[test]
fn who_is_no_pool_has_no_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let ran = strandfs(["metrics", dir.path().to_str().unwrap()]);
    assert_eq!((ran.code(), ran.stdout.as_str()), (5, ""), "{ran:?}");
    assert!(ran.stderr.contains("is not a strandfs mount"), "{ran:?}");
}

/// From the kernel's counts of the branch's disk, which are read without a request to it.
#[test]
fn for_how_long_a_disk_has_had_nothing_to_do_is_known_where_there_is_one_disk() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let pool = Pool::build()
        .branch(Kind::Loop("ext4", "32M"), "")
        .branch(Kind::Tmpfs("8m"), "")
        .option("category.create=ff,minfreespace=0")
        .mount();
    let disk = pool.branch_status(0).path;
    let idle = format!("strandfs_branch_disk_idle_seconds{{branch=\"{disk}\"}}");
    let seconds = || counted(&pool).get(&idle).copied();
    // It is looked at every five seconds, and mounting has used it.
    eventually("it has nothing to do", IN_TIME, || {
        seconds().is_some_and(|seconds| seconds >= 5.0)
    });
    let all = counted(&pool);
    for minutes in [5, 10, 20, 30, 60] {
        let labels = format!("{{branch=\"{disk}\",minutes=\"{minutes}\"}}");
        let what = format!("strandfs_branch_disk_idle_periods_total{labels}");
        assert_eq!(value(&all, &what), 0.0);
    }
    let of_others = |what: &&String| what.contains("_disk_idle") && !what.contains(&disk);
    assert_eq!(all.keys().find(of_others), None);
    let was = seconds().unwrap();
    put(pool.path("f"), "f");
    fs::File::open(pool.path("f")).unwrap().sync_all().unwrap();
    eventually("its use is seen", IN_TIME, || {
        seconds().is_some_and(|seconds| seconds < was)
    });
}

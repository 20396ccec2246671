//! What the server logs, and where.

use crate::need_root;
use std::fs;
use std::time::Duration;

use crate::support::files::put;
use crate::support::{Kind, Pool, eventually, mounts, strandfs};

const SOON: Duration = Duration::from_secs(30);

fn line_with(log: &str, parts: &[&str]) -> bool {
    log.lines()
        .any(|line| parts.iter().all(|part| line.contains(part)))
}

#[test]
fn a_failing_branch_is_logged_and_a_missing_name_is_not() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("1m"), "")
        .option("passthrough.io=off")
        .mount();
    fs::metadata(pool.path("missing")).unwrap_err();
    let full = fs::write(pool.path("big"), vec![1; 4 << 20]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    let branch = format!("branch={}", pool.on(0, "").display());
    let branch = branch.trim_end_matches('/');
    let parts = [
        "WARN",
        "operation=write",
        "path=/big",
        branch,
        "errno=ENOSPC",
    ];
    eventually("the failure is logged", SOON, || {
        line_with(&pool.log(), &parts)
    });
    // Lines keep their order, so the earlier request would be there by now.
    assert!(!pool.log().contains("missing"), "{}", pool.log());
}

#[test]
fn many_failures_of_a_kind_are_counted() {
    need_root!();
    let mut pool = Pool::build().branch(Kind::Tmpfs("16m"), "=RW,1G").mount();
    for index in 0..500 {
        let refused = fs::write(pool.path(format!("f{index}")), "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
    }
    // The rest is summed up at the end, or when ten seconds are over.
    mounts::unmount_cleanly(pool.root()).ok();
    assert!(
        pool.wait_for_exit(SOON)
            .is_some_and(|status| status.success())
    );
    let log = pool.log();
    assert!(
        line_with(&log, &["request failed: ", " more in ", "errno=ENOSPC"]),
        "{log}"
    );
    let single = log.lines().filter(|line| line.contains("path=/f")).count();
    assert!((10..400).contains(&single), "{single} lines in\n{log}");
}

#[test]
fn a_log_file_is_appended_to_and_debug_tells_every_request() {
    need_root!();
    let mut pool = Pool::tmpfs(1).prepare();
    let file = pool.outside("pool.log");
    fs::write(&file, "before\n").unwrap();
    pool.add_option(&format!("log.file={},debug", file.display()));
    pool.start();
    put(pool.path("seen"), "x");
    let log = || fs::read_to_string(&file).unwrap();
    eventually("a request is logged", SOON, || {
        line_with(&log(), &["DEBUG request", "operation=Create", "seen"])
    });
    assert!(log().starts_with("before\n"));
    assert!(line_with(&log(), &["Z  INFO mounted", "mountpoint="]));
    assert_eq!(pool.log(), "", "nothing on standard error");
}

#[test]
fn a_log_file_that_cannot_be_used_is_refused() {
    let pool = Pool::tmpfs(1).prepare();
    for (file, why) in [
        (pool.outside("no/such"), "No such file"),
        (pool.path("log"), "in the pool"),
    ] {
        let option = format!("log.file={}", file.display());
        let mut args = vec!["mount".to_owned(), "-o".to_owned(), option];
        args.extend(pool.branch_args());
        args.push(pool.root().display().to_string());
        let refused = strandfs(&args);
        assert_eq!(refused.code(), 2, "{refused:?}");
        assert!(refused.stderr.contains(why), "{refused:?}");
        assert!(!mounts::is_mounted(pool.root()), "{refused:?}");
    }
}

#[test]
fn the_log_can_be_changed_while_mounted() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    let file = pool.outside("later.log");
    let set = |setting: &str| strandfs(["set", pool.root().to_str().unwrap(), setting]);
    let refused = set(&format!("log.file={}", pool.outside("no/such").display()));
    assert_ne!(refused.code(), 0, "{refused:?}");
    assert!(refused.stderr.contains("No such file"), "{refused:?}");
    set(&format!("log.file={}", file.display())).ok();
    set("debug=true").ok();
    put(pool.path("seen"), "x");
    let log = || fs::read_to_string(&file).unwrap();
    eventually("a request is logged", SOON, || {
        line_with(&log(), &["DEBUG request", "operation=Create", "seen"])
    });
    set("debug=false").ok();
    put(pool.path("unseen"), "x");
    set("log.file=").ok();
    // The change itself is told where the log goes now.
    eventually("standard error again", SOON, || {
        line_with(&pool.log(), &["options changed", "options=log.file"])
    });
    assert!(!log().contains("unseen"), "{}", log());
}

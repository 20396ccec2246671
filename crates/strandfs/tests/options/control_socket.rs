//! `strandfs get`, `set`, `branch` and `reload`, SIGHUP, and the socket beneath them.

use crate::{need_root, need_tool};
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use crate::support::answers::Values;
use crate::support::files::{names, put};
use crate::support::system::Daemons;
use crate::support::{Pool, Run, eventually, run, strandfs};
use rustix::process::{Pid, Signal, kill_process};
use strandfs_pool::status::Branch;

const LIMIT: Duration = Duration::from_secs(30);

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn root(pool: &Pool) -> &str {
    text(pool.root())
}

fn get(pool: &Pool, key: &str) -> String {
    let run = strandfs(["get", root(pool), key]).ok();
    run.stdout.trim_end().to_owned()
}

/// A refusal is one sentence, exit code 2.
#[track_caller]
fn refused(run: Run, part: &str) {
    assert_eq!(run.code(), 2, "{run:?}");
    assert!(
        run.stderr.contains(part) && run.stderr.lines().count() == 1,
        "{run:?}"
    );
}

#[test]
fn options_are_set_all_or_none() {
    let pool = Pool::tmpfs(1).mount();
    let set = |options: &[&str]| strandfs(["set", root(&pool)].iter().chain(options));
    set(&["cache.attr=7", "category.create=mfs", "dropcacheonclose"]).ok();
    assert_eq!(get(&pool, "cache.attr"), "7s");
    assert_eq!(get(&pool, "func.mkdir"), "mfs");
    assert_eq!(get(&pool, "dropcacheonclose"), "true");
    refused(set(&["cache.attr=9", "cache.entry=1x"]), "cache.entry");
    refused(
        set(&["cache.attr=9", "posix-acl=false"]),
        "cannot change while the pool is mounted",
    );
    refused(
        set(&["cache.attr=9", "categroy.create=mfs"]),
        "did you mean category.create?",
    );
    refused(set(&["cache.attr=9", "branches=+/none"]), "does not exist");
    refused(
        strandfs(["get", root(&pool), "chache.attr"]),
        "did you mean cache.attr?",
    );
    assert_eq!(get(&pool, "cache.attr"), "7s");
    let all = strandfs(["get", root(&pool)]).ok().stdout;
    assert!(
        all.lines().count() > 60 && all.contains("cache.attr=7s\n"),
        "{all}"
    );
    let json = strandfs(["get", root(&pool), "--json", "pid"]).ok().stdout;
    let json: Values = serde_json::from_str(&json).unwrap();
    assert_eq!(json.values["pid"], pool.pid());
    assert_eq!(pool.status().origins["cache.attr"], "run-time");
    let outside = pool.outside("");
    assert_eq!(strandfs(["set", text(&outside), "cache.attr=1"]).code(), 5);
}

#[test]
fn branches_are_listed_added_changed_and_removed() {
    let mut pool = Pool::tmpfs(3).prepare();
    for branch in 0..3 {
        put(pool.on(branch, format!("only{branch}")), "");
    }
    pool.start();
    let path = |branch: usize| pool.on(branch, ".").canonicalize().unwrap();
    let branch = |what: &str, number: usize, more: &[&str]| {
        let path = path(number);
        let args = ["branch", what, root(&pool), text(&path)];
        strandfs(args.iter().chain(more))
    };
    // The change is complete when the command returns.
    branch("remove", 1, &[]).ok();
    assert_eq!(names(pool.root()), ["only0", "only2"]);
    branch(
        "add",
        1,
        &["--mode", "NC", "--minfreespace", "1M", "--first"],
    )
    .ok();
    assert_eq!(names(pool.root()), ["only0", "only1", "only2"]);
    branch("set", 0, &["--mode", "RO"]).ok();
    let list = strandfs(["branch", "list", root(&pool)]).ok().stdout;
    let expected = [(1, "NC,1M"), (0, "RO"), (2, "RW")];
    let expected = expected.map(|(number, mode)| format!("{}={mode}\n", path(number).display()));
    assert_eq!(list, expected.concat());
    assert!(get(&pool, "branches").contains("=NC,1M"));
    branch("set", 1, &["--minfreespace", "default"]).ok();
    assert!(!get(&pool, "branches").contains(','));
    refused(branch("add", 1, &[]), "is in the list already");
    refused(branch("set", 1, &["--mode", "XX"]), "RW, RO or NC");
    refused(branch("set", 1, &["--minfreespace", "1Q"]), "minfreespace");
    branch("remove", 1, &[]).ok();
    refused(branch("remove", 1, &[]), "no branch matches");
    branch("remove", 0, &[]).ok();
    refused(branch("remove", 2, &[]), "without a branch");
    let json = strandfs(["branch", "list", root(&pool), "--json"])
        .ok()
        .stdout;
    let listed: Vec<Branch> = serde_json::from_str(&json).unwrap();
    assert_eq!(listed[0].path, text(&path(2)));
}

#[test]
fn a_changed_file_is_read_again_whole_or_not_at_all() {
    let pool = Pool::tmpfs(2).prepare();
    let _daemons = Daemons::at(pool.root());
    for branch in 0..2 {
        put(pool.on(branch, format!("only{branch}")), "");
    }
    let file = pool.outside("pool.toml");
    let write = |branches: &[usize], more: &str| {
        let branches = branches
            .iter()
            .map(|number| format!("{:?}", pool.outside(format!("b{number}"))));
        let branches: Vec<String> = branches.collect();
        let text = format!(
            "branches = [{}]\nminfreespace = 0\n{more}\n",
            branches.join(",")
        );
        fs::write(&file, text).unwrap();
    };
    write(&[0], "\"cache.attr\" = 7");
    strandfs(["mount", text(&file), root(&pool)]).ok();
    assert_eq!(names(pool.root()), ["only0"]);
    let reload = || strandfs(["reload", root(&pool)]);
    strandfs(["set", root(&pool), "cache.entry=9"]).ok();
    write(&[0, 1], "\"cache.attr\" = 8");
    reload().ok();
    assert_eq!(names(pool.root()), ["only0", "only1"]);
    assert_eq!(get(&pool, "cache.attr"), "8s");
    assert_eq!(
        get(&pool, "cache.entry"),
        "auto",
        "the file is all there is"
    );
    for (more, part) in [
        ("\"cache.attr\" = \"1x\"", "pool.toml:3"),
        (
            "\"cache.attr\" = 9\nposix-acl = false",
            "posix-acl cannot change",
        ),
        ("\"cache.attr\" = 9\nnonsense = 1", "nonsense"),
        ("\"cache.attr\" = ", "pool.toml:3"),
    ] {
        write(&[1], more);
        refused(reload(), part);
        assert_eq!(get(&pool, "cache.attr"), "8s", "{more}");
        assert_eq!(names(pool.root()), ["only0", "only1"], "{more}");
    }
    // SIGHUP does the same.
    let pid = Pid::from_raw(get(&pool, "pid").parse().unwrap()).unwrap();
    write(&[1], "\"cache.attr\" = 6");
    kill_process(pid, Signal::HUP).unwrap();
    eventually("the new options", LIMIT, || {
        get(&pool, "cache.attr") == "6s"
    });
    eventually("the new branches", LIMIT, || {
        names(pool.root()) == ["only1"]
    });
    write(&[1], "nonsense = 1");
    kill_process(pid, Signal::HUP).unwrap();
    // Setting the name of the file, as mergerfs' users do, reads it, too.
    let control = pool.path(".mergerfs");
    let flags = rustix::fs::XattrFlags::empty();
    let set = |value: &str| {
        rustix::fs::setxattr(&control, "user.mergerfs.config", value.as_bytes(), flags)
    };
    assert_eq!(set(""), Err(rustix::io::Errno::INVAL));
    assert_eq!(get(&pool, "cache.attr"), "6s");
    let other = pool.outside("other.conf");
    fs::write(&other, "cache.attr=5\nfunc.create=ff\n").unwrap();
    set(text(&other)).unwrap();
    assert_eq!(get(&pool, "cache.attr"), "5s");
    assert_eq!(get(&pool, "config"), text(&file));
    strandfs(["umount", root(&pool)]).ok();
}

#[test]
fn changes_are_saved_in_the_file_they_belong_to() {
    let pool = Pool::tmpfs(2).prepare();
    let _daemons = Daemons::at(pool.root());
    let path = |branch: usize| pool.on(branch, ".").canonicalize().unwrap();
    let file = pool.outside("pool.toml");
    let first = path(0).display().to_string();
    let before = format!(
        "# what this pool is for\nminfreespace = 0\nbranches = [\n    \"{first}\",\n]\n\n\
         [cache]\nattr = 7 # a reason\n"
    );
    fs::write(&file, &before).unwrap();
    strandfs(["mount", text(&file), root(&pool)]).ok();
    let read = || fs::read_to_string(&file).unwrap();
    // Refused: neither the pool nor the file changes.
    refused(
        strandfs(["set", root(&pool), "cache.attr=1x", "--save"]),
        "cache.attr",
    );
    assert_eq!(read(), before);
    strandfs([
        "set",
        root(&pool),
        "cache.attr=9",
        "func.create=ff",
        "--save",
    ])
    .ok();
    strandfs([
        "branch",
        "add",
        root(&pool),
        text(&path(1)),
        "--mode",
        "NC",
        "--save",
    ])
    .ok();
    strandfs(["set", root(&pool), "cache.entry=3"]).ok();
    let after = read();
    for part in [
        "# what this pool is for",
        "attr = \"9s\" # a reason",
        "func.create",
        "NC",
    ] {
        assert!(after.contains(part), "{part} in\n{after}");
    }
    assert!(!after.contains("entry"), "not saved: {after}");
    // What was saved is what comes back.
    let live = get(&pool, "branches");
    strandfs(["umount", root(&pool)]).ok();
    strandfs(["mount", text(&file), root(&pool)]).ok();
    assert_eq!(get(&pool, "branches"), live);
    assert_eq!(get(&pool, "cache.attr"), "9s");
    assert_eq!(get(&pool, "func.create"), "ff");
    assert_eq!(get(&pool, "cache.entry"), "auto");
    strandfs(["branch", "remove", root(&pool), text(&path(1)), "--save"]).ok();
    strandfs(["reload", root(&pool)]).ok();
    assert_eq!(get(&pool, "branches"), format!("{first}=RW"));
    let left: Vec<_> = names(pool.outside(""))
        .into_iter()
        .filter(|name| name.contains("toml"))
        .collect();
    assert_eq!(left, ["pool.toml"]);
    strandfs(["umount", root(&pool)]).ok();
    strandfs(["mount", "-o", "minfreespace=0", &first, root(&pool)]).ok();
    let nowhere = strandfs(["set", root(&pool), "cache.attr=5", "--save"]);
    refused(nowhere, "without a configuration file");
    assert_eq!(get(&pool, "cache.attr"), "auto");
    strandfs(["umount", root(&pool)]).ok();
}

/// A pool in the background, of the branches that its file names, and the file.
fn from_file(text_of: impl FnOnce(&Pool) -> String) -> (Pool, Daemons, std::path::PathBuf) {
    let pool = Pool::tmpfs(3).prepare();
    let daemons = Daemons::at(pool.root());
    let file = pool.outside("pool.toml");
    fs::write(&file, format!("minfreespace = 0\n{}", text_of(&pool))).unwrap();
    strandfs(["mount", text(&file), root(&pool)]).ok();
    (pool, daemons, file)
}

fn branch(pool: &Pool, number: usize) -> String {
    let path = pool.on(number, "").canonicalize().unwrap();
    text(&path).to_owned()
}

fn of_two(pool: &Pool) -> String {
    format!(
        "branches = [{:?}, {:?}]\n",
        branch(pool, 0),
        branch(pool, 1)
    )
}

/// What the pool says of a category is no value for one when a function differs.
#[test]
fn what_was_saved_can_be_mounted_and_means_what_was_asked_for() {
    let (pool, _daemons, file) = from_file(of_two);
    for (options, create, mkdir) in [
        (["category.create=epmfs", "func.mkdir=ff"], "epmfs", "ff"),
        (["func.mkdir=lfs", "category.create=mfs"], "mfs", "mfs"),
        (["category.create=ff", "category.create=lus"], "lus", "lus"),
    ] {
        let set = ["set", root(&pool), options[0], options[1], "--save"];
        strandfs(set).ok();
        let live = |key| get(&pool, key);
        assert_eq!([live("func.create"), live("func.mkdir")], [create, mkdir]);
        strandfs(["config", "check", text(&file)]).ok();
        strandfs(["umount", root(&pool)]).ok();
        strandfs(["mount", text(&file), root(&pool)]).ok();
        assert_eq!([live("func.create"), live("func.mkdir")], [create, mkdir]);
    }
    strandfs(["umount", root(&pool)]).ok();
}

#[test]
fn two_saves_at_once_lose_neither_setting() {
    let (pool, _daemons, file) = from_file(of_two);
    for round in 10..20 {
        let set = |name: &str| {
            let option = format!("{name}={round}s");
            strandfs(["set", root(&pool), &option, "--save"]).ok();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| set("cache.attr"));
            scope.spawn(|| set("cache.entry"));
        });
        let saved = fs::read_to_string(&file).unwrap();
        for name in ["attr", "entry"] {
            let line = format!("\"cache.{name}\" = \"{round}s\"");
            assert!(saved.contains(&line), "{line} in {saved}");
        }
    }
    strandfs(["umount", root(&pool)]).ok();
}

/// Anybody can lock a directory that everybody may read.
#[test]
fn whoever_keeps_the_files_directory_locked_keeps_nobody_from_saving() {
    let (pool, _daemons, file) = from_file(of_two);
    let directory = fs::File::open(file.parent().unwrap()).unwrap();
    rustix::fs::flock(&directory, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let before = std::time::Instant::now();
    strandfs(["set", root(&pool), "cache.attr=17s", "--save"]).ok();
    assert!(before.elapsed() < std::time::Duration::from_secs(9));
    let saved = fs::read_to_string(&file).unwrap();
    assert!(saved.contains("\"cache.attr\" = \"17s\""), "{saved}");
    strandfs(["umount", root(&pool)]).ok();
}

#[test]
fn a_saved_change_of_a_branch_changes_nothing_else_of_the_list() {
    let (pool, _daemons, file) = from_file(of_two);
    let [a, b, c] = [0, 1, 2].map(|number| branch(&pool, number));
    // For a moment, and what the administrator wrote for the next start.
    strandfs(["branch", "remove", root(&pool), &a]).ok();
    let written = fs::read_to_string(&file).unwrap();
    let link = pool.outside("link");
    std::os::unix::fs::symlink(&c, &link).unwrap();
    let written = written.replace("]\n", &format!(", {:?}]\n", text(&link)));
    fs::write(&file, &written).unwrap();
    strandfs(["branch", "set", root(&pool), &b, "--mode", "NC", "--save"]).ok();
    let saved = fs::read_to_string(&file).unwrap();
    let expected = written.replace(
        &format!("{b:?}"),
        &format!("{{ path = {b:?}, mode = \"NC\" }}"),
    );
    assert_eq!(saved, expected);
    assert_eq!(get(&pool, "branches"), format!("{b}=NC"));
    strandfs(["umount", root(&pool)]).ok();
}

#[test]
fn a_file_that_cannot_hold_the_change_is_refused_before_the_pool_is_changed() {
    let (pool, _daemons, file) = from_file(|pool| {
        let any = branch(pool, 0).replace("b0", "b[01]");
        format!("branches = [{{ path = {any:?}, glob = true }}]\n")
    });
    let before = fs::read_to_string(&file).unwrap();
    let a = branch(&pool, 0);
    let live = get(&pool, "branches");
    let removed = strandfs(["branch", "remove", root(&pool), &a, "--save"]);
    refused(removed, "would come back at the next mount");
    let set = ["branch", "set", root(&pool), &a, "--mode", "RO", "--save"];
    refused(strandfs(set), "stands for");
    let option = format!("branches=-{a}");
    refused(
        strandfs(["set", root(&pool), &option, "--save"]),
        "wildcards",
    );
    assert_eq!(get(&pool, "branches"), live);
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    strandfs(["umount", root(&pool)]).ok();
    let mount = ["mount", "-o", "cache.attr=1", text(&file), root(&pool)];
    strandfs(mount).ok();
    let said = strandfs(["set", root(&pool), "cache.attr=5m", "--save"]);
    assert_eq!(said.code(), 3, "{said:?}");
    assert!(said.stderr.contains("the command line"), "{said:?}");
    strandfs(["umount", root(&pool)]).ok();
}

/// `--save` was refused for every pool whose file has a wildcard.
#[test]
fn a_saved_change_beside_a_wildcard_leaves_the_wildcard_as_it_is() {
    let (pool, _daemons, file) = from_file(|pool| {
        let any = branch(pool, 0).replace("b0", "b[01]");
        format!("branches = [{{ path = {any:?}, glob = true }}] # disks\n")
    });
    let [a, b, c] = [0, 1, 2].map(|number| branch(&pool, number));
    let read = || fs::read_to_string(&file).unwrap();
    let before = read();
    let save = |words: &[&str]| {
        strandfs([&words[..2], &[root(&pool)], &words[2..], &["--save"]].concat()).ok();
    };
    save(&["branch", "add", &c]);
    let with = before.replace("] #", &format!(", {c:?}] #"));
    assert_eq!(read(), with);
    save(&["branch", "set", &c, "--mode", "NC"]);
    assert!(read().contains("glob = true }, { path ="), "{}", read());
    save(&["branch", "remove", &c]);
    assert_eq!(read(), before);
    // What the wildcard stands for needs no name of its own.
    strandfs(["branch", "remove", root(&pool), &b]).ok();
    save(&["branch", "add", &b]);
    assert_eq!(read(), before);
    let option = format!("branches=+{c}");
    strandfs(["set", root(&pool), &option, "--save"]).ok();
    assert!(read().contains("glob = true }, "), "{}", read());
    strandfs(["reload", root(&pool)]).ok();
    assert_eq!(get(&pool, "branches"), format!("{a}=RW:{b}=RW:{c}=RW"));
    strandfs(["umount", root(&pool)]).ok();
}

/// A file that an access list lets an administrator's group read was closed to it, and one with a label of
/// its own had another.
#[test]
fn a_saved_file_keeps_owner_mode_access_list_attributes_and_link() {
    need_root!();
    need_tool!("setfacl", "getfacl", "setfattr", "getfattr");
    let (pool, _daemons, file) = from_file(of_two);
    let real = pool.outside("real.toml");
    fs::rename(&file, &real).unwrap();
    std::os::unix::fs::symlink("real.toml", &file).unwrap();
    std::os::unix::fs::chown(&real, Some(1234), Some(4321)).unwrap();
    let path = text(&real);
    run("chmod", ["640", path]).ok();
    run("setfacl", ["-m", "u:4242:r,g:99:rw", path]).ok();
    run("setfattr", ["-n", "user.note", "-v", "mine", path]).ok();
    run("setfattr", ["-n", "trusted.note", "-v", "root's", path]).ok();
    let state = || {
        let list = run("getfacl", ["-n", "-p", path]).ok().stdout;
        let attributes = run("getfattr", ["-d", "-m", "-", "-e", "hex", path]).ok();
        (list, attributes.stdout)
    };
    let before = state();
    assert!(before.1.contains("user.note") && before.0.contains("user:4242:r"));
    strandfs(["set", root(&pool), "cache.attr=23s", "--save"]).ok();
    assert!(fs::read_to_string(&real).unwrap().contains("23s"));
    assert_eq!(state(), before);
    assert_eq!(fs::read_link(&file).unwrap().to_str(), Some("real.toml"));
    strandfs(["umount", root(&pool)]).ok();
}

/// What they wrote after the branch was copied was lost with it.
#[test]
fn writers_are_named_when_their_branch_becomes_read_only_or_leaves() {
    let (pool, _daemons, _) = from_file(of_two);
    let [a, b] = [0, 1].map(|number| branch(&pool, number));
    let read_only = |path: &str| {
        let set = ["branch", "set", root(&pool), path, "--mode", "RO"];
        strandfs(set).ok().stderr
    };
    put(pool.on(0, "journal"), "");
    let open = || fs::File::options().append(true).open(pool.path("journal"));
    let (first, second) = (open().unwrap(), open().unwrap());
    let reader = fs::File::open(pool.path("journal")).unwrap();
    let said = read_only(&a);
    assert!(
        said.contains("2 files are still open for writing"),
        "{said}"
    );
    assert_eq!(read_only(&b), "");
    drop(second);
    eventually("one is closed", LIMIT, || {
        read_only(&a).contains("1 file is still open")
    });
    let said = strandfs(["branch", "remove", root(&pool), &a]).ok().stderr;
    assert!(said.contains("1 file is still open for writing"), "{said}");
    drop((first, reader));
    strandfs(["umount", root(&pool)]).ok();
}

/// A reload would have dropped the branch, and nothing would have been missing any more.
#[test]
fn a_reload_keeps_a_branch_that_is_away_and_names_one_that_leaves() {
    let pool = Pool::tmpfs(1).prepare();
    let _daemons = Daemons::at(pool.root());
    for name in ["disks/d1", "disks/d2", "other"] {
        fs::create_dir_all(pool.outside(name)).unwrap();
    }
    put(pool.outside("disks/d2/film"), "film");
    let (file, other) = (pool.outside("pool.toml"), pool.outside("other"));
    let (all, other) = (pool.outside("disks/d*"), text(&other).to_owned());
    let write = |more: &str| {
        let text = format!("branches = [{{ path = {all:?}, glob = true }}{more}]\n");
        fs::write(&file, text).unwrap();
    };
    write(&format!(", {other:?}"));
    strandfs(["mount", text(&file), root(&pool)]).ok();
    let before = get(&pool, "branches");
    fs::rename(pool.outside("disks/d2"), pool.outside("away")).unwrap();
    fs::rename(pool.outside("other"), pool.outside("away2")).unwrap();
    strandfs(["reload", root(&pool)]).ok();
    assert_eq!(get(&pool, "branches"), before);
    eventually("they are missing", LIMIT, || {
        strandfs(["status", root(&pool)]).code() == 3
    });
    strandfs(["reload", root(&pool)]).ok();
    assert_eq!(get(&pool, "branches"), before);
    let listed: std::io::Result<Vec<_>> = fs::read_dir(pool.root()).and_then(Iterator::collect);
    assert!(listed.is_err(), "what is missing is not gone: {listed:?}");
    fs::rename(pool.outside("away"), pool.outside("disks/d2")).unwrap();
    eventually("it is back", LIMIT, || {
        fs::read(pool.path("film")).is_ok() || !get(&pool, "branches").contains("d2")
    });
    write("");
    let said = strandfs(["reload", root(&pool)]).ok();
    assert!(said.stderr.contains(&other), "{said:?}");
    assert!(!get(&pool, "branches").contains(&other));
    strandfs(["umount", root(&pool)]).ok();
}

/// The socket of a pool.
fn connect(pool: &Pool) -> UnixStream {
    let name = get(pool, "socket");
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
}

/// What comes back for raw bytes.
fn answer(pool: &Pool, bytes: &[u8]) -> String {
    let mut stream = connect(pool);
    // Cut off in the middle of what it says, the sender gets an error: no matter.
    stream.write_all(bytes).ok();
    stream.shutdown(Shutdown::Write).ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    String::from_utf8(answer).unwrap()
}

#[test]
fn what_is_no_request_is_refused_and_does_no_harm() {
    let pool = Pool::tmpfs(1).mount();
    let deep = "[".repeat(30_000);
    for bytes in [
        &b""[..],
        b"\n",
        b"nonsense\n",
        b"{\"do\":\"destroy\"}\n",
        b"{\"do\":\"set\"}\n",
        b"{\"do\":\"set\",\"options\":[[\"cache.attr\",\"9\",\"9\"]]}\n",
        b"{\"do\":\"branch-add\",\"path\":\"\",\"first\":false}\n",
        b"{\"do\":\"branch-add\",\"path\":\"/../etc/../none\",\"first\":true}\n",
        b"\xff\xfe\x00\n",
        deep.as_bytes(),
    ] {
        let answer = answer(&pool, bytes);
        assert!(answer.contains("\"error\":\""), "{bytes:?}: {answer}");
    }
    answer(&pool, &vec![b'x'; 200_000]);
    // Connections that say nothing keep nobody else out for long.
    let silent: Vec<UnixStream> = (0..50).map(|_| connect(&pool)).collect();
    eventually("an answer", LIMIT, || {
        strandfs(["set", root(&pool), "cache.attr=3"])
            .status
            .success()
    });
    drop(silent);
    assert_eq!(get(&pool, "cache.attr"), "3s");
    assert_eq!(pool.status().branches.len(), 1);
}

#[test]
fn strangers_are_turned_away() {
    need_root!();
    need_tool!("setpriv");
    let pool = Pool::tmpfs(1).mount();
    // The program itself must be reachable for the stranger.
    let program = pool.outside("strandfs");
    fs::copy(crate::support::command::binary(), &program).unwrap();
    let stranger = [
        "--reuid=4242",
        "--regid=4242",
        "--clear-groups",
        text(&program),
    ];
    let change = ["set", root(&pool), "cache.attr=9"];
    let change = crate::support::run("setpriv", stranger.iter().chain(&change));
    assert_eq!(change.code(), 8, "{change:?}");
    assert!(
        change
            .stderr
            .contains("only root and the user who mounted it"),
        "{change:?}"
    );
    let look = ["get", root(&pool), "cache.attr"];
    let look = crate::support::run("setpriv", stranger.iter().chain(&look));
    assert_eq!(look.ok().stdout, "auto\n");
}

#[test]
fn a_pool_without_attributes_is_still_controlled() {
    let pool = Pool::tmpfs(1).option("xattr=nosys").mount();
    strandfs(["set", root(&pool), "category.create=erofs"]).ok();
    let made = fs::File::create(pool.path("f"));
    assert_eq!(
        rustix::io::Errno::from_io_error(&made.unwrap_err()),
        Some(rustix::io::Errno::ROFS)
    );
}

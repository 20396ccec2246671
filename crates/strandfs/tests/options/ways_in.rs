//! The ways in without mount(8): configuration files, the form of mergerfs, translation, users.

use crate::{need_root, need_tool};
use std::fs;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::answers::Configuration;
use crate::support::command::binary;
use crate::support::files::{get, put};
use crate::support::system::{Daemons, System, program};
use crate::support::{Pool, Run, mounts, run, strandfs};
use rustix::fs::inotify;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn depth(mountpoint: &Path) -> usize {
    let list = mounts::list();
    list.iter()
        .filter(|(path, _, _)| path == mountpoint)
        .count()
}

/// Every file below a directory, without the directory's own name.
fn files_below(dir: &Path) -> Vec<String> {
    let found = run("find", [text(dir), "-not", "-type", "d", "-printf", "%P\n"]).ok();
    let mut names: Vec<String> = found.stdout.lines().map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn what_is_installed_mounts_and_is_uninstalled() {
    let pool = Pool::tmpfs(1).prepare();
    let dest = pool.outside("dest");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let binary = format!("BINARY={}", program(&pool).display());
    let dest_word = format!("DESTDIR={}", dest.display());
    let install = |extra: &[&str]| {
        let words = [
            &binary,
            &dest_word,
            "PRELOAD=/none",
            "PREFIX=/usr",
            text(&script),
        ];
        run("env", [&words, extra].concat()).ok()
    };
    install(&[]);
    let files = files_below(&dest);
    for name in [
        "sbin/mount.fuse.strandfs",
        "sbin/mount.strandfs",
        "usr/bin/strandfs",
        "usr/share/bash-completion/completions/strandfs",
        "usr/share/man/man1/strandfs.1",
        "usr/share/man/man1/strandfs-mount.1",
        "usr/lib/systemd/system/strandfs@.service",
        "usr/share/doc/strandfs/examples/strandfs-uring.conf",
        "etc/strandfs/example.toml.sample",
    ] {
        assert!(
            files.iter().any(|found| found == name),
            "{name} in {files:?}"
        );
    }
    let link = fs::read_link(dest.join("sbin/mount.strandfs")).unwrap();
    assert_eq!(link, Path::new("/usr/bin/strandfs"));
    let version = run(text(&dest.join("usr/bin/strandfs")), ["--version"]).ok();
    assert!(version.stdout.starts_with("strandfs "), "{version:?}");
    // Over an installed one, and what is not ours stays.
    put(dest.join("usr/bin/other"), "");
    install(&[]);
    install(&["--uninstall"]);
    assert_eq!(files_below(&dest), ["usr/bin/other"]);
}

/// A file beside the branches; `@` in the text stands for their directory.
fn file(pool: &Pool, name: &str, text: &str) -> PathBuf {
    let path = pool.outside(name);
    let house = pool.outside("");
    let house = house.to_str().unwrap().trim_end_matches('/');
    fs::write(&path, text.replace('@', house)).unwrap();
    path
}

#[test]
fn options_come_from_the_file_that_config_names() {
    let mut pool = Pool::tmpfs(2).prepare();
    file(
        &pool,
        "more.conf",
        "# of mergerfs\ncache.entry = 8\ncategory.create=ff\n",
    );
    let toml = file(
        &pool,
        "pool.toml",
        "config = 'more.conf'\n[func]\nmkdir = 'all'\n[category]\ncreate = 'mfs'\n[cache]\nattr = 7\n",
    );
    pool.add_option(&format!("cache.attr=9,config={}", toml.display()));
    pool.start();
    let status = pool.status();
    let shown = |name: &str| {
        let value = status.options[name].clone();
        let origin = &status.origins[name];
        (value, origin.rsplit('/').next().unwrap().to_owned())
    };
    let pair = |value: &str, origin: &str| (value.to_owned(), origin.to_owned());
    assert_eq!(shown("cache.attr"), pair("9s", "command-line"));
    assert_eq!(shown("cache.entry"), pair("8s", "more.conf:2"));
    assert_eq!(shown("func.create"), pair("mfs", "pool.toml:5"));
    assert_eq!(shown("func.mkdir"), pair("all", "pool.toml:3"));
    assert_eq!(shown("cache.files"), pair("off", "default"));
    // Its effect: the directory is made everywhere.
    fs::create_dir(pool.path("d")).unwrap();
    assert_eq!(pool.holders("d"), [0, 1]);
}

/// How often a file has been opened since the last question.
struct Opened {
    notices: OwnedFd,
}

impl Opened {
    fn of(path: &Path) -> Opened {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let notices = inotify::init(flags).unwrap();
        // Successive notices that are alike become one.
        let each = inotify::WatchFlags::OPEN | inotify::WatchFlags::CLOSE;
        inotify::add_watch(&notices, path, each).unwrap();
        Opened { notices }
    }

    fn count(&self) -> usize {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut notices = inotify::Reader::new(&self.notices, &mut space);
        let events = std::iter::from_fn(|| notices.next().ok().map(|notice| notice.events()));
        events
            .filter(|events| events.contains(inotify::ReadFlags::OPEN))
            .count()
    }
}

/// Read again, the file could say something else: what was found right is not what would be served.
#[test]
fn a_configuration_is_read_once_for_a_mount_in_the_background() {
    let pool = Pool::tmpfs(2).prepare();
    let toml = file(
        &pool,
        "pool.toml",
        "branches = ['@/b0', '@/b1']\nmountpoint = '@/pool'\nminfreespace = 0\n[cache]\nattr = 7\n",
    );
    let opened = Opened::of(&toml);
    let _daemons = Daemons::at(pool.root());
    strandfs(["mount", text(&toml)]).ok();
    assert_eq!(opened.count(), 1);
    let status = pool.status();
    assert_eq!(status.options["cache.attr"], "7s");
    assert_eq!(status.origins["cache.attr"], format!("{}:5", text(&toml)));
    // What it was mounted from is known still.
    file(
        &pool,
        "pool.toml",
        "branches = ['@/b0', '@/b1']\nmountpoint = '@/pool'\nminfreespace = 0\n[cache]\nattr = 8\n",
    );
    strandfs(["reload", text(pool.root())]).ok();
    assert_eq!(pool.status().options["cache.attr"], "8s");
}

#[test]
fn the_plan_of_a_mount_is_none_of_the_servers_input() {
    let pool = Pool::tmpfs(1).prepare();
    let _daemons = Daemons::at(pool.root());
    strandfs(pool.mount_args(&[])).ok();
    let server = pool.status().pid;
    for number in 0..=2 {
        let stream = fs::read_link(format!("/proc/{server}/fd/{number}")).unwrap();
        assert_eq!(stream, Path::new("/dev/null"), "{number}");
    }
    let mut child = Command::new(binary())
        .args(["mount", "--background-server", "--", text(pool.root())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"{}").unwrap();
    let refused = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("the plan of the mount"), "{said}");
}

#[test]
fn a_file_names_branches_and_mountpoint() {
    let pool = Pool::tmpfs(3).prepare();
    fs::create_dir(pool.on(0, "a:b,c=RO *")).unwrap();
    let toml = file(
        &pool,
        "pool.toml",
        "branches = ['@/b0/a:b,c=RO *', { path = '@/b[1]', glob = true, mode = 'nc' }]\n\
         mountpoint = '@/pool'\nminfreespace = 0\n",
    );
    let _daemons = Daemons::at(pool.root());
    strandfs(["mount", text(&toml)]).ok();
    put(pool.path("f"), "x");
    assert!(pool.on(0, "a:b,c=RO */f").exists());
    let status = pool.status();
    assert_eq!(
        status.branches[1].path,
        text(&pool.on(1, "")).trim_end_matches('/')
    );
    assert_eq!(status.branches[1].mode, "NC");
    // What is shown is a file again.
    let shown = strandfs(["config", "show", text(pool.root())]).ok();
    let again = pool.outside("again.toml");
    fs::write(&again, &shown.stdout).unwrap();
    strandfs(["config", "check", text(&again)]).ok();
    strandfs(["umount", text(pool.root())]).ok();
    // Arguments behind the file replace its branches and its mountpoint.
    let other = pool.outside("other");
    fs::create_dir(&other).unwrap();
    let _others = Daemons::at(&other);
    strandfs(["mount", text(&again), text(&pool.on(2, "")), text(&other)]).ok();
    assert_eq!(depth(pool.root()), 0);
    put(other.join("g"), "x");
    assert_eq!(pool.holders("g"), [2]);
}

#[test]
fn a_wrong_file_is_refused_with_a_sentence_for_each_error() {
    let pool = Pool::tmpfs(1).prepare();
    let toml = file(
        &pool,
        "pool.toml",
        "branches = ['@/b0', '@/none']\n[cache]\natr = 1\nfiles = 'sometimes'\n",
    );
    let check = strandfs(["config", "check", text(&toml)]);
    assert_eq!(check.code(), 2, "{check:?}");
    let lines: Vec<&str> = check.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{check:?}");
    assert_eq!(
        lines[1],
        format!(
            "strandfs: {}:3: unknown option \"cache.atr\": did you mean cache.attr?",
            toml.display()
        )
    );
    let toml = file(
        &pool,
        "pool.toml",
        "branches = ['@/b0', '@/none']\n[cache]\nfiles = 'sometimes'\n",
    );
    let mounted = strandfs(["mount", text(&toml), text(pool.root())]);
    assert_eq!((mounted.code(), depth(pool.root())), (2, 0), "{mounted:?}");
    assert_eq!(mounted.stderr.lines().count(), 2, "{mounted:?}");
    for (number, part) in [
        (1, "/none\" does not exist"),
        (3, "cache.files does not take"),
    ] {
        let line = format!("{}:{number}: ", toml.display());
        let found = mounted
            .stderr
            .lines()
            .any(|said| said.contains(&line) && said.contains(part));
        assert!(found, "{part}: {mounted:?}");
    }
    let good = file(&pool, "good.toml", "branches = ['@/b0']\nuse_ino = true\n");
    let check = strandfs(["config", "check", text(&good)]).ok();
    assert!(check.stdout.contains("good.toml: correct"), "{check:?}");
    assert!(check.stderr.contains("use_ino"), "{check:?}");
    let nothing = strandfs(["mount", "media-of-nobody", text(pool.root())]);
    assert_eq!(nothing.code(), 2, "{nothing:?}");
    assert!(
        nothing
            .stderr
            .contains("/etc/strandfs/media-of-nobody.toml"),
        "{nothing:?}"
    );
}

#[test]
fn config_show_names_values_and_their_origins() {
    let pool = Pool::tmpfs(1).prepare();
    let toml = file(
        &pool,
        "pool.toml",
        "branches = ['@/b0']\nminfreespace = '1G'\n",
    );
    let show = |args: &[&str]| strandfs([&["config", "show", text(&toml)], args].concat()).ok();
    let plain = show(&[]).stdout;
    assert!(
        plain.contains("minfreespace = \"1G\"\n") && !plain.contains("cache"),
        "{plain}"
    );
    let all = show(&["--all", "--origin"]).stdout;
    assert!(
        all.contains("\"cache.attr\" = \"auto\"  # default\n"),
        "{all}"
    );
    assert!(
        all.contains(&format!("minfreespace = \"1G\"  # {}:2\n", toml.display())),
        "{all}"
    );
    let json: Vec<Configuration> = serde_json::from_str(&show(&["--json"]).stdout).unwrap();
    let options = &json[0].options;
    assert_eq!(options["cache.attr"].origin, "default");
    assert_eq!(options["minfreespace"].value, "1G");
    let none = strandfs(["config", "show", text(&pool.on(0, ""))]);
    assert_eq!(none.code(), 5, "{none:?}");
}

#[test]
fn a_command_line_of_mergerfs_mounts() {
    let pool = Pool::tmpfs(2).prepare();
    let _daemons = Daemons::at(pool.root());
    let joined = pool.branch_args().join(":");
    strandfs([
        "-o",
        "minfreespace=0,category.create=ff",
        &joined,
        text(pool.root()),
    ])
    .ok();
    put(pool.path("f"), "x");
    assert_eq!(pool.holders("f"), [0]);
    strandfs(["umount", text(pool.root())]).ok();
    // As mount.fuse3 puts it.
    strandfs([&joined, text(pool.root()), "-o", "rw,minfreespace=0"]).ok();
    assert_eq!(depth(pool.root()), 1);
    strandfs(["umount", text(pool.root())]).ok();
    strandfs(["mount", "-r", &joined, text(pool.root())]).ok();
    assert!(fs::write(pool.path("g"), "x").is_err());
}

#[test]
fn a_second_mount_is_refused_unless_asked_for() {
    let pool = Pool::tmpfs(2).prepare();
    let _daemons = Daemons::at(pool.root());
    let (first, second) = (pool.on(0, ""), pool.on(1, ""));
    let (first, second, root) = (text(&first), text(&second), text(pool.root()));
    strandfs(["mount", "-o", "minfreespace=0", first, root]).ok();
    put(pool.path("f"), "first");
    let open = fs::File::open(pool.path("f")).unwrap();
    for branch in [first, second] {
        let refused = strandfs(["mount", branch, root]);
        assert_eq!((refused.code(), depth(pool.root())), (6, 1), "{refused:?}");
        assert!(
            refused.stderr.contains("mount-over"),
            "the way out: {refused:?}"
        );
    }
    strandfs(["mount", "-o", "mount-over,minfreespace=0", second, root]).ok();
    assert_eq!(depth(pool.root()), 2);
    put(pool.path("g"), "second");
    assert_eq!((pool.holders("f"), pool.holders("g")), (vec![0], vec![1]));
    assert!(!pool.path("f").exists());
    assert_eq!(crate::support::files::read_all(&open).unwrap(), b"first");
    drop(open);
    strandfs(["umount", root]).ok();
    assert_eq!(get(pool.path("f")), b"first");
}

#[test]
fn of_two_mounts_at_once_one_is_refused() {
    let pool = Pool::tmpfs(2).prepare();
    let root = text(pool.root()).to_owned();
    for _ in 0..3 {
        let _daemons = Daemons::at(pool.root());
        let mounts: Vec<_> = (0..2)
            .map(|branch| {
                let mut command = std::process::Command::new(crate::support::command::binary());
                command.args(["mount", text(&pool.on(branch, "")), &root]);
                // Files would do for output, but nobody reads it.
                let null = std::process::Stdio::null;
                command.stdin(null()).stdout(null()).stderr(null());
                command.spawn().unwrap()
            })
            .collect();
        let codes = mounts
            .into_iter()
            .map(|mut mount| mount.wait().unwrap().code());
        let mut codes: Vec<_> = codes.collect();
        codes.sort_unstable();
        assert_eq!((codes, depth(pool.root())), (vec![Some(0), Some(6)], 1));
    }
}

#[test]
fn lines_and_files_of_mergerfs_are_translated() {
    let pool = Pool::tmpfs(1).prepare();
    let line = "/a:/b=RO /pool fuse.mergerfs cache.files=off,use_ino,posix_acl=true,nofail 0 0";
    let import = |args: &[&str]| strandfs([&["import-fstab"], args].concat());
    let run = import(&[line]).ok();
    assert_eq!(
        run.stdout,
        "/a:/b=RO  /pool  strandfs  cache.files=off,posix-acl=true,nofail  0 0\n"
    );
    for part in ["use_ino: left out", "minfreespace: is 4G/5%"] {
        assert!(run.stderr.contains(part), "{part}: {run:?}");
    }
    let fstab = file(
        &pool,
        "fstab",
        &format!("/dev/sda1 / ext4 ro 0 1\n# {line}\n{line}\n"),
    );
    let run = import(&["--toml", "--exact", "--file", text(&fstab)]).ok();
    assert!(
        run.stdout
            .starts_with("# /etc/strandfs/pool.toml, for this line"),
        "{run:?}"
    );
    assert!(
        run.stdout
            .contains("# pool  /pool  strandfs  nofail  0 0\n"),
        "{run:?}"
    );
    assert!(run.stdout.contains("minfreespace = \"4G\"\n"), "{run:?}");
    let old = file(
        &pool,
        "old.conf",
        "branches=@/b0\nminfreespace=1M\nnonsense=1\n",
    );
    let run = import(&["--file", text(&old)]);
    assert_eq!(run.code(), 3, "something is left out: {run:?}");
    assert!(run.stderr.contains("nonsense: left out"), "{run:?}");
    let new = pool.outside("new.toml");
    fs::write(&new, run.stdout).unwrap();
    strandfs(["config", "check", text(&new)]).ok();
    let other = file(&pool, "other", "/dev/sda1 / ext4 ro 0 1\n");
    assert_eq!(import(&["--file", text(&other)]).code(), 2);
    assert_eq!(import(&["/a /pool ext4 ro 0 0"]).code(), 2);
}

/// Runs a program as nobody, with as little around it as a mount helper may find.
fn as_nobody(args: &[&str]) -> Run {
    let user = [
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "env",
        "-i",
    ];
    run("setpriv", [&user, args].concat())
}

#[test]
fn users_mount_over_their_own_directories() {
    need_root!();
    need_tool!("setpriv", "fusermount3");
    let pool = Pool::build()
        .branch(crate::support::Kind::Dir, "")
        .prepare();
    let (branch, root) = (pool.on(0, ""), pool.root());
    let line = format!(
        "{} {} strandfs user,minfreespace=0 0 0\n",
        branch.display(),
        root.display()
    );
    let mut system = System::new(&pool, &line);
    system.open_device();
    let _daemons = Daemons::at(root);
    chown(root, Some(65534), Some(65534)).unwrap();
    chown(&branch, Some(65534), Some(65534)).unwrap();
    let program = program(&pool);
    let mounted = as_nobody(&[
        text(&program),
        "mount",
        "-o",
        "minfreespace=0",
        text(&branch),
        text(root),
    ]);
    let mounted = mounted.ok();
    // Without a system log the server's own lines come too.
    let told = mounted
        .stderr
        .lines()
        .filter(|line| line.starts_with("strandfs: "));
    assert_eq!(told.count(), 1, "said once: {mounted:?}");
    assert!(
        mounted.stderr.contains("not by root: no passthrough"),
        "{mounted:?}"
    );
    assert_eq!(depth(root), 1);
    as_nobody(&["sh", "-c", &format!("echo hello > {}/f", root.display())]).ok();
    let made = fs::metadata(pool.on(0, "f")).unwrap();
    assert_eq!((made.uid(), made.len()), (65534, 6));
    // Not even root sees into it, unless it is asked to let others in.
    assert!(fs::metadata(pool.path("f")).is_err());
    as_nobody(&[text(&program), "umount", text(root)]).ok();
    assert_eq!(depth(root), 0);
    // Through fstab, as far as it lets users.
    as_nobody(&["/usr/bin/mount", text(root)]).ok();
    assert_eq!(depth(root), 1);
    let kind = mounts::list()
        .into_iter()
        .find(|(path, _, _)| path == root)
        .unwrap()
        .1;
    assert_eq!(kind, "fuse.strandfs");
    as_nobody(&["fusermount3", "-u", text(root)]).ok();
    // Somebody else's directory is refused in words.
    chown(root, Some(0), Some(0)).unwrap();
    let refused = as_nobody(&[text(&program), "mount", text(&branch), text(root)]);
    assert_eq!((refused.code(), depth(root)), (8, 0), "{refused:?}");
}

//! What the command says when something is not as it was meant: what happened, and what to do.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::command::{Run, binary};
use crate::support::files::{names, put};
use crate::support::system::Daemons;
use crate::support::{Kind, Pool, mounts, run, strandfs};
use crate::{need_root, need_tool};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Two plain directories with a file each, and an empty one to mount on.
fn plain() -> (Pool, PathBuf, PathBuf) {
    let pool = Pool::build().branches([Kind::Dir, Kind::Dir]).prepare();
    let (first, second) = (pool.on(0, ""), pool.on(1, ""));
    put(first.join("one"), "1");
    put(second.join("two"), "2");
    let real = |path: PathBuf| path.canonicalize().unwrap();
    (pool, real(first), real(second))
}

/// A refusal with this exit code that says all of this.
#[track_caller]
fn refused(run: &Run, code: i32, parts: &[&str]) {
    assert_eq!((run.code(), run.stdout.as_str()), (code, ""), "{run:?}");
    for part in parts {
        assert!(run.stderr.contains(part), "{part}: {run:?}");
    }
}

#[test]
fn a_mount_with_its_words_in_the_wrong_order_is_refused() {
    let (pool, first, second) = plain();
    let root = pool.root();
    let words = [text(root), text(&first), text(&second)];
    let mount = |options: &[&str]| strandfs([&["mount"], options, &words].concat());
    let right = format!("strandfs mount {} {} {}", words[1], words[2], words[0]);
    refused(&mount(&[]), 2, &[&right, "nonempty"]);
    assert!(!mounts::is_mounted(&second));
    assert_eq!(names(&second), ["two"]);
    let one = strandfs(["mount", text(root), text(&first)]);
    refused(&one, 2, &["the mountpoint comes last"]);
    let _daemons = Daemons::at(&second);
    let meant = mount(&["-o", "nonempty,minfreespace=0"]).ok();
    assert!(!meant.stderr.contains("not empty"), "{meant:?}");
    assert!(mounts::is_mounted(&second));
}

#[test]
fn a_disk_with_files_is_not_hidden_by_a_pool() {
    need_root!();
    let pool = Pool::tmpfs(2).prepare();
    put(pool.on(0, "one"), "1");
    put(pool.on(1, "two"), "2");
    let (first, second) = (pool.on(0, ""), pool.on(1, ""));
    let forgotten = strandfs(["mount", text(&first), text(&second)]);
    refused(&forgotten, 2, &["a filesystem with files is mounted there"]);
    assert_eq!(names(&second), ["two"]);
}

/// Whoever forgot the mountpoint behind two fresh disks had the pool mounted over the second one.
#[test]
fn a_disk_without_files_is_not_hidden_either() {
    need_root!();
    need_tool!("mkfs.ext4");
    let pool = Pool::tmpfs(1).prepare();
    let disk = pool.outside("disk");
    fs::create_dir(&disk).unwrap();
    mounts::make_branch(&disk, Kind::Loop("ext4", "16m"));
    let _daemons = Daemons::at(&disk);
    let first = pool.on(0, "");
    let mount = |options: &str| strandfs(["mount", "-o", options, text(&first), text(&disk)]);
    let forgotten = mount("minfreespace=0");
    refused(&forgotten, 2, &["/dev/loop", "the mountpoint comes last"]);
    // A container is handed a directory to mount on in this way.
    let (part, handed) = (disk.join("part"), pool.outside("handed"));
    for dir in [&part, &handed] {
        fs::create_dir(dir).unwrap();
    }
    run("mount", ["--bind", text(&part), text(&handed)]).ok();
    let _handed = Daemons::at(&handed);
    strandfs(["mount", "-o", "minfreespace=0", text(&first), text(&handed)]).ok();
    mounts::detach(&handed);
    fs::remove_dir(part).unwrap();
    mount("minfreespace=0,nonempty").ok();
}

/// The new disk's directory was added before the disk was mounted, and nothing was said.
#[test]
fn a_branch_without_its_disk_is_told_of_when_it_is_added() {
    need_root!();
    let mut bare = tempfile::Builder::new();
    let bare = bare.prefix("strandfs-test-").tempdir_in("/").unwrap();
    let pool = Pool::tmpfs(2).mount();
    let root = text(pool.root());
    let added = strandfs(["branch", "add", root, text(bare.path())]).ok();
    assert!(
        added.stderr.contains("lies on the root filesystem"),
        "{added:?}"
    );
    strandfs(["branch", "remove", root, text(bare.path())]).ok();
    let disk = pool.outside("disk");
    fs::create_dir(&disk).unwrap();
    mounts::make_branch(&disk, Kind::Tmpfs("1m"));
    let added = strandfs(["branch", "add", root, text(&disk)]).ok();
    assert_eq!(added.stderr, "");
}

#[test]
fn one_word_is_taken_for_what_it_can_be() {
    let (pool, first, _) = plain();
    let mount = |words: &[&str]| strandfs([&["mount"], words].concat());
    let file = "/etc/strandfs/pool-of-nobody.toml";
    refused(&mount(&["pool-of-nobody"]), 2, &[file]);
    let none = pool.outside("none.toml");
    let said = format!("there is no file {}", none.display());
    refused(&mount(&[text(&none)]), 2, &[&said]);
    refused(&mount(&[text(&none), text(pool.root())]), 2, &[&said]);
    let half = format!("only {} is named", first.display());
    refused(&mount(&[text(&first)]), 2, &[&half, "then the mountpoint"]);
    let commas = format!("{},{}", first.display(), pool.on(1, "").display());
    let colon = commas.replace(',', ":");
    refused(&mount(&[&commas, text(pool.root())]), 2, &[&colon]);
}

#[test]
fn a_mount_that_worked_says_so_in_a_line() {
    let pool = Pool::tmpfs(2).prepare();
    let _daemons = Daemons::at(pool.root());
    let (first, second) = (pool.on(0, ""), pool.on(1, ""));
    let root = pool.root();
    let mounted = strandfs([
        "mount",
        "-o",
        "minfreespace=0",
        text(&first),
        text(&second),
        text(root),
    ]);
    let said = format!(
        "mounted 2 branches on {0}; `strandfs status {0}` shows more\n",
        root.display()
    );
    assert_eq!(mounted.ok().stdout, said);
}

/// Nothing was said, and the first new file met "Read-only file system".
#[test]
fn a_pool_that_takes_nothing_new_says_so_when_it_is_mounted() {
    let warning = "nothing new can be made in the pool";
    let said = |suffixes: [&str; 2], options: &str| {
        let pool = Pool::tmpfs(2).prepare();
        let _daemons = Daemons::at(pool.root());
        let [first, second] =
            [0, 1].map(|at| format!("{}{}", text(&pool.on(at, "")), suffixes[at]));
        let root = text(pool.root());
        let options = format!("minfreespace=0{options}");
        let said = strandfs(["mount", "-o", &options, &first, &second, root]).ok();
        let doctor = strandfs(["doctor", root]);
        (said.stderr.matches(warning).count(), doctor.stdout)
    };
    for suffixes in [["=NC", "=NC"], ["=RO", "=RO"], ["=RO", "=NC"]] {
        let (count, doctor) = said(suffixes, "");
        assert_eq!(count, 1, "{suffixes:?}");
        assert!(doctor.contains("--mode RW"), "{suffixes:?}: {doctor}");
    }
    for (suffixes, options) in [(["=NC", ""], ""), (["=RO", "=RO"], ",ro")] {
        assert_eq!(said(suffixes, options).0, 0, "{suffixes:?} {options}");
    }
}

#[test]
fn keys_and_values_are_one_word() {
    let pool = Pool::tmpfs(1).mount();
    let root = text(pool.root());
    let apart = strandfs(["set", root, "minfreespace", "1M"]);
    refused(&apart, 2, &["KEY=VALUE", "minfreespace=1M"]);
    let wrong = strandfs(["get", root, "minfreespace=1M"]);
    refused(&wrong, 2, &["strandfs set"]);
    let slip = strandfs(["set", root, "category.create=msf"]);
    refused(&slip, 2, &["did you mean mfs?"]);
}

#[test]
fn changes_of_branches_say_what_becomes_of_files() {
    let pool = Pool::tmpfs(2).mount();
    put(pool.on(1, "kept"), "x");
    fs::create_dir(pool.on(0, "inner")).unwrap();
    let root = text(pool.root());
    let inner = pool.on(0, "inner");
    let added = strandfs(["branch", "add", root, text(&inner)]).ok();
    assert!(added.stderr.contains("lies inside branch"), "{added:?}");
    // Empty, so there is nothing to say.
    let empty = strandfs(["branch", "remove", root, text(&inner)]).ok();
    assert_eq!(empty.stderr, "");
    let full = pool.on(1, "");
    let removed = strandfs(["branch", "remove", root, text(&full)]).ok();
    for part in ["still holds files", "branch add"] {
        assert!(removed.stderr.contains(part), "{removed:?}");
    }
    assert_eq!(names(pool.on(1, "")), ["kept"]);
}

#[test]
fn everything_wrong_with_a_file_is_said_at_once() {
    let (pool, first, _) = plain();
    let file = pool.outside("many.toml");
    let branches = format!("branches = [\"{}\"]\n", first.display());
    let wrong = "nonsense = 1\ncache.attr = \"1x\"\ncategroy.create = \"mfs\"\nstatfs = \"bsae\"\n";
    fs::write(&file, format!("{branches}{wrong}")).unwrap();
    let checked = strandfs(["config", "check", text(&file)]);
    let lines: Vec<&str> = checked.stderr.lines().collect();
    assert_eq!((checked.code(), lines.len()), (2, 4), "{checked:?}");
    for (line, part) in lines.iter().zip([
        ":2: unknown option \"nonsense\"",
        ":3: option cache.attr",
        ":4: unknown option \"categroy.create\": did you mean category.create?",
        ":5: option statfs does not take \"bsae\": did you mean base?",
    ]) {
        assert!(line.contains(part), "{part}: {checked:?}");
    }
    let mounted = strandfs(["mount", text(&file), text(pool.root())]);
    assert_eq!((mounted.code(), mounted.stderr), (2, checked.stderr));
}

#[test]
fn lines_of_fstab_are_named_and_each_becomes_a_file() {
    let (pool, ..) = plain();
    let fstab = pool.outside("fstab");
    let lines = "/dev/sda1 / ext4 ro 0 1\n\
        /a:/b /mnt/media fuse.mergerfs use_ino 0 0\n\
        /c:/d /srv/media mergerfs nonsense=1,nofail 0 0\n";
    fs::write(&fstab, lines).unwrap();
    let import = |args: &[&str]| {
        let all = [&["import-fstab", "--file", text(&fstab)], args].concat();
        strandfs(all)
    };
    let place = |line: u32| format!("strandfs: {}:{line}: ", fstab.display());
    let translated = import(&[]);
    assert_eq!(translated.code(), 3, "{translated:?}");
    for part in [
        format!("{}use_ino: left out", place(2)),
        format!("{}nonsense: left out", place(3)),
    ] {
        assert!(translated.stderr.contains(&part), "{part}: {translated:?}");
    }
    refused(&import(&["--toml"]), 2, &["2 pools", "--dir"]);
    let dir = pool.outside("made");
    fs::create_dir(&dir).unwrap();
    let made = import(&["--toml", "--dir", text(&dir)]);
    assert_eq!(made.code(), 3, "{made:?}");
    assert_eq!(names(&dir), ["media-2.toml", "media.toml"]);
    assert_eq!(
        made.stdout,
        "media  /mnt/media  strandfs  defaults  0 0\nmedia-2  /srv/media  strandfs  nofail  0 0\n"
    );
    let again = import(&["--dir", text(&dir)]);
    refused(&again, 2, &["not written over"]);
    fs::write(&fstab, format!("{lines}/x /y\n")).unwrap();
    let fourth = format!("{}:4 cannot be translated", fstab.display());
    refused(&import(&[]), 2, &[&fourth, "no line of fstab"]);
}

/// Runs the command with a terminal of so many columns for everything it writes.
fn on_terminal(columns: u16, environment: &str, args: &[&str]) -> String {
    let words: Vec<String> = args.iter().map(|word| format!("'{word}'")).collect();
    let line = format!(
        "stty cols {columns} -onlcr; {environment} '{}' {}",
        binary().display(),
        words.join(" ")
    );
    run("script", ["-qc", &line, "/dev/null"]).stdout
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    need_tool!("script", "stty");
    let pool = Pool::tmpfs(1).mount();
    let narrow = 60;
    for args in [
        &["mount", "/nowhere-at-all", "/nowhere-else"][..],
        &["set", text(pool.root()), "category.create=msf"],
        &["doctor", text(pool.root())],
        &["status", text(pool.root())],
    ] {
        let said = on_terminal(narrow, "TERM=dumb", args);
        assert!(said.lines().count() > 1, "{args:?}: {said}");
        for line in said.lines() {
            let words = line.split_whitespace().count();
            assert!(
                line.chars().count() <= usize::from(narrow) || words == 1,
                "{args:?}: {line}"
            );
        }
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    need_tool!("script", "stty");
    let (_pool, first, _) = plain();
    let doctor = ["doctor", text(&first)];
    let bold = "\u{1b}[1m";
    let coloured = on_terminal(200, "TERM=xterm NO_COLOR=", &doctor);
    // What is wrong differs from machine to machine; something always passes.
    assert!(coloured.contains("\u{1b}[32mPASS\u{1b}[0m"), "{coloured:?}");
    for line in coloured.lines() {
        let word = line.trim_start_matches(bold);
        let is_bad = word.contains("WARN  ") || word.contains("FAIL  ");
        assert!(!is_bad || line.contains('\u{1b}'), "{line:?}");
    }
    for environment in ["TERM=xterm NO_COLOR=1", "TERM=dumb NO_COLOR="] {
        let plain = on_terminal(200, environment, &doctor);
        assert!(
            plain.contains("PASS") && !plain.contains('\u{1b}'),
            "{plain:?}"
        );
    }
    assert!(!strandfs(doctor).stdout.contains('\u{1b}'));
}

/// A server that could not mount ended while another thread wrote its log: a line was cut, came last, or
/// was lost.
#[test]
fn what_led_to_a_refusal_is_said_first_and_whole() {
    let (pool, first, second) = plain();
    put(first.join(".disk"), "");
    let paths = [text(&first), text(&second), text(pool.root())];
    let outputs = (0..100).map(|_| {
        let options = ["mount", "-o", "branch-marker=.disk"];
        strandfs([&options[..], &paths].concat()).stderr
    });
    let outputs: std::collections::BTreeSet<String> = outputs.collect();
    assert_eq!(outputs.len(), 1, "{outputs:?}");
    let last = outputs.iter().find_map(|said| said.lines().last());
    assert!(
        last.is_some_and(|line| line.starts_with("strandfs: ")),
        "{outputs:?}"
    );
}

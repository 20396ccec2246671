//! The book does what it says: every command of its pages is run, every file that it shows is written,
//! each page on a machine of its own, and what is printed is what the page shows.

mod machine;
mod page;

use std::fs;
use std::path::{Path, PathBuf};

use crate::need_root;
use crate::support::{command, say, strandfs};
use page::{Page, Step, is_as_shown};

fn source() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../book/src")
}

/// A program by its name, or anything by its path.
fn have(need: &str) -> bool {
    match need.starts_with('/') {
        true => Path::new(need).exists(),
        false => command::have(need),
    }
}

fn run_page(name: &str) {
    let text = fs::read_to_string(source().join(name)).unwrap();
    let page = Page::read(&text, have).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
    for (line, reason) in &page.left_out {
        say(&format!("not run: book/src/{name}, line {line}: {reason}"));
    }
    let outcome = machine::run_page(&page);
    outcome.unwrap_or_else(|wrong| panic!("book/src/{name}, {wrong}"));
}

/// A test for each page with something to run, and their list.
macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        const PAGES: &[&str] = &[$($page),*];

        $(#[test]
        fn $test() {
            need_root!();
            run_page($page);
        })*
    };
}

pages! {
    a_first_hour: "first-hour.md",
    coming_from_mergerfs: "from-mergerfs.md",
    disks_first: "recipes/at-boot.md",
    snapraid: "recipes/snapraid.md",
    a_media_server: "recipes/media-server.md",
    containers: "recipes/containers.md",
    samba: "recipes/samba.md",
    nfs: "recipes/nfs.md",
    backups: "recipes/backups.md",
    encrypted_disks: "recipes/encrypted.md",
    disks_of_different_sizes: "recipes/mixed-sizes.md",
    replacing_a_disk: "recipes/replace-disk.md",
    an_ssd_in_front: "recipes/ssd.md",
    troubleshooting: "troubleshooting.md",
    ways_to_mount: "docs/mounting.md",
    changing_a_mounted_pool: "docs/control.md",
    why_does_it_do_that: "docs/explain.md",
    volumes: "docs/volumes.md",
    metrics: "docs/metrics.md",
    exit_codes: "docs/exit-codes.md",
    notifications: "docs/notifications.md",
}

/// Every page that the book shows, those of `docs/` among them.
fn pages() -> Vec<String> {
    let summary = fs::read_to_string(source().join("SUMMARY.md")).unwrap();
    let links = summary.split("](").skip(1);
    links
        .map(|rest| rest.split(')').next().unwrap().to_owned())
        .collect()
}

#[test]
fn every_page_with_commands_is_run() {
    let mut left_out = Vec::new();
    for name in pages() {
        let text = fs::read_to_string(source().join(&name)).unwrap();
        let page = Page::read(&text, |_| true).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        let is_run = PAGES.contains(&name.as_str());
        let has_steps = !page.steps.is_empty();
        assert_eq!(
            has_steps, is_run,
            "{name}: pages with commands are named in `pages!`"
        );
        left_out.extend(page.left_out_commands);
    }
    assert!(left_out.len() > 20, "{left_out:?}");
    for command in left_out {
        if let Some(arguments) = command.strip_prefix("strandfs ") {
            is_understood(arguments);
        }
    }
}

/// A command that takes too long to be run has at least a name and options that there are.
fn is_understood(arguments: &str) {
    let words: Vec<&str> = arguments.split_whitespace().collect();
    let words = words.split(|word| *word == "#").next().unwrap();
    let is_name = |word: &&&str| {
        word.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    let mut command: Vec<&str> = words.iter().take_while(is_name).copied().collect();
    command.truncate(if words[0] == "bench" { 2 } else { 1 });
    command.push("--help");
    let help = strandfs(command).ok().stdout;
    for option in words.iter().filter(|word| word.starts_with("--")) {
        let name = option.split('=').next().unwrap();
        let is_there = help.split([' ', '\n', ',']).any(|word| word == name);
        assert!(is_there, "strandfs {arguments}: {name} is not in\n{help}");
    }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

#[test]
fn what_is_left_out_of_a_page_stands_for_anything() {
    let shown = lines("a\n…\nd … f\n…");
    assert!(is_as_shown(&shown, &["a", "d e f"]));
    assert!(is_as_shown(&shown, &["a", "b", "c", "d e f", "g"]));
    assert!(!is_as_shown(&shown, &["a", "b"]));
    assert!(!is_as_shown(&shown, &["x", "a", "d e f"]));
    assert!(is_as_shown(&lines("…b…d"), &["abcd"]));
    assert!(!is_as_shown(&lines("…b…d"), &["abdc"]));
    assert!(!is_as_shown(&lines("a…a"), &["a"]));
    assert!(!is_as_shown(&lines("a"), &["a", "b"]));
    assert!(is_as_shown(&[], &["whatever"]));
}

#[test]
fn a_page_is_read_as_its_comments_say() {
    let text = "<!-- setup: make it -->\n<!-- file: /etc/x -->\n\n```toml\na = 1\n```\n\n\
                - in a list\n\n  <!-- exit: 1 3 -->\n\n  ```console\n  # one \\\n    more\n  \
                printed\n  # two\n  ```\n\n<!-- needs: docker -->\n<!-- instead: pretend -->\n\n\
                ```console\n# docker ps\n```\n";
    let page = Page::read(text, |need| need != "docker").unwrap();
    let command = |line: &str, shown: &str, exits: &[i32]| Step::Command {
        line: line.to_owned(),
        shown: lines(shown),
        exits: exits.to_vec(),
    };
    let file = Step::File {
        path: "/etc/x".to_owned(),
        text: "a = 1\n".to_owned(),
    };
    let expected = [
        (1, Step::Setup("make it".to_owned())),
        (4, file),
        (13, command("one \\\n  more", "printed", &[0])),
        (16, command("two", "", &[1, 3])),
        (22, Step::Setup("pretend".to_owned())),
    ];
    assert_eq!(page.steps, expected);
    assert_eq!(page.left_out, [(22, "needs [\"docker\"]".to_owned())]);
    for wrong in [
        "<!-- setpu: x -->\n",
        "<!-- exit: one -->\n",
        "<!-- exit: 1 -->\n",
        "    indented\n",
        "```console\nno prompt\n```\n",
        "```console\n```\n",
        "```sh\nls\n```\n",
    ] {
        assert!(Page::read(wrong, |_| true).is_err(), "{wrong}");
    }
}

#[test]
fn a_page_that_shows_what_is_not_so_is_refused() {
    need_root!();
    for (text, part) in [
        ("```console\n# false\n```\n", "false\nended with 1"),
        ("```console\n# echo a\nb\n```\n", "echo a\nprinted:\na"),
        ("<!-- setup: false -->\n", "ended with not at all"),
        (
            "<!-- exit: 2 -->\n\n```console\n# true\n```\n",
            "ended with 0",
        ),
    ] {
        let page = Page::read(text, |_| true).unwrap();
        let wrong = machine::run_page(&page).unwrap_err();
        assert!(wrong.contains(part), "{text}: {wrong}");
    }
    let right = "<!-- file: /etc/strandfs/x -->\n\n```toml\na = 1\n```\n\n\
                 ```console\n# cd /mnt; x=1\n# pwd; cat /etc/strandfs/x\n/mnt\na = 1\n\
                 # (exit 7) || (exit 0); echo $? $x\n0 1\n```\n";
    machine::run_page(&Page::read(right, |_| true).unwrap()).unwrap();
    assert!(
        !Path::new("/etc/strandfs/x").exists(),
        "a machine of its own"
    );
}

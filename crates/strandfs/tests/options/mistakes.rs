//! Mistakes that users make, from `mistakes.tsv`: each is answered with what happened and what to do.
//! `docs/measurements/mistakes.md` shows the answers; `STRANDFS_WRITE_MISTAKES=1` writes it anew.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::support::command::{Run, binary};
use crate::support::files::{names, put};
use crate::support::{Kind, Pool, mounts, run, strandfs, system};
use crate::{need_root, need_tool};

const TABLE: &str = include_str!("mistakes.tsv");
const PAGE: &str = "../../docs/measurements/mistakes.md";

/// Longer lines are no sentences.
const COLUMNS_MAX: usize = 320;

/// A line of the table.
struct Mistake {
    area: &'static str,
    command: &'static str,
    code: i32,
    /// A part of what is said about what happened.
    happened: &'static str,
    /// A part of what is said about what to do.
    to_do: &'static str,
}

fn table() -> Vec<Mistake> {
    let read = |line: &'static str| {
        let cells: Vec<&str> = line.split('\t').collect();
        let [area, command, code, happened, to_do] = cells[..] else {
            panic!("five cells: {line}");
        };
        Mistake {
            area,
            command,
            code: code.parse().unwrap(),
            happened,
            to_do,
        }
    };
    TABLE.lines().skip(1).map(read).collect()
}

/// What the names in braces stand for, and files to be made for a command.
struct Ground {
    pool: Pool,
    places: Vec<(&'static str, PathBuf)>,
    helper: String,
    _open: File,
}

impl Ground {
    fn new() -> Ground {
        let pool = Pool::build()
            .branches([Kind::Dir, Kind::Dir])
            .option("log.file=")
            .mount();
        put(pool.path("f"), "x");
        let place = |name: &str| {
            let path = pool.outside(name);
            fs::create_dir_all(&path).unwrap();
            path.canonicalize().unwrap()
        };
        let disk = place("disk");
        mounts::make_branch(&disk, Kind::Tmpfs("1m"));
        let mut places = vec![
            ("p", place("mnt")),
            ("e", place("empty")),
            ("d1", place("data1")),
            ("d2", place("data2")),
            ("out", place("out")),
            ("colon", place("one:two")),
            ("disk", disk),
            ("m1", pool.on(0, "").canonicalize().unwrap()),
            ("m", pool.root().to_owned()),
            ("no", pool.outside("missing")),
        ];
        let file = pool.outside("file");
        put(&file, "no more than a file\n");
        places.push(("file", file));
        let latin = pool.outside("latin1.toml");
        put(&latin, b"branches = ['/caf\xe9']\n");
        places.push(("latin", latin));
        let link = pool.outside("link");
        symlink("data1", &link).unwrap();
        places.push(("link", link));
        for (name, path) in &places {
            if matches!(*name, "d1" | "d2" | "disk") {
                put(path.join("kept"), name);
                fs::create_dir(path.join("sub")).unwrap();
            }
        }
        let open = File::open(pool.path("f")).unwrap();
        Ground {
            helper: system::helper(&pool),
            pool,
            places,
            _open: open,
        }
    }

    fn fill(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, path) in &self.places {
            text = text.replace(&format!("{{{name}}}"), path.to_str().unwrap());
        }
        text
    }

    /// The words of a command; a word in quotes may hold blanks, and `{toml:TEXT}` stands for a file
    /// with that text.
    fn words(&self, command: &str) -> Vec<String> {
        let mut command = self.fill(command);
        for (kind, name) in [
            ("toml", "pool.toml"),
            ("conf", "old.conf"),
            ("fstab", "fstab"),
        ] {
            let Some(start) = command.find(&format!("{{{kind}:")) else {
                continue;
            };
            let begin = start + kind.len() + 2;
            let end = begin + closing(&command[begin..]);
            let path = self.pool.outside(name);
            fs::write(&path, command[begin..end].replace("\\n", "\n") + "\n").unwrap();
            command.replace_range(start..=end, path.to_str().unwrap());
        }
        let mut words = Vec::new();
        for (number, part) in command.split('\'').enumerate() {
            match number % 2 {
                1 => words.push(part.to_owned()),
                _ => words.extend(part.split_whitespace().map(str::to_owned)),
            }
        }
        words
    }

    fn run(&self, command: &str) -> Run {
        let words = self.words(command);
        match words[0].as_str() {
            "mount.strandfs" => run(&self.helper, &words[1..]),
            _ => strandfs(&words),
        }
    }

    /// What no mistake may change.
    fn state(&self) -> (Vec<String>, BTreeSet<PathBuf>) {
        let kept = self.places.iter().filter(|(_, path)| path.is_dir());
        let names = kept.flat_map(|(name, path)| {
            let names = names(path).into_iter();
            names.map(move |inner| format!("{name}/{inner}"))
        });
        let mounted = mounts::list().into_iter().map(|(path, _, _)| path);
        let own = mounted.filter(|path| path.starts_with(self.pool.outside("")));
        (names.collect(), own.collect())
    }

    /// With paths of this run as a reader knows them.
    fn shown(&self, text: &str) -> String {
        let real = self.pool.outside("").canonicalize().unwrap();
        let real = real.to_str().unwrap().trim_end_matches('/');
        let text = text.replace(binary().to_str().unwrap(), "/usr/bin/strandfs");
        text.replace(real, "/srv").replace('|', "\\|")
    }
}

/// Where the brace closes that was open before the text.
fn closing(text: &str) -> usize {
    let mut depth = 1;
    let mut quoted = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            '{' if !quoted => depth += 1,
            '}' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    panic!("no end: {text}");
}

/// Everything wrong with an answer; nothing if it is as it should be.
fn faults(ground: &Ground, mistake: &Mistake, run: &Run) -> Vec<String> {
    let mut faults = Vec::new();
    let said = format!("{}{}", run.stdout, run.stderr);
    if run.code() != mistake.code {
        faults.push(format!("exit code {}, not {}", run.code(), mistake.code));
    }
    for part in [mistake.happened, mistake.to_do] {
        if !said.contains(&ground.fill(part)) {
            faults.push(format!("does not say {part:?}"));
        }
    }
    for bad in ["panicked", "RUST_BACKTRACE", "unwrap", "src/", "Err("] {
        if said.contains(bad) {
            faults.push(format!("says {bad:?}"));
        }
    }
    // Paths of a run are longer than those of a user.
    let wide = |line: &&str| ground.shown(line).chars().count() > COLUMNS_MAX;
    if let Some(line) = said.lines().find(wide) {
        faults.push(format!("a line of {} columns", line.chars().count()));
    }
    faults
}

#[test]
fn each_mistake_is_answered_with_what_happened_and_what_to_do() {
    need_root!();
    need_tool!("fusermount3", "mkfs.ext4");
    let ground = Ground::new();
    let before = ground.state();
    let mistakes = table();
    assert!(mistakes.len() >= 120, "{}", mistakes.len());
    let mut page = head(mistakes.len());
    let mut wrong = Vec::new();
    let mut area = "";
    for mistake in &mistakes {
        let run = ground.run(mistake.command);
        let mut faults = faults(&ground, mistake, &run);
        let after = ground.state();
        if after != before {
            faults.push(format!("left something behind: {after:?}"));
            mounts::detach(&ground.places[0].1);
        }
        if !faults.is_empty() {
            wrong.push(format!(
                "{}: {}\n{run:?}",
                mistake.command,
                faults.join("; ")
            ));
        }
        if mistake.area != area {
            area = mistake.area;
            let _ = write!(
                page,
                "\n## {area}\n\n| mistake | exit code | answer |\n|---|---|---|\n"
            );
        }
        page.push_str(&row(&ground, mistake, &run));
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n\n{}",
        wrong.len(),
        mistakes.len(),
        wrong.join("\n\n")
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if std::env::var_os("STRANDFS_WRITE_MISTAKES").is_some() {
        fs::write(&path, &page).unwrap();
    }
    // The answers name what the kernel and the libraries of a machine say; the mistakes do not.
    let kept = fs::read_to_string(&path).unwrap_or_default();
    for mistake in &mistakes {
        let cell = cell(&ground, mistake);
        assert!(
            kept.contains(&cell),
            "{cell} is not in {PAGE}: STRANDFS_WRITE_MISTAKES=1 writes it"
        );
    }
    assert_eq!(kept.matches("\n| `").count(), mistakes.len(), "{PAGE}");
}

fn head(count: usize) -> String {
    format!(
        "# Mistakes and their answers\n\n\
         {count} mistakes, each made once by the test `mistakes` \
         (`crates/strandfs/tests/options/mistakes.tsv`), with the answer as it came. The test checks the exit \
         code, what is said to have happened and what is said to be done, that nothing was changed, and that no \
         answer is a backtrace. `STRANDFS_WRITE_MISTAKES=1 cargo nextest run -p strandfs --test options mistakes` \
         writes this page.\n\n\
         `/srv/mnt`, `/srv/empty`: empty directories. `/srv/one:two`: one whose name has a \
         colon. `/srv/data1`, `/srv/data2`: directories with files. `/srv/disk`: \
         a filesystem with files. `/srv/pool`: a mounted pool of `/srv/b0` and `/srv/b1`, in use. `/srv/missing`: \
         nothing.\n"
    )
}

/// The first cell of a mistake's row: the command with the text of its files.
fn cell(ground: &Ground, mistake: &Mistake) -> String {
    let program = match mistake.command.starts_with("mount.strandfs") {
        true => "",
        false => "strandfs ",
    };
    let command = ground.shown(&ground.fill(mistake.command));
    format!("| `{program}{command}` |")
}

fn row(ground: &Ground, mistake: &Mistake, run: &Run) -> String {
    let said = format!("{}{}", run.stdout, run.stderr);
    let said = ground.shown(said.trim_end());
    let said = said.replace('<', "&lt;").replace('\n', "<br>");
    format!("{} {} | {said} |\n", cell(ground, mistake), run.code())
}

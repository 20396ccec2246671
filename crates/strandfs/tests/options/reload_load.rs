//! Options and branches change while files are written, read, renamed, listed and copied: no
//! operation fails, no byte is wrong.
//!
//! `STRANDFS_RELOAD_CHANGES=10000` makes it a long run; with `STRANDFS_TOOLS` fsx takes part.

use crate::need_root;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::files::{get, names, open_with, pattern, put, read_all};
use crate::support::{Kind, Pool, run, say, strandfs};
use serde_json::{Value, json};

const WORKERS: usize = 3;
const FILES_PER_DIRECTORY: u64 = 6;

/// Numbers without a pattern, the same at each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.roll(from.len())]
    }
}

/// What can change without changing what a correct program sees. No policy that keeps to
/// existing paths: those refuse renames with EXDEV, as they must.
const OPTIONS: [(&str, &[&str]); 14] = [
    (
        "category.create",
        &["ff", "mfs", "lfs", "lus", "pfrd", "rand", "all"],
    ),
    ("func.mkdir", &["ff", "mfs", "rand", "all"]),
    ("cache.attr", &["0", "1", "3600"]),
    ("cache.entry", &["0", "1", "3600"]),
    ("cache.negative-entry", &["0", "1"]),
    ("cache.readdir", &["true", "false"]),
    (
        "cache.files",
        &["off", "partial", "full", "auto-full", "per-process"],
    ),
    ("cache.statfs", &["auto", "0", "1"]),
    ("passthrough.io", &["auto", "off", "ro", "wo", "rw"]),
    ("dropcacheonclose", &["true", "false"]),
    ("parallel-direct-writes", &["true", "false"]),
    ("flush-on-close", &["never", "opened-for-write", "always"]),
    ("statfs", &["base", "full"]),
    ("minfreespace", &["0", "1M", "1%"]),
];

/// The next list of branches: both that hold what the workers write, in either order, one of
/// them open for new files at least; and sometimes the third, which is never written to.
fn branches(pool: &Pool, dice: &mut Dice) -> String {
    let path = |number: usize| pool.outside(format!("b{number}")).display().to_string();
    let (first, second) = [(0, 1), (1, 0)][dice.roll(2)];
    let mode = dice.pick(&["RW", "NC"]);
    let mut list = vec![
        format!("{}={mode}", path(first)),
        format!("{}=RW", path(second)),
    ];
    match dice.roll(3) {
        0 => list.insert(0, format!("{}=RO", path(2))),
        1 => list.push(format!("{}=RO", path(2))),
        _ => {}
    }
    list.join(":")
}

/// One change over the control socket: some options, and the branches every other time.
fn change(pool: &Pool, socket: &str, dice: &mut Dice) {
    let mut options = Vec::new();
    for _ in 0..=dice.roll(3) {
        let (name, values) = OPTIONS[dice.roll(OPTIONS.len())];
        options.push(json!([name, dice.pick(values)]));
    }
    if dice.roll(2) == 0 {
        options.push(json!(["branches", branches(pool, dice)]));
    }
    let request = json!({ "do": "set", "options": options });
    let address = SocketAddr::from_abstract_name(socket).unwrap();
    let stream = UnixStream::connect_addr(&address).unwrap();
    (&stream)
        .write_all(format!("{request}\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["error"], Value::Null, "{request}");
}

/// Writes, reads back, changes, renames, lists and removes files of its own, checking each byte.
fn work(dir: &Path, seed: u64) {
    let sub = dir.join(format!("d{seed}"));
    fs::create_dir(&sub).unwrap();
    for number in 0..FILES_PER_DIRECTORY {
        let path = sub.join(format!("f{number}"));
        let bytes = pattern(
            seed * 31 + number,
            3000 + usize::try_from(number).unwrap() * 4000,
        );
        put(&path, &bytes);
        let file = open_with(&path, 0).unwrap();
        assert!(
            read_all(&file).unwrap() == bytes,
            "{}: read back",
            path.display()
        );
        let patch = pattern(seed ^ 77, 1000);
        file.write_all_at(&patch, 1500).unwrap();
        let mut expected = bytes.clone();
        expected[1500..2500].copy_from_slice(&patch);
        let renamed = sub.join(format!("r{number}"));
        fs::rename(&path, &renamed).unwrap();
        assert!(!path.exists(), "{}: the old name", path.display());
        let length = expected.len() - 700;
        file.set_len(u64::try_from(length).unwrap()).unwrap();
        expected.truncate(length);
        assert!(
            read_all(&file).unwrap() == expected,
            "{}: by handle",
            renamed.display()
        );
        drop(file);
        assert!(get(&renamed) == expected, "{}: by name", renamed.display());
        let length = u64::try_from(length).unwrap();
        assert_eq!(
            renamed.metadata().unwrap().len(),
            length,
            "{}",
            renamed.display()
        );
    }
    let moved = dir.join(format!("m{seed}"));
    fs::rename(&sub, &moved).unwrap();
    let expected: Vec<String> = (0..FILES_PER_DIRECTORY)
        .map(|number| format!("r{number}"))
        .collect();
    assert_eq!(names(&moved), expected);
    for name in &expected {
        fs::remove_file(moved.join(name)).unwrap();
    }
    fs::remove_dir(&moved).unwrap();
    assert!(!moved.exists());
}

/// Every file below a directory with its content.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_path_buf()];
    while let Some(next) = left.pop() {
        for name in names(&next) {
            let path = next.join(name);
            match path.is_dir() {
                true => left.push(path),
                false => found.push((path.strip_prefix(dir).unwrap().to_path_buf(), get(&path))),
            }
        }
    }
    found.sort();
    found
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for name in names(from) {
        let (source, target) = (from.join(&name), to.join(&name));
        match source.is_dir() {
            true => copy_tree(&source, &target),
            false => {
                fs::copy(&source, &target).unwrap();
            }
        }
    }
}

/// A small tree outside the pool.
fn make_source(pool: &Pool) -> PathBuf {
    let source = pool.outside("source");
    for number in 0..40_u64 {
        let path = source.join(format!("a{}/b{}/f{number}", number % 3, number % 5));
        put(
            path,
            pattern(number, 100 + usize::try_from(number).unwrap() * 300),
        );
    }
    source
}

/// Where fsx is, if the tools of the scripts are there.
fn fsx() -> Option<PathBuf> {
    let tools = std::env::var_os("STRANDFS_TOOLS")?;
    Some(Path::new(&tools).join("bin/fsx")).filter(|fsx| fsx.is_file())
}

/// Runs fsx again and again.
fn exercise(fsx: &Path, file: &Path, artifacts: &Path, running: &dyn Fn() -> bool) {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    for seed in 1.. {
        let options = format!("-q -N 1000 -S {seed} -P {}", artifacts.display());
        let options = options.split(' ').map(str::to_owned);
        run(&text(fsx), options.chain([text(file)])).ok();
        if !running() {
            break;
        }
    }
}

/// What only the third branch has comes and goes, but is never wrong.
fn watch(pool: &Path, expected: &[u8]) {
    match fs::read(pool.join("w0/only on the third")) {
        Ok(bytes) => assert!(bytes == expected, "wrong bytes of the third branch"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
    }
}

#[test]
fn changes_under_load_disturb_nobody() {
    need_root!();
    let changes = std::env::var("STRANDFS_RELOAD_CHANGES");
    let changes: usize = changes.map_or(150, |text| text.parse().unwrap());
    let limit = Duration::from_secs(100 + u64::try_from(changes).unwrap() / 2);
    let third = Kind::Tmpfs("64m");
    let mut pool = Pool::tmpfs(2).branch(third, "=RO").limit(limit).prepare();
    for worker in 0..WORKERS {
        for branch in [1, 2] {
            fs::create_dir(pool.on(branch, format!("w{worker}"))).unwrap();
        }
    }
    let third = pattern(99, 50_000);
    put(pool.on(2, "w0/only on the third"), &third);
    pool.start();
    let source = make_source(&pool);
    let expected = contents(&source);
    let socket = strandfs(["get", pool.root().to_str().unwrap(), "socket"])
        .ok()
        .stdout;
    let long_lived = open_with(pool.path("w1/long lived"), libc::O_CREAT).unwrap();
    let (done, rounds, copies) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    // However it ends, the workers are told.
    struct Told<'a>(&'a AtomicBool);
    impl Drop for Told<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let running = || !done.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let told = Told(&done);
        for worker in 0..WORKERS {
            let dir = pool.path(format!("w{worker}"));
            let (rounds, running) = (&rounds, &running);
            scope.spawn(move || {
                for seed in 0.. {
                    work(&dir, seed);
                    rounds.fetch_add(1, Ordering::Relaxed);
                    if !running() {
                        break;
                    }
                }
            });
        }
        scope.spawn(|| {
            let target = pool.path("copy");
            loop {
                copy_tree(&source, &target);
                assert!(contents(&target) == expected, "the copy differs");
                fs::remove_dir_all(&target).unwrap();
                copies.fetch_add(1, Ordering::Relaxed);
                if !running() {
                    break;
                }
            }
        });
        if let Some(fsx) = fsx() {
            let (file, artifacts) = (pool.path("w2/fsx"), pool.outside("artifacts"));
            fs::create_dir(&artifacts).unwrap();
            let running = &running;
            scope.spawn(move || exercise(&fsx, &file, &artifacts, running));
        }
        let mut dice = Dice(7);
        for round in 0..changes {
            change(&pool, socket.trim(), &mut dice);
            watch(pool.root(), &third);
            let bytes = pattern(u64::try_from(round).unwrap(), 512);
            long_lived
                .write_all_at(&bytes, 512 * u64::try_from(round % 64).unwrap())
                .unwrap();
            let mut back = vec![0; 512];
            let at = 512 * u64::try_from(round % 64).unwrap();
            long_lived.read_exact_at(&mut back, at).unwrap();
            assert!(back == bytes, "round {round}: the file held open");
        }
        drop(told);
    });
    let (rounds, copies) = (rounds.into_inner(), copies.into_inner());
    say(&format!(
        "{changes} changes during {rounds} rounds of file operations and {copies} copies"
    ));
    assert!(rounds >= 3 && copies >= 1);
    assert!(get(pool.on(2, "w0/only on the third")) == third);
    File::open(pool.path("w1/long lived")).unwrap();
}

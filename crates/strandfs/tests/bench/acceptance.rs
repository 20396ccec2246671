//! Is the right layer named? Delays are injected into one of them, over targets from 1 MiB a second to memory, and
//! noise into none; right, wrong and open answers are counted, and how long they took.
//!
//! `STRANDFS_LAYERS_SCENES=throttle-1:0..20,noise-memory:0..50` says which scenes run with which seeds; without it
//! one run of what no other test does. `STRANDFS_LAYERS_RESULTS=FILE` has a line for each run appended.

use crate::layers::{Hog, memory, slow_server};
use crate::need_root;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::laboratory::{Bench, layer, nothing_in};
use crate::support::network::{Network, SFTP_SERVER};
use crate::support::throttle::Throttle;
use crate::support::{Kind, mounts, say};

/// Beside everything a request costs on a busy machine.
const DELAY: Duration = Duration::from_millis(1);

/// A target with a delay or with noise, and what may be said of it.
struct Scene {
    bench: Bench,
    target: PathBuf,
    args: Vec<String>,
    /// The layer that is slow; none where noise alone was injected.
    slow: Option<&'static str>,
    /// Layers whose name would be a mistake.
    wrong: &'static [&'static str],
    /// What ends with the scene.
    _kept: Vec<Box<dyn std::any::Any>>,
}

const NOT_STORAGE: &[&str] = &["machine", "pool", "together"];
const NOT_POOL: &[&str] = &["machine", "storage", "together"];

impl Scene {
    fn new(slow: Option<&'static str>, wrong: &'static [&'static str]) -> Scene {
        let bench = Bench::new();
        Scene {
            target: bench.dir("target"),
            bench,
            args: vec!["--quick".to_owned()],
            slow,
            wrong,
            _kept: Vec::new(),
        }
    }

    /// None where this machine cannot have it.
    fn named(name: &str) -> Option<Scene> {
        let (kind, number) = name.split_once('-').unwrap_or((name, ""));
        match (kind, number) {
            ("throttle", rate) => Scene::throttled(rate.parse().unwrap()),
            ("delay", _) => Some(Scene::delayed(Some("storage"))),
            ("network", _) => Scene::network(),
            ("server", place) => Some(Scene::slow_server(place == "memory")),
            ("noise", "memory") => Some(Scene::noise(&["storage", "together"], &[])),
            ("noise", "pool") => Some(Scene::noise(NOT_POOL, &["--modes=direct"])),
            ("noise", "storage") => Some(Scene::delayed(None).with_noise()),
            ("noise", "network") => Some(Scene::network()?.with_noise()),
            ("noise", place) if place.starts_with("throttle-") => {
                Some(Scene::named(place)?.with_noise())
            }
            _ => panic!("there is no scene {name}"),
        }
    }

    fn throttled(mebibytes: u64) -> Option<Scene> {
        let mut scene = Scene::new(Some("storage"), NOT_STORAGE);
        mounts::make_branch(&scene.target, Kind::Loop("ext4", "256M"));
        let throttle = Throttle::on(&scene.target, mebibytes << 20)?;
        scene.bench.started_by = throttle.words();
        scene._kept.push(Box::new(throttle));
        Some(scene)
    }

    fn delayed(slow: Option<&'static str>) -> Scene {
        let mut scene = Scene::new(slow, NOT_STORAGE);
        let below = memory(&scene.bench, "below");
        let delay = DelayFs::mount(&below, &scene.target);
        delay.set(Mood::Slow(DELAY));
        scene._kept.push(Box::new(delay));
        scene
    }

    fn network() -> Option<Scene> {
        let found = |name: &&str| crate::support::command::have(name);
        if !["sshfs", SFTP_SERVER].iter().all(found) {
            return None;
        }
        let mut scene = Scene::new(Some("storage"), NOT_STORAGE);
        let (below, far) = (memory(&scene.bench, "below"), scene.bench.dir("far"));
        let delay = DelayFs::mount(&below, &far);
        let network = Network::sshfs(&scene.bench.dir("server"), &far, &scene.target);
        delay.set(Mood::Slow(DELAY));
        // The network ends first.
        scene._kept.push(Box::new(network));
        scene._kept.push(Box::new(delay));
        Some(scene)
    }

    fn slow_server(in_memory: bool) -> Scene {
        let mut scene = Scene::new(Some("pool"), NOT_POOL);
        if in_memory {
            mounts::make_branch(&scene.target, Kind::Tmpfs("512m"));
        }
        let program = slow_server(&scene.bench);
        scene.args.push("--modes=direct".to_owned());
        scene.args.push(format!("--program={}", program.display()));
        scene
    }

    fn noise(wrong: &'static [&'static str], args: &[&str]) -> Scene {
        let mut scene = Scene::new(None, wrong);
        mounts::make_branch(&scene.target, Kind::Tmpfs("512m"));
        scene.args.extend(args.iter().map(|it| (*it).to_owned()));
        scene._kept.push(Box::new(Hog::new()));
        scene
    }

    /// Noise beside what is slow: a name is not asked for, but no other may be named.
    fn with_noise(mut self) -> Scene {
        self.slow = None;
        self._kept.push(Box::new(Hog::new()));
        self
    }

    /// What was named, and how long it took.
    fn run(&mut self, seed: usize) -> (Option<String>, Duration, String) {
        self.bench.sample_time = "100ms";
        let seed = format!("--seed={seed}");
        let mut args = vec![self.target.to_str().unwrap(), &seed];
        args.extend(self.args.iter().map(String::as_str));
        let start = Instant::now();
        let (report, said) = self.bench.run("layers", &args);
        nothing_in(&self.target);
        (layer(&report), start.elapsed(), said)
    }
}

/// `name:0..20`, several with commas.
fn asked() -> Vec<(String, Range<usize>)> {
    let text = std::env::var("STRANDFS_LAYERS_SCENES");
    let text = text.unwrap_or_else(|_| "network:0..1,noise-memory:0..1".to_owned());
    let scene = |item: &str| {
        let (name, runs) = item.split_once(':').unwrap();
        let (first, end) = runs.split_once("..").unwrap();
        (
            name.to_owned(),
            first.parse().unwrap()..end.parse().unwrap(),
        )
    };
    text.split(',').map(scene).collect()
}

fn keep(line: &str) {
    say(line);
    let Some(path) = std::env::var_os("STRANDFS_LAYERS_RESULTS") else {
        return;
    };
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(Path::new(&path));
    writeln!(file.unwrap(), "{line}").unwrap();
}

#[test]
fn the_layer_that_is_slow_is_named_and_noise_names_none() {
    need_root!();
    let mut mistakes = Vec::new();
    for (name, seeds) in asked() {
        let (mut right, mut wrong, mut open) = (0, 0, 0);
        let mut times = Vec::new();
        for seed in seeds {
            let Some(mut scene) = Scene::named(&name) else {
                say(&format!("{name} cannot be had here"));
                break;
            };
            let (found, took, said) = scene.run(seed);
            let (count, judged) = match found.as_deref() {
                Some(layer) if scene.wrong.contains(&layer) => (&mut wrong, "wrong"),
                Some(layer) if scene.slow.is_none_or(|it| it == layer) => (&mut right, "right"),
                Some(layer) => panic!("{layer} is no layer: {said}"),
                None => (&mut open, "open"),
            };
            *count += 1;
            keep(&format!(
                "{name} {seed}: {judged}, {:.1} s, {}",
                took.as_secs_f64(),
                found.as_deref().unwrap_or("cannot tell")
            ));
            times.push(took);
            assert!(took < Duration::from_secs(90), "{took:?}: {said}");
            if judged == "wrong" {
                mistakes.push(said);
            }
        }
        times.sort();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        let worst = times.last().copied().unwrap_or_default();
        keep(&format!(
            "{name}: {right} right, {wrong} wrong, {open} cannot tell; median {:.1} s, worst {:.1} s",
            median.as_secs_f64(),
            worst.as_secs_f64()
        ));
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n\n"));
}

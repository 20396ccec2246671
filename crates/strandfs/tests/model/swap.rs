//! Another disk comes where a branch was. Both were formatted in the same second, and on the other
//! one there are files of the same names.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::run::Outcome;
use super::support::{Pool, eventually, mounts, run};

const FOREIGN: &[u8] = b"FOREIGN: these bytes are of another disk";

/// The first branch and the disk that looks like it.
pub struct Swap {
    place: PathBuf,
    own: String,
    other: String,
    /// Where the other one is looked at.
    beside: PathBuf,
}

/// A disk that was formatted at this time, and no other.
fn format(image: &Path) -> String {
    let image = image.to_str().unwrap();
    fs::remove_file(image).ok();
    run("truncate", ["-s", "64m", image]).ok();
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-F", "-m", "0", image])
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .env("E2FSPROGS_FAKE_TIME", "1700000000")
        .status();
    assert!(made.unwrap().success());
    attach(image)
}

/// A disk with the filesystem of another, as it is then, down to its UUID.
fn copy(of: &Path, image: &Path) -> String {
    fs::copy(of, image).unwrap();
    attach(image.to_str().unwrap())
}

fn attach(image: &str) -> String {
    let device = run("losetup", ["-f", "--show", image]).ok();
    device.stdout.trim().to_owned()
}

fn mount(device: &str, place: &Path) {
    run("mount", [device, place.to_str().unwrap()]).ok();
}

impl Swap {
    /// To be called before the pool serves: its first branch is made anew. The other disk was formatted
    /// in the same second, or is a copy.
    pub fn prepare(pool: &Pool, is_copy: bool) -> Swap {
        let place: PathBuf = pool.on(0, "").components().collect();
        mounts::detach(&place);
        let beside = pool.outside("beside");
        fs::create_dir(&beside).unwrap();
        let images = (pool.outside("own.img"), pool.outside("other.img"));
        let own = format(&images.0);
        let other = match is_copy {
            true => copy(&images.0, &images.1),
            false => format(&images.1),
        };
        let swap = Swap {
            own,
            other,
            place,
            beside,
        };
        mount(&swap.own, &swap.place);
        fs::remove_dir(swap.place.join("lost+found")).ok();
        swap
    }

    /// The disk is exchanged and comes back. Nobody works in the pool.
    pub fn exchange(&self, pool: &Pool, random: &mut fastrand::Rng) -> Outcome {
        mount(&self.other, &self.beside);
        for entry in fs::read_dir(&self.beside).unwrap().flatten() {
            let path = entry.path();
            // What an earlier exchange has left here may be of another kind by now.
            fs::remove_dir_all(&path)
                .or_else(|_| fs::remove_file(&path))
                .unwrap();
        }
        self.lay_out()?;
        let before = everything(&self.beside);
        mounts::detach_once(&self.place);
        if random.bool() {
            // So that the branch is missing for a while.
            std::thread::sleep(Duration::from_millis(random.u64(0..2500)));
        }
        mount(&self.other, &self.place);
        std::thread::sleep(Duration::from_millis(random.u64(1500..3500)));
        let used = self.use_pool(pool);
        let after = everything(&self.beside);
        mounts::detach_once(&self.place);
        mounts::detach_once(&self.beside);
        mount(&self.own, &self.place);
        used?;
        if before != after {
            let changed: Vec<_> = after
                .iter()
                .filter(|(path, _)| before.get(*path) != after.get(*path))
                .collect();
            return Err(format!("another disk was written to: {changed:?}"));
        }
        let well = || {
            let status = pool.status();
            let branches = &status.branches;
            branches.iter().all(|branch| branch.condition.state == "ok")
        };
        eventually("the branch is back", Duration::from_secs(60), well);
        for number in 0..8 {
            fs::remove_file(pool.path(format!("made-meanwhile-{number}"))).ok();
        }
        Ok(())
    }

    /// Puts the branch's own names on the other disk.
    fn lay_out(&self) -> Outcome {
        for path in everything(&self.place).into_keys() {
            let there = self.beside.join(&path);
            if self.place.join(&path).is_dir() {
                fs::create_dir_all(&there).unwrap();
            } else if there.symlink_metadata().is_err() {
                fs::create_dir_all(there.parent().unwrap()).unwrap();
                let written = File::create(&there).and_then(|mut file| file.write_all(FOREIGN));
                written.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Nothing of the other disk shows, and whatever is done in the pool is not done there.
    fn use_pool(&self, pool: &Pool) -> Outcome {
        for number in 0..8 {
            // Refused or made elsewhere.
            let _ = fs::write(pool.path(format!("made-meanwhile-{number}")), "new");
        }
        for path in everything(&self.beside).into_keys() {
            if let Ok(content) = fs::read(pool.path(&path))
                && content.starts_with(&FOREIGN[..8])
            {
                return Err(format!("{} is read from another disk", path.display()));
            }
        }
        Ok(())
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        mounts::detach(&self.beside);
        for device in [&self.own, &self.other] {
            // In use still, it goes with its mounts.
            run("losetup", ["-d", device]);
        }
    }
}

/// Every path of a tree with what is in it.
fn everything(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap().flatten() {
            let path = entry.path();
            if entry.file_name() == "lost+found" {
                continue;
            }
            let relative = path.strip_prefix(root).unwrap().to_path_buf();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                dirs.push(path);
                found.insert(relative, Vec::new());
            } else if kind.is_file() {
                found.insert(relative, fs::read(&path).unwrap_or_default());
            }
        }
    }
    found
}

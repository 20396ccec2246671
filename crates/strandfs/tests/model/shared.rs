//! Steps in directories and files that all workers share: what can be told of them is less, but not
//! nothing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use super::checks::{list, list_in_pieces, read_whole};
use super::config::Theme;
use super::control::Word;
use super::support::files::pattern;
use super::worker::{Step, Worker, wrong};

/// Of the log that all append to.
pub const RECORD_BYTES: usize = 64;
pub const LOG_BYTES: u64 = 2 << 20;
const OWN_NAMES: u32 = 30;
const OWN_BUSY: u32 = 60;

/// What one worker knows of the shared part.
pub struct Shared {
    pub number: usize,
    /// Its names in the shared directory, the other directory's after a slash.
    pub names: BTreeSet<String>,
    /// What they become by the change on its way.
    pub becomes: Option<BTreeSet<String>>,
    /// Appended to the log and acknowledged; the last one perhaps not.
    pub records: u32,
    pub records_perhaps: BTreeSet<u32>,
    /// The newest version that was seen of what another worker publishes.
    pub seen: Vec<u64>,
    pub counting: bool,
    pub last_count: u64,
}

impl Shared {
    pub fn new(number: usize) -> Shared {
        Shared {
            number,
            names: BTreeSet::new(),
            becomes: None,
            records: 0,
            records_perhaps: BTreeSet::new(),
            seen: vec![0; super::control::MOST_WORKERS],
            counting: false,
            last_count: 0,
        }
    }

    pub fn record(&self, number: u32) -> Vec<u8> {
        record_of(self.number, number)
    }
}

/// Those directly in the shared directory.
fn known_of(names: &BTreeSet<String>) -> Vec<&String> {
    names.iter().filter(|name| !name.contains('/')).collect()
}

pub fn record_of(worker: usize, number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((worker as u32).to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(pattern(
        u64::from(number) << 8 | worker as u64,
        RECORD_BYTES - 8,
    ));
    bytes
}

/// Where the directory may be that a worker renames.
pub fn roaming_names(whose: usize) -> [String; 3] {
    [
        format!("roaming-{whose}"),
        format!("roamed-{whose}"),
        format!("other/roaming-{whose}"),
    ]
}

/// The whole of a published version.
fn published(worker: u64, version: u64) -> Vec<u8> {
    let len = 24 + (version * 7919 + worker * 331) % 50_000;
    let mut bytes = Vec::new();
    for number in [worker, version, len] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(pattern(version << 8 | worker, len as usize - 24));
    bytes
}

impl Worker {
    pub fn in_shared(&self, name: &str) -> PathBuf {
        self.pool().join("shared").join(name)
    }

    pub fn shared_step(&mut self) -> Step {
        let busy = self.config.theme == Theme::Shared && self.random.u32(0..4) > 0;
        match self.random.u32(0..100) {
            _ if busy => self.own_names(),
            0..36 => self.own_names(),
            36..50 => self.in_roaming(),
            50..62 => self.publish(),
            62..78 => self.read_published(),
            78..88 if !self.config.short && !self.config.modes => self.append_record(),
            78..94 => self.count(),
            _ => self.make_exclusively(),
        }
    }

    /// Makes, renames and removes names of its own in a directory of all, and lists at once.
    pub fn own_names(&mut self) -> Step {
        for _ in 0..self.random.u32(1..3) {
            let name = format!("w{}-{}", self.number, self.random.u32(0..OWN_BUSY));
            let path = self.in_shared(&name);
            let mut becomes = self.shared.names.clone();
            let (what, done) = if self.shared.names.contains(&name) {
                becomes.remove(&name);
                if self.random.bool() {
                    self.shared.becomes = Some(becomes.clone());
                    ("unlink", fs::remove_file(path))
                } else {
                    let other = format!("other/w{}-{}", self.number, self.random.u32(0..5));
                    becomes.insert(other.clone());
                    self.shared.becomes = Some(becomes.clone());
                    ("rename", fs::rename(path, self.in_shared(&other)))
                }
            } else {
                becomes.insert(name.clone());
                self.shared.becomes = Some(becomes.clone());
                ("make", File::create(path).map(drop))
            };
            self.say(&format!("shared: {what} {name}"));
            if self.sort(what, 0, done)?.is_ok() {
                self.shared.names = becomes;
            }
            self.shared.becomes = None;
        }
        match self.random.u32(0..20) {
            0..8 => Ok(()),
            8..19 => self.check_busy(),
            _ => self.check_own_names(),
        }
    }

    /// The directory that one worker renames all the time, wherever it is now.
    pub fn open_roaming(&mut self, whose: usize) -> Step<File> {
        for _ in 0..2000 {
            for name in roaming_names(whose) {
                match File::open(self.in_shared(&name)) {
                    Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                    other => match self.sort("open a roaming directory", 0, other)? {
                        Ok(dir) => return Ok(dir),
                        Err(code) => return wrong(format!("roaming directory: error {code}")),
                    },
                }
            }
        }
        wrong(format!("the roaming directory of {whose} is nowhere"))
    }

    /// Makes and removes names in directories that are renamed meanwhile, and renames its own.
    pub fn in_roaming(&mut self) -> Step {
        let whose = self.random.usize(0..self.config.workers);
        if whose == self.number {
            let names = roaming_names(whose);
            let is_there = |name: &&String| fs::symlink_metadata(self.in_shared(name)).is_ok();
            let now = names.iter().find(is_there).cloned();
            let to = names[self.random.usize(0..names.len())].clone();
            let Some(now) = now.filter(|now| *now != to) else {
                return Ok(());
            };
            self.say(&format!("shared: rename {now} to {to}"));
            let done = fs::rename(self.in_shared(&now), self.in_shared(&to));
            self.sort("rename a roaming directory", 0, done)?.ok();
            return Ok(());
        }
        let dir = self.open_roaming(whose)?;
        for _ in 0..self.random.u32(1..8) {
            let name = format!("w{}-{}", self.number, self.random.u32(0..OWN_NAMES));
            let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()));
            let known = format!("roaming{whose}/{name}");
            let mut becomes = self.shared.names.clone();
            let (what, done) = if becomes.remove(&known) {
                self.shared.becomes = Some(becomes.clone());
                ("unlink", fs::remove_file(path))
            } else {
                becomes.insert(known.clone());
                self.shared.becomes = Some(becomes.clone());
                ("make", File::create(path).map(drop))
            };
            self.say(&format!("shared: {what} {known}"));
            if self.sort(what, 0, done)?.is_ok() {
                self.shared.names = becomes;
            }
            self.shared.becomes = None;
        }
        self.check_own_names()
    }

    /// The directory in which all make names, and nothing else.
    pub fn check_busy(&mut self) -> Step {
        let own = format!("w{}-", self.number);
        // Piece by piece, so that others change it and list it meanwhile.
        let bytes = [600, 2000, 32768][self.random.usize(0..3)];
        let listed = list_in_pieces(&self.in_shared(""), bytes);
        let Ok(names) = self.sort("list shared", 0, listed)? else {
            return wrong("list shared: refused");
        };
        let names = names.into_iter();
        let mut found: Vec<String> = names.filter(|name| name.starts_with(&own)).collect();
        found.sort();
        let known = known_of(&self.shared.names);
        if known.iter().copied().eq(&found) {
            return Ok(());
        }
        let extra: Vec<_> = found.iter().filter(|name| !known.contains(name)).collect();
        let missing: Vec<_> = known.iter().filter(|name| !found.contains(name)).collect();
        wrong(format!(
            "the shared directory's listing: extra {extra:?}, missing {missing:?}"
        ))
    }

    pub fn own_listed(&mut self) -> Step<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        let own = format!("w{}-", self.number);
        let mut places = vec![
            (self.in_shared(""), String::new()),
            (self.in_shared("other"), "other/".to_owned()),
        ];
        let mut open = Vec::new();
        for whose in 0..self.config.workers {
            let dir = self.open_roaming(whose)?;
            let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
            places.push((path, format!("roaming{whose}/")));
            open.push(dir);
        }
        for (dir, prefix) in places {
            let listed = match self.sort("list shared", 0, list(&dir))? {
                Ok(listed) => listed,
                Err(code) => return wrong(format!("list shared: error {code}")),
            };
            let mine = listed
                .into_iter()
                .filter(|(name, _)| name.starts_with(&own));
            for (name, _) in mine {
                let name = format!("{prefix}{name}");
                if !found.insert(name.clone()) {
                    return wrong(format!("shared/{name} is listed twice"));
                }
            }
        }
        Ok(found)
    }

    pub fn check_own_names(&mut self) -> Step {
        let found = self.own_listed()?;
        if found == self.shared.names {
            return Ok(());
        }
        let known = self.shared.names.clone();
        let extra: Vec<_> = found.difference(&known).collect();
        let missing: Vec<_> = known.difference(&found).collect();
        let mut text = format!("shared directory: extra {extra:?}, missing {missing:?}\n");
        let again = self.own_listed()?;
        text += &format!("right when listed again: {}\n", again == self.shared.names);
        for name in extra.iter().chain(&missing) {
            for (at, branch) in self.branches.iter().enumerate() {
                let there = fs::symlink_metadata(branch.join("shared").join(name)).is_ok();
                text += &format!("  {name} on branch {at}: {there}\n");
            }
        }
        wrong(text)
    }

    /// A new version takes the name, as editors save.
    pub fn publish(&mut self) -> Step {
        let word = Word::Published(self.number);
        let version = self.control.get(word) + 1;
        let own = self.number;
        let (draft, name) = (format!("draft-{own}"), format!("pub-{own}"));
        let content = published(own as u64, version);
        self.say(&format!("publish {version}"));
        let path = self.in_shared(&draft);
        let written = File::create(&path).and_then(|mut file| file.write_all(&content));
        if self.sort("write the draft", 0, written)?.is_err() {
            let _ = fs::remove_file(&path);
            return Ok(());
        }
        // Others may see it before the call returns, but never one that is older than the last.
        let renamed = fs::rename(&path, self.in_shared(&name));
        if self.sort("publish", 0, renamed)?.is_ok() {
            self.control.set(word, version);
        }
        Ok(())
    }

    pub fn read_published(&mut self) -> Step {
        let whose = self.random.usize(0..self.config.workers);
        let least = self.control.get(Word::Published(whose));
        let least = least.max(self.shared.seen[whose]);
        let opened = File::open(self.in_shared(&format!("pub-{whose}")));
        let file = match opened {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) && least == 0 => return Ok(()),
            other => match self.sort("open what is published", 0, other)? {
                Ok(file) => file,
                Err(code) => return wrong(format!("open what is published: error {code}")),
            },
        };
        let Ok(found) = self.sort("read what is published", 0, read_whole(&file))? else {
            return wrong("read what is published: refused");
        };
        let word = |at: usize| {
            let bytes = found.get(at * 8..at * 8 + 8);
            bytes.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
        };
        let version = word(1).unwrap_or(0);
        let expected = published(whose as u64, version);
        if found != expected || version < least {
            let text = format!(
                "worker {whose} has published {least}; read were {} bytes of version {version}, right: {}",
                found.len(),
                found == expected
            );
            return wrong(text);
        }
        self.shared.seen[whose] = version;
        Ok(())
    }

    /// Before anybody goes on after a death.
    pub fn shared_died(&mut self) {
        if std::mem::take(&mut self.shared.counting) {
            self.control.add(Word::CountedPerhaps, 1);
        }
    }

    /// After a death: what was on its way has happened or has not.
    pub fn shared_settle(&mut self) -> Step {
        let found = self.own_listed()?;
        let becomes = self.shared.becomes.take();
        if found != self.shared.names && Some(&found) != becomes.as_ref() {
            let known = &self.shared.names;
            let extra: Vec<_> = found.difference(known).collect();
            let missing: Vec<_> = known.difference(&found).collect();
            return wrong(format!(
                "after the death: extra {extra:?}, missing {missing:?} in the shared directory"
            ));
        }
        self.shared.names = found;
        if !self.config.short && !self.config.modes {
            self.check_log()?;
        }
        Ok(())
    }

    pub fn shared_end(&mut self) -> Step {
        self.check_own_names()?;
        if !self.config.short && !self.config.modes {
            self.check_log()?;
        }
        Ok(())
    }
}

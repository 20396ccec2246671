//! Directories that come to be on further branches, and that are listed while they change.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::tree::{Node, What, children};
use super::worker::{Step, Worker, ask_server};

impl Worker {
    /// A directory comes to be on further branches, made there by hand.
    pub fn spread(&mut self) -> Step {
        let Some(dir) = self.any_name(What::Dir) else {
            return Ok(());
        };
        let id = self.names[&dir];
        if self
            .config
            .options
            .iter()
            .any(|option| option == "coherence=timeout")
        {
            // The pool may not know of it for a while.
            return Ok(());
        }
        self.note(id, &format!("spread {}", dir.display()));
        let mut markers = Vec::new();
        let mark = format!("mark{}", self.number);
        // Not on one that has not joined yet.
        for at in 0..self.config.branches.len() {
            let branch = self.branches[at].clone();
            if self.random.bool() {
                continue;
            }
            if let Some(place) = self.make_on(&branch, &dir) {
                let marker = place.join(&mark);
                if File::create(&marker).is_ok() {
                    markers.push(marker);
                }
            }
        }
        // What the pool does before it has heard of it is nothing to judge.
        let mark = self.path(&dir).join(mark);
        let shown = match markers.is_empty() {
            true => Ok(()),
            false => self.until_there(id, &mark, true),
        };
        for marker in &markers {
            let _ = fs::remove_file(marker);
        }
        shown?;
        self.until_there(id, &mark, false)
    }

    /// A directory on a branch, with those above it.
    pub fn make_on(&self, branch: &Path, dir: &Path) -> Option<PathBuf> {
        let mut place = branch.join(self.own_name());
        let make = |place: &Path, mode| match fs::DirBuilder::new().mode(mode).create(place) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Some(()),
            made => made.ok(),
        };
        make(&place, 0o777)?;
        let mut below = PathBuf::new();
        for part in dir.components() {
            below.push(part);
            place.push(part);
            make(&place, self.nodes[&self.names[&below]].mode)?;
        }
        Some(place)
    }

    pub fn until_there(&self, id: u64, path: &Path, there: bool) -> Step {
        let start = std::time::Instant::now();
        loop {
            let found = match fs::symlink_metadata(path) {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => false,
                other => self.sort("lstat", id, other)?.is_ok(),
            };
            if found == there {
                return Ok(());
            }
            self.sort("statfs", id, ask_server(&self.own_dir()))?.ok();
            if start.elapsed().as_secs() > 20 {
                return self.wrong_node(
                    id,
                    &format!(
                        "{} there: not {there} for long\n{}",
                        path.display(),
                        self.on_branches(path.strip_prefix(self.own_dir()).unwrap())
                    ),
                );
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Names that are there all the while are listed once, whatever comes and goes.
    pub fn list_while_changing(&mut self) -> Step {
        let dir = self.any_dir();
        let before: Vec<String> = children(&self.names, &dir)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        let id = self.names.get(&dir).copied().unwrap_or(0);
        let path = self.path(&dir);
        let Ok(mut entries) = self.sort("opendir", id, fs::read_dir(&path))? else {
            return Ok(());
        };
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        let mut see = |entry: fs::DirEntry| {
            *seen
                .entry(entry.file_name().to_string_lossy().into_owned())
                .or_default() += 1;
        };
        for entry in entries.by_ref().take(self.random.usize(0..4)) {
            match self.sort("readdir", id, entry)? {
                Ok(entry) => see(entry),
                Err(code) => return self.wrong_node(id, &format!("readdir: error {code}")),
            }
        }
        // Others come and go; those that go again are no part of what is known.
        for number in 0..self.random.u32(0..3) {
            self.passing(&dir, number)?;
        }
        for entry in entries {
            match self.sort("readdir", id, entry)? {
                Ok(entry) => see(entry),
                Err(code) => return self.wrong_node(id, &format!("readdir: error {code}")),
            }
        }
        let passing = |name: &String| name.starts_with("passing");
        let known: Vec<&String> = seen.keys().filter(|name| !passing(name)).collect();
        let all: Vec<&String> = before.iter().filter(|name| !passing(name)).collect();
        let twice: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).collect();
        if known != all || !twice.is_empty() {
            let text = format!("listed while changing: {seen:?}, there all the while {before:?}");
            return self.wrong_node(id, &text);
        }
        Ok(())
    }

    /// A file comes and goes.
    pub fn passing(&mut self, dir: &Path, number: u32) -> Step {
        let name = dir.join(format!("passing{number}"));
        if self.names.contains_key(&name) {
            return Ok(());
        }
        let (id, path) = (self.new_id(), self.path(&name));
        let mut names = self.names.clone();
        names.insert(name.clone(), id);
        self.expect_names(names);
        self.expect(id, Node::new(What::File, 0o666));
        self.note(id, &format!("make and unlink {}", name.display()));
        if self.sort("make", id, File::create(&path))?.is_err() {
            self.forget();
            return Ok(());
        }
        match self.sort("unlink", id, fs::remove_file(&path))? {
            Ok(()) => self.forget(),
            Err(_) => self.commit(),
        }
        Ok(())
    }
}

//! Looking whether everything is as it has to be.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::support::files::{Aligned, SharedMap};
use super::tree::{Id, Node, What, children, difference};
use super::worker::{Step, Trouble, Worker, wrong};

/// All of a file from its start on, until it says that this was all.
pub fn read_whole(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 1 << 17];
    loop {
        match file.read_at(&mut piece, bytes.len() as u64)? {
            0 => return Ok(bytes),
            count => bytes.extend_from_slice(&piece[..count]),
        }
    }
}

fn kind_of(stat: &Metadata) -> What {
    match stat.mode() & libc::S_IFMT {
        libc::S_IFDIR => What::Dir,
        libc::S_IFLNK => What::Symlink,
        _ => What::File,
    }
}

fn mtime(stat: &Metadata) -> i128 {
    i128::from(stat.mtime()) * 1_000_000_000 + i128::from(stat.mtime_nsec())
}

/// The attributes of a path that the model keeps.
fn attrs_of(path: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut list = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut list[..])?;
    let mut found = BTreeMap::new();
    for name in list[..len].split(|byte| *byte == 0) {
        let name = std::str::from_utf8(name).unwrap();
        if !name.starts_with("user.m") {
            continue;
        }
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(len);
        found.insert(name.to_owned(), value);
    }
    Ok(found)
}

impl Worker {
    /// Attributes as the model has them.
    pub fn check_stat(&self, id: Id, stat: &Metadata, how: &str) -> Step {
        let node = &self.nodes[&id];
        let mut bad = Vec::new();
        if kind_of(stat) != node.what {
            bad.push(format!("kind {:o}", stat.mode()));
        }
        if node.what != What::Symlink && stat.mode() & 0o7777 != node.mode {
            bad.push(format!(
                "mode {:o} for {:o}",
                stat.mode() & 0o7777,
                node.mode
            ));
        }
        if node.what == What::File {
            if stat.len() != node.bytes.len() as u64 {
                bad.push(format!("size {} for {}", stat.len(), node.bytes.len()));
            }
            if stat.nlink() != self.links(id) {
                bad.push(format!("{} links for {}", stat.nlink(), self.links(id)));
            }
            match node.set_time {
                Some(time) if time != mtime(stat) => {
                    bad.push(format!("mtime {} for {time}", mtime(stat)));
                }
                None if mtime(stat) < node.floor - 20_000_000 => {
                    bad.push(format!("mtime {} before {}", mtime(stat), node.floor));
                }
                _ => {}
            }
        }
        if bad.is_empty() {
            return Ok(());
        }
        self.wrong_node(id, &format!("{how}: {}", bad.join(", ")))
    }

    pub fn check_fstat(&self, id: Id, file: &File) -> Step {
        let stat = self.sort("fstat", id, file.metadata())?;
        match stat {
            Ok(stat) => self.check_stat(id, &stat, "fstat"),
            Err(code) => self.wrong_node(id, &format!("fstat: error {code}")),
        }
    }

    /// The whole content, read in one of several ways.
    pub fn check_content(&mut self, id: Id, path: &Path) -> Step {
        let len = self.nodes[&id].bytes.len();
        let way = self.random.u32(0..6);
        let flags = if way == 0 { libc::O_DIRECT } else { 0 };
        let opened = super::ops_data::open_plain(path, flags);
        let file = match opened {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && way == 0 => return Ok(()),
            other => match self.sort("open to read", id, other)? {
                Ok(file) => file,
                Err(code) => return self.wrong_node(id, &format!("open to read: error {code}")),
            },
        };
        self.check_fstat(id, &file)?;
        let (how, found) = match way {
            0 => {
                // No block behind the end: where XFS has delayed ones there, such a read is EIO on
                // the bare filesystem too ("Direct I/O collision with buffered writes").
                let mut room = Aligned::new(&vec![0; len.next_multiple_of(4096)]);
                let mut done = 0;
                let outcome = loop {
                    // Only the end may come between two blocks.
                    match file.read_at(&mut room.slice()[done..], done as u64) {
                        Ok(0) => break Ok(()),
                        Ok(count) if count % 4096 != 0 => {
                            done += count;
                            break Ok(());
                        }
                        Ok(count) => done += count,
                        Err(error) => break Err(error),
                    }
                    if done == room.slice().len() {
                        break Ok(());
                    }
                };
                let found = outcome.map(|()| room.slice()[..done].to_vec());
                ("read with O_DIRECT", found)
            }
            // On tmpfs looking at a hole takes room.
            1 if len > 0 && (self.nodes[&id].solid || !self.config.short) => (
                "mapped",
                SharedMap::new_for_reading(&file, len).and_then(|map| map.try_bytes()),
            ),
            _ => ("read", read_whole(&file)),
        };
        let found = match self.sort(how, id, found)? {
            Ok(found) => found,
            Err(code) => return self.wrong_node(id, &format!("{how}: error {code}")),
        };
        match self.nodes[&id].differs(&found) {
            None => Ok(()),
            Some(difference) => {
                // Whether it goes away by itself.
                std::thread::sleep(Duration::from_millis(300));
                let again = super::ops_data::open_plain(path, 0).and_then(|file| read_whole(&file));
                let again = again.map(|again| difference2(&self.nodes[&id].bytes, &again));
                self.wrong_node(
                    id,
                    &format!("{how}: {difference}\nread again later: {again:?}"),
                )
            }
        }
    }

    /// Everything about what one name leads to.
    pub fn check_name(&mut self, name: &Path) -> Step {
        let id = self.names[name];
        let path = self.path(name);
        let stat = match self.sort("lstat", id, fs::symlink_metadata(&path))? {
            Ok(stat) => stat,
            Err(code) => return self.wrong_node(id, &format!("lstat: error {code}")),
        };
        self.check_stat(id, &stat, "lstat")?;
        match self.nodes[&id].what {
            What::Dir => return Ok(()),
            What::Symlink => {
                let target = self.sort("readlink", id, fs::read_link(&path))?;
                let expected = PathBuf::from(&self.nodes[&id].target);
                return match target {
                    Ok(target) if target == expected => Ok(()),
                    other => self.wrong_node(id, &format!("readlink: {other:?}")),
                };
            }
            What::File => {}
        }
        self.check_content(id, &path)?;
        let attrs = self.sort("listxattr", id, attrs_of(&path))?;
        if attrs.as_ref() != Ok(&self.nodes[&id].attrs) {
            let attrs = attrs.map(|attrs| attrs.into_keys().collect::<Vec<_>>());
            return self.wrong_node(id, &format!("attributes: {attrs:?}"));
        }
        Ok(())
    }

    /// One copy on the branches, with the size and the bytes it has to have. A move on its way shows
    /// two for a moment.
    pub fn check_on_branches(&mut self, name: &Path) -> Step {
        let id = self.names[name];
        if self.nodes[&id].what != What::File {
            return Ok(());
        }
        let relative = Path::new(&self.own_name()).join(name);
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let mut holders = Vec::new();
            for branch in &self.branches {
                let path = branch.join(&relative);
                if fs::symlink_metadata(&path).is_ok() {
                    holders.push(path);
                }
            }
            let state = match holders.as_slice() {
                [one] => match fs::read(one) {
                    Ok(found) => self.nodes[&id].differs(&found),
                    Err(error) => Some(error.to_string()),
                },
                _ => Some(format!("{} copies", holders.len())),
            };
            let Some(state) = state else { return Ok(()) };
            if Instant::now() > deadline {
                return self.wrong_node(id, &format!("on the branches: {state}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A directory's listing is exactly what has been made in it.
    pub fn check_listing(&mut self, dir: &Path) -> Step {
        let id = self.names.get(dir).copied().unwrap_or(0);
        let listed = list(&self.path(dir));
        let mut listed = match self.sort("list", id, listed)? {
            Ok(listed) => listed,
            Err(code) => return self.wrong_node(id, &format!("list: error {code}")),
        };
        listed.sort();
        let expected = self.expected_listing(dir);
        if listed == expected {
            return Ok(());
        }
        let extra: Vec<_> = listed
            .iter()
            .filter(|one| !expected.contains(one))
            .collect();
        let missing: Vec<_> = expected
            .iter()
            .filter(|one| !listed.contains(one))
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        let again = list(&self.path(dir)).map(|mut again| {
            again.sort();
            again == expected
        });
        let mut text = format!(
            "listing of {}: extra {extra:?}, missing {missing:?}, {} names; right later: {again:?}\n",
            dir.display(),
            listed.len()
        );
        for (name, _) in extra.iter().chain(&missing) {
            text += &self.on_branches(&dir.join(name));
        }
        self.wrong_node(id, &text)
    }

    fn expected_listing(&self, dir: &Path) -> Vec<(String, char)> {
        let mut expected: Vec<(String, char)> = children(&self.names, dir)
            .into_iter()
            .map(|(name, id)| (name, letter(self.nodes[&id].what)))
            .collect();
        expected.sort();
        expected
    }

    /// Whether a directory that is there is listed as it has to be.
    pub fn is_listed_right(&self, dir: &Path) -> Step<bool> {
        let id = self.names.get(dir).copied().unwrap_or(0);
        let listed = self.sort("list", id, list(&self.path(dir)))?;
        Ok(listed.is_ok_and(|mut listed| {
            listed.sort();
            listed == self.expected_listing(dir)
        }))
    }

    /// Every name, in the order of chance; the branches too.
    pub fn check_everything(&mut self, also_branches: bool) -> Step {
        self.say("check everything");
        let mut names: Vec<PathBuf> = self.names.keys().cloned().collect();
        self.random.shuffle(&mut names);
        if !also_branches {
            names.truncate(12);
        }
        for name in &names {
            self.check_name(name)?;
            if self.nodes[&self.names[name]].what == What::Dir {
                self.check_listing(name)?;
            }
        }
        self.check_listing(Path::new(""))?;
        let found = self.walk()?;
        for path in found.keys() {
            if !self.names.contains_key(path) {
                let places = self.on_branches(path);
                return wrong(format!("{} came from nowhere\n{places}", path.display()));
            }
        }
        for at in 0..self.kept.len() {
            let (id, file) = (self.kept[at].id, &self.kept[at].file);
            self.check_fstat(id, file)?;
            let found = self.sort("read of an open file", id, read_whole(file))?;
            if let Some(different) = self.nodes[&id].differs(&found.unwrap_or_default()) {
                return self.wrong_node(id, &format!("read of an open file: {different}"));
            }
        }
        if !also_branches {
            return Ok(());
        }
        self.kept.clear();
        if self.config.writeback {
            // Closed is not written yet.
            rustix::fs::sync();
        }
        for name in &names {
            self.check_on_branches(name)?;
        }
        Ok(())
    }

    /// The tree as it is found.
    pub fn walk(&mut self) -> Step<BTreeMap<PathBuf, What>> {
        let mut found = BTreeMap::new();
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            let id = self.names.get(&dir).copied().unwrap_or(0);
            let listed = match self.sort("walk", id, list(&self.path(&dir)))? {
                Ok(listed) => listed,
                Err(code) => return wrong(format!("walk: error {code}")),
            };
            for (name, kind) in listed {
                let path = dir.join(name);
                let what = match kind {
                    'd' => What::Dir,
                    'l' => What::Symlink,
                    _ => What::File,
                };
                if what == What::Dir {
                    dirs.push(path.clone());
                }
                if found.insert(path.clone(), what).is_some() {
                    return wrong(format!("{} is listed twice", path.display()));
                }
            }
        }
        Ok(found)
    }

    /// After a death: what the name leads to is on the way from `pre` to `queue_worker`. The node as it is.
    pub fn between(
        &mut self,
        name: &Path,
        id: Id,
        pre: &Node,
        post: &Node,
        links: u64,
        was: bool,
    ) -> Step<Node> {
        let path = self.path(name);
        let gone = |error: io::Error, what: &str| match error.raw_os_error() {
            Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EIO | libc::ECANCELED) => {
                Trouble::Gone
            }
            _ => Trouble::Wrong(format!("{what} of {}: {error}", name.display())),
        };
        let stat = fs::symlink_metadata(&path).map_err(|error| gone(error, "lstat"))?;
        let mut node = pre.clone();
        let mode = stat.mode() & 0o7777;
        if kind_of(&stat) != pre.what {
            return self.wrong_node(id, "another kind");
        }
        if pre.what == What::Symlink {
            return Ok(node);
        }
        if mode != pre.mode && mode != post.mode {
            return self.wrong_node(id, &format!("mode {mode:o}"));
        }
        node.mode = mode;
        if pre.what == What::Dir {
            return Ok(node);
        }
        if stat.nlink() != links {
            let text = format!("{} links for {links} ({})", stat.nlink(), name.display());
            return self.wrong_node(id, &text);
        }
        let file = File::open(&path).map_err(|error| gone(error, "open"))?;
        let found = read_whole(&file).map_err(|error| gone(error, "read"))?;
        if stat.len() != found.len() as u64 {
            return self.wrong_node(id, &format!("{} bytes, size {}", found.len(), stat.len()));
        }
        if let Err(bad) = pre.leads_to(post, &found) {
            return self.wrong_node(id, &format!("after the death, {}: {bad}", name.display()));
        }
        if found != pre.bytes || !was {
            node.solid = false;
        }
        let changed = self.flight.nodes.contains_key(&id);
        if changed {
            (node.set_time, node.floor, node.solid) = (None, 0, false);
        } else if let Some(time) = node.set_time
            && time != mtime(&stat)
        {
            let text = format!("after the death: mtime {} for {time}", mtime(&stat));
            return self.wrong_node(id, &text);
        }
        node.bytes = found;
        let attrs = attrs_of(&path).map_err(|error| gone(error, "attributes"))?;
        if attrs != pre.attrs && attrs != post.attrs {
            let keys: Vec<_> = attrs.keys().collect();
            return self.wrong_node(id, &format!("after the death: attributes {keys:?}"));
        }
        node.attrs = attrs;
        Ok(node)
    }
}

fn difference2(expected: &[u8], found: &[u8]) -> String {
    difference(expected, found).unwrap_or_else(|| "as it should be".to_owned())
}

fn letter(what: What) -> char {
    match what {
        What::File => 'f',
        What::Dir => 'd',
        What::Symlink => 'l',
    }
}

/// Names in a directory, read with a buffer of this size.
pub fn list_in_pieces(path: &Path, bytes: usize) -> io::Result<Vec<String>> {
    let dir = File::open(path)?;
    let mut buffer = Vec::with_capacity(bytes);
    let mut entries = rustix::fs::RawDir::new(&dir, buffer.spare_capacity_mut());
    let mut listed = Vec::new();
    while let Some(entry) = entries.next() {
        listed.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(listed)
}

/// Names and kinds in a directory.
pub fn list(path: &Path) -> io::Result<Vec<(String, char)>> {
    let mut listed = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let letter = match () {
            () if kind.is_dir() => 'd',
            () if kind.is_symlink() => 'l',
            () => 'f',
        };
        listed.push((entry.file_name().to_string_lossy().into_owned(), letter));
    }
    Ok(listed)
}

//! Steps that concern names and attributes.

use std::fs::{self};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, XattrFlags};

use super::tree::{Names, Node, What, children, exchange, rename};
use super::worker::{Step, Worker};

impl Worker {
    pub fn names_step(&mut self) -> Step {
        match self.random.u32(0..100) {
            0..9 => self.make_dir(),
            9..24 => self.rename_file(),
            24..40 => self.rename_dir(),
            40..46 => self.exchange_names(),
            46..54 => self.link(),
            54..64 => self.unlink(),
            64..68 => self.remove_dir(),
            68..72 => self.symlink(),
            72 if self.config.many_attrs => {
                let count = self.random.u32(50..300);
                (0..count).try_for_each(|_| self.set_attr())
            }
            72..80 => self.set_attr(),
            80..86 => self.change_mode(),
            86..90 => self.set_times(),
            90..95 => self.spread(),
            _ => self.list_while_changing(),
        }
    }

    /// The call is made; names and nodes become what is expected, or stay as they are.
    pub fn settle_names(&mut self, what: &str, id: u64, done: io::Result<()>) -> Step<bool> {
        match self.sort(what, id, done)? {
            Ok(()) => {
                self.commit();
                self.drop_nameless();
                Ok(true)
            }
            Err(code) => {
                self.note(id, &format!("refused: {code}"));
                self.forget();
                Ok(false)
            }
        }
    }

    /// It has to fail with this error, or with one that is legal.
    pub fn must_fail(&mut self, what: &str, id: u64, done: io::Result<()>, codes: &[i32]) -> Step {
        match done {
            Err(error)
                if error
                    .raw_os_error()
                    .is_some_and(|code| codes.contains(&code)) =>
            {
                Ok(())
            }
            other => match self.sort(what, id, other)? {
                Ok(()) => {
                    self.wrong_node(id, &format!("{what} succeeded, must be error {codes:?}"))
                }
                Err(_) => Ok(()),
            },
        }
    }

    pub fn make_dir(&mut self) -> Step {
        let name = self.some_name('d', 4);
        let path = self.path(&name);
        let mode = [0o700, 0o755, 0o750, 0o711][self.random.usize(0..4)];
        let make = || fs::DirBuilder::new().mode(mode).create(&path);
        if let Some(id) = self.names.get(&name).copied() {
            return self.must_fail("mkdir", id, make(), &[libc::EEXIST]);
        }
        if self
            .names
            .values()
            .filter(|id| self.nodes[id].what == What::Dir)
            .count()
            > 12
        {
            return Ok(());
        }
        let id = self.new_id();
        self.note(id, &format!("mkdir {} mode {mode:o}", name.display()));
        let mut names = self.names.clone();
        names.insert(name.clone(), id);
        self.expect_names(names);
        self.expect(id, Node::new(What::Dir, mode));
        if self.settle_names("mkdir", id, make())? {
            self.check_name(&name)?;
        }
        Ok(())
    }

    pub fn rename_now(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        let (from, to) = (self.path(from), self.path(to));
        Ok(rustix::fs::renameat_with(CWD, from, CWD, to, flags)?)
    }

    pub fn rename_file(&mut self) -> Step {
        let Some(from) = self.any_name(What::File) else {
            return Ok(());
        };
        let id = self.names[&from];
        let to = match self.any_name(What::File) {
            Some(other) if self.random.u32(0..3) == 0 => other,
            _ => self.some_name('f', 9),
        };
        let keeps = self.random.u32(0..5) == 0;
        let flags = if keeps {
            RenameFlags::NOREPLACE
        } else {
            RenameFlags::empty()
        };
        self.note(
            id,
            &format!(
                "rename {} to {}, keeps {keeps}",
                from.display(),
                to.display()
            ),
        );
        let target = self.names.get(&to).copied();
        if keeps && target.is_some() {
            let done = self.rename_now(&from, &to, flags);
            return self.must_fail("rename", id, done, &[libc::EEXIST]);
        }
        if target.is_some_and(|target| self.nodes[&target].what == What::Dir) {
            let done = self.rename_now(&from, &to, flags);
            return self.must_fail("rename", id, done, &[libc::EISDIR, libc::ENOTEMPTY]);
        }
        let mut names = self.names.clone();
        if let Some(target) = target {
            self.note(
                target,
                &format!("{} is renamed over {}", from.display(), to.display()),
            );
        }
        // Of two names of one file both stay.
        if target != Some(id) {
            names.remove(&to);
            rename(&mut names, &from, &to);
        }
        self.expect_names(names);
        let done = self.rename_now(&from, &to, flags);
        self.settle_names("rename", id, done)?;
        self.look_at([&from, &to])
    }

    /// Both names lead where they should, or nowhere.
    pub fn look_at<'a>(&mut self, names: impl IntoIterator<Item = &'a PathBuf>) -> Step {
        for name in names {
            if self.names.contains_key(name) {
                self.check_name(name)?;
                continue;
            }
            let found = match fs::symlink_metadata(self.path(name)) {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                other => self.sort("lstat", 0, other)?,
            };
            if found.is_ok() {
                let places = self.on_branches(name);
                return self.wrong_node(0, &format!("{} is still there\n{places}", name.display()));
            }
        }
        Ok(())
    }

    pub fn rename_dir(&mut self) -> Step {
        let Some(from) = self.any_name(What::Dir) else {
            return self.make_dir();
        };
        let id = self.names[&from];
        let to = match self.any_name(What::Dir) {
            Some(other) if self.random.u32(0..4) == 0 => other,
            _ => self.some_name('d', 4),
        };
        self.note(
            id,
            &format!("rename directory {} to {}", from.display(), to.display()),
        );
        let below = children(&self.names, &from);
        for (_, child) in below {
            let text = format!("above: rename {} to {}", from.display(), to.display());
            self.note(child, &text);
        }
        if from == to {
            return Ok(());
        }
        if to.starts_with(&from) {
            let done = self.rename_now(&from, &to, RenameFlags::empty());
            return self.must_fail("rename", id, done, &[libc::EINVAL]);
        }
        if to.components().count() + self.depth_below(&from) > 6 {
            return Ok(());
        }
        if let Some(target) = self.names.get(&to) {
            if self.nodes[target].what != What::Dir {
                let done = self.rename_now(&from, &to, RenameFlags::empty());
                return self.must_fail("rename", id, done, &[libc::ENOTDIR, libc::ENOTEMPTY]);
            }
            let full = !children(&self.names, &to).is_empty();
            if full {
                let done = self.rename_now(&from, &to, RenameFlags::empty());
                let codes = [libc::ENOTEMPTY, libc::EEXIST];
                return self.must_fail("rename", id, done, &codes);
            }
        }
        let mut names = self.names.clone();
        names.remove(&to);
        rename(&mut names, &from, &to);
        self.expect_names(names);
        let done = self.rename_now(&from, &to, RenameFlags::empty());
        self.settle_names("rename", id, done)?;
        self.look_at([&from, &to])?;
        self.use_below(&to)
    }

    pub fn depth_below(&self, dir: &Path) -> usize {
        let below = self.names.keys().filter(|path| path.starts_with(dir));
        let depths = below.map(|path| path.components().count() - dir.components().count());
        depths.max().unwrap_or(0)
    }

    /// Some of what is below a directory.
    pub fn use_below(&mut self, dir: &Path) -> Step {
        let below: Vec<PathBuf> = self
            .names
            .keys()
            .filter(|path| path.starts_with(dir))
            .cloned()
            .collect();
        for _ in 0..below.len().min(4) {
            let name = below[self.random.usize(0..below.len())].clone();
            if self.names.contains_key(&name) {
                self.check_name(&name)?;
            }
        }
        Ok(())
    }

    pub fn exchange_names(&mut self) -> Step {
        let what = if self.random.bool() {
            What::File
        } else {
            What::Dir
        };
        let (Some(one), Some(other)) = (self.any_name(what), self.any_name(What::File)) else {
            return Ok(());
        };
        if one == other || other.starts_with(&one) || one.starts_with(&other) {
            return Ok(());
        }
        let ids = [self.names[&one], self.names[&other]];
        for id in ids {
            self.note(
                id,
                &format!("exchange {} and {}", one.display(), other.display()),
            );
        }
        let mut names = self.names.clone();
        exchange(&mut names, &one, &other);
        self.expect_names(names);
        let done = self.rename_now(&one, &other, RenameFlags::EXCHANGE);
        self.settle_names("exchange", ids[0], done)?;
        self.look_at([&one, &other])
    }

    pub fn link(&mut self) -> Step {
        let Some(from) = self.any_name(What::File) else {
            return Ok(());
        };
        let (id, to) = (self.names[&from], self.some_name('f', 9));
        self.note(id, &format!("link {} as {}", from.display(), to.display()));
        let done = fs::hard_link(self.path(&from), self.path(&to));
        if self.names.contains_key(&to) {
            return self.must_fail("link", id, done, &[libc::EEXIST]);
        }
        let mut names = self.names.clone();
        names.insert(to.clone(), id);
        self.expect_names(names);
        self.settle_names("link", id, done)?;
        self.look_at([&from, &to])
    }

    pub fn unlink(&mut self) -> Step {
        let what = if self.random.u32(0..6) == 0 {
            What::Symlink
        } else {
            What::File
        };
        let Some(name) = self.any_name(what) else {
            return Ok(());
        };
        let id = self.names[&name];
        self.note(id, &format!("unlink {}", name.display()));
        let mut names = self.names.clone();
        names.remove(&name);
        self.expect_names(names);
        let done = fs::remove_file(self.path(&name));
        self.settle_names("unlink", id, done)?;
        self.look_at([&name])?;
        if let Some(at) = self.kept.iter().position(|kept| kept.id == id) {
            let file = self.kept[at].file.try_clone().unwrap();
            self.check_fstat(id, &file)?;
        }
        let dir = name.parent().unwrap().to_path_buf();
        self.check_listing(&dir)
    }

    pub fn remove_dir(&mut self) -> Step {
        let Some(name) = self.any_name(What::Dir) else {
            return Ok(());
        };
        let id = self.names[&name];
        self.note(id, &format!("rmdir {}", name.display()));
        if !children(&self.names, &name).is_empty() {
            let done = fs::remove_dir(self.path(&name));
            return self.must_fail("rmdir", id, done, &[libc::ENOTEMPTY]);
        }
        let mut names = self.names.clone();
        names.remove(&name);
        self.expect_names(names);
        let done = fs::remove_dir(self.path(&name));
        self.settle_names("rmdir", id, done)?;
        self.look_at([&name])
    }

    pub fn symlink(&mut self) -> Step {
        let name = self.some_name('l', 4);
        let target = format!("to-{}", self.random.u32(..));
        let make = |path: PathBuf| std::os::unix::fs::symlink(&target, path);
        let done = |worker: &Worker| make(worker.path(&name));
        if let Some(id) = self.names.get(&name).copied() {
            let done = done(self);
            return self.must_fail("symlink", id, done, &[libc::EEXIST]);
        }
        let id = self.new_id();
        self.note(id, &format!("symlink {} to {target}", name.display()));
        let mut names = self.names.clone();
        names.insert(name.clone(), id);
        self.expect_names(names);
        let mut node = Node::new(What::Symlink, 0o777);
        node.target.clone_from(&target);
        self.expect(id, node);
        let done = done(self);
        self.settle_names("symlink", id, done)?;
        self.look_at([&name])
    }

    pub fn set_attr(&mut self) -> Step {
        let Some(name) = self.any_name(What::File) else {
            return Ok(());
        };
        let (id, path) = (self.names[&name], self.path(&name));
        let most = if self.config.many_attrs { 300 } else { 4 };
        let attr = format!("user.m{}", self.random.u32(0..most));
        let mut post = self.nodes[&id].clone();
        let removes = self.random.u32(0..3) == 0 && !post.attrs.is_empty();
        let done = if removes {
            self.note(id, &format!("remove {attr}"));
            let was = post.attrs.remove(&attr).is_some();
            self.expect(id, post);
            let done = rustix::fs::removexattr(&path, &attr).map_err(io::Error::from);
            if !was {
                self.forget();
                return self.must_fail("removexattr", id, done, &[libc::ENODATA]);
            }
            done
        } else {
            let len = self.random.usize(0..300);
            let value = self.data(len);
            self.note(id, &format!("set {attr} of {len} bytes"));
            post.attrs.insert(attr.clone(), value.clone());
            self.expect(id, post);
            rustix::fs::setxattr(&path, &attr, &value, XattrFlags::empty()).map_err(io::Error::from)
        };
        // On ext4 the attributes of a file have one block together.
        let is_full = |error: &io::Error| error.raw_os_error() == Some(libc::ENOSPC);
        if self.config.has("ext4") && done.as_ref().is_err_and(is_full) {
            self.forget();
        } else {
            self.settle_names("attribute", id, done)?;
        }
        self.check_name(&name)
    }

    pub fn change_mode(&mut self) -> Step {
        // btrfs at its quota changes the mode and says that it has not.
        if self.config.has_quota() {
            return Ok(());
        }
        // A copy of a directory on a read-only branch keeps its mode, and may be the first one day.
        let what = if self.random.bool() || self.config.modes {
            What::File
        } else {
            What::Dir
        };
        let Some(name) = self.any_name(what) else {
            return Ok(());
        };
        let id = self.names[&name];
        let modes: &[u32] = match what {
            What::Dir => &[0o700, 0o755, 0o1777, 0o711],
            // Not set-id bits: what takes them away is documented, and a test of its own.
            _ => &[0o600, 0o644, 0o444, 0o755, 0o000],
        };
        let mode = modes[self.random.usize(0..modes.len())];
        self.note(id, &format!("chmod {mode:o}"));
        let mut post = self.nodes[&id].clone();
        post.mode = mode;
        self.expect(id, post);
        let done = fs::set_permissions(self.path(&name), PermissionsExt::from_mode(mode));
        self.settle_names("chmod", id, done)?;
        self.check_name(&name)
    }

    pub fn set_times(&mut self) -> Step {
        // As for modes.
        if self.config.has_quota() {
            return Ok(());
        }
        let Some(name) = self.any_name(What::File) else {
            return Ok(());
        };
        let id = self.names[&name];
        let seconds = i64::from(self.random.u32(1_000_000..1_600_000_000));
        let nanos = i64::from(self.random.u32(0..1_000_000_000));
        self.note(id, &format!("utimens {seconds}.{nanos}"));
        let mut post = self.nodes[&id].clone();
        post.set_time = Some(i128::from(seconds) * 1_000_000_000 + i128::from(nanos));
        post.floor = 0;
        self.expect(id, post);
        let time = rustix::fs::Timespec {
            tv_sec: seconds,
            tv_nsec: nanos as _,
        };
        let times = rustix::fs::Timestamps {
            last_access: time,
            last_modification: time,
        };
        let path = self.path(&name);
        let done = rustix::fs::utimensat(CWD, &path, &times, rustix::fs::AtFlags::empty());
        self.settle_names("utimens", id, done.map_err(io::Error::from))?;
        self.check_name(&name)
    }

    /// A file's names, to be taken along by those who change it on its branch.
    pub fn names_without(&self, name: &Path) -> Names {
        let mut names = self.names.clone();
        names.remove(name);
        names
    }
}

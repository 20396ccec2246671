//! Steps that other programs would do, on a branch: the pool shows them soon, and meanwhile shows the
//! state before.

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::control::Word;
use super::tree::{Id, What};
use super::worker::{Step, Trouble, Worker, ask_server, wrong};

/// Long for a machine under load; `SlowestMicros` says what it was.
const PATIENCE: Duration = Duration::from_secs(20);

impl Worker {
    pub fn behind_step(&mut self) -> Step {
        let touched = self.change_behind()?;
        self.until_shown(touched)
    }

    /// Makes one change, and says to which names.
    pub fn change_behind(&mut self) -> Step<Vec<PathBuf>> {
        let nothing = Ok(Vec::new());
        let Some(name) = self.any_name(What::File) else {
            return nothing;
        };
        let id = self.names[&name];
        // Programs that have it open are another matter.
        self.kept.retain(|kept| kept.id != id);
        self.drop_nameless();
        let relative = Path::new(&self.own_name()).join(&name);
        let places = self.branches.iter().map(|branch| branch.join(&relative));
        let Some(place) = places
            .into_iter()
            .find(|path| fs::symlink_metadata(path).is_ok())
        else {
            return nothing;
        };
        let mut post = self.nodes[&id].clone();
        post.set_time = None;
        post.floor = 0;
        post.solid = false;
        let len = 1 + self.random.usize(0..9000);
        let data = self.data(len);
        let at = self.random.usize(0..=post.bytes.len());
        let open = || OpenOptions::new().write(true).open(&place);
        let mut names = None;
        let done = match self.random.u32(0..6) {
            0 => {
                self.note(
                    id,
                    &format!("behind: write {len} at {at} in {}", name.display()),
                );
                post.write(at, &data);
                open().and_then(|file| file.write_all_at(&data, at as u64))
            }
            1 => {
                self.note(id, &format!("behind: truncate to {at} {}", name.display()));
                post.resize(at);
                open().and_then(|file| file.set_len(at as u64))
            }
            2 => {
                self.note(id, &format!("behind: chmod 640 {}", name.display()));
                post.mode = 0o640;
                fs::set_permissions(&place, PermissionsExt::from_mode(0o640))
            }
            3 => {
                self.note(id, &format!("behind: unlink {}", name.display()));
                names = Some(self.names_without(&name));
                fs::remove_file(&place)
            }
            4 => {
                let number = self.random.u32(0..9);
                let to = name.with_file_name(format!("f{number}"));
                if self.names.contains_key(&to) {
                    return nothing;
                }
                self.note(
                    id,
                    &format!("behind: rename {} to {}", name.display(), to.display()),
                );
                let mut changed = self.names_without(&name);
                changed.insert(to.clone(), id);
                names = Some(changed);
                fs::rename(&place, place.with_file_name(to.file_name().unwrap()))
            }
            _ => return self.make_behind(&place, &name),
        };
        if let Err(error) = done {
            // A full branch: what is there now is not known.
            return wrong(format!(
                "the test's own change of {}: {error}",
                place.display()
            ));
        }
        self.nodes.insert(id, post);
        let old = self.names.clone();
        if let Some(names) = names {
            self.names = names;
        }
        self.drop_nameless();
        let touched: Vec<PathBuf> = old.keys().chain(self.names.keys()).cloned().collect();
        let is_touched =
            |path: &PathBuf| old.get(path) != self.names.get(path) || old.get(path) == Some(&id);
        Ok(touched.into_iter().filter(is_touched).collect())
    }

    fn make_behind(&mut self, place: &Path, beside: &Path) -> Step<Vec<PathBuf>> {
        let number = self.random.u32(0..9);
        let name = beside.with_file_name(format!("f{number}"));
        if self.names.contains_key(&name) {
            return Ok(Vec::new());
        }
        // The name is asked for first: that it is not there is remembered then.
        if self.root_fd.is_some() && fs::symlink_metadata(self.path(&name)).is_ok() {
            return wrong(format!(
                "{} is there\n{}",
                name.display(),
                self.on_branches(&name)
            ));
        }
        let id = self.new_id();
        self.note(id, &format!("behind: make {}", name.display()));
        let len = self.random.usize(0..9000);
        let data = self.data(len);
        let mut node = super::tree::Node::new(What::File, 0o600);
        node.bytes.clone_from(&data);
        let path = place.with_file_name(name.file_name().unwrap());
        let made = fs::write(&path, &data)
            .and_then(|()| fs::set_permissions(&path, PermissionsExt::from_mode(0o600)));
        if let Err(error) = made {
            return wrong(format!(
                "the test's own change of {}: {error}",
                path.display()
            ));
        }
        self.nodes.insert(id, node);
        self.names.insert(name.clone(), id);
        if self.root_fd.is_some() && self.random.bool() {
            self.open_what_appeared(id, &name)?;
        }
        Ok(vec![name])
    }

    /// A program makes the file that has just appeared, before the pool may have heard of it.
    fn open_what_appeared(&mut self, id: Id, name: &Path) -> Step {
        self.note(id, "open with O_CREAT and O_TRUNC what appeared");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let opened = self.sort("open what appeared", id, options.open(self.path(name)))?;
        let Ok(mut file) = opened else {
            // Its branch is read-only at this moment.
            return Ok(());
        };
        self.nodes.get_mut(&id).unwrap().resize(0);
        let end = self.sort("SEEK_END", id, file.seek(SeekFrom::End(0)))?;
        if end != Ok(0) {
            return self.wrong_node(id, &format!("SEEK_END of what appeared: {end:?}"));
        }
        let len = self.random.usize(0..9000);
        let data = self.data(len);
        self.write_to(id, &file, 0, &data)?;
        self.read_back(id, &file, 0, len)
    }

    /// Waits until the pool shows the model's state of these names, in listings as well: the kernel
    /// keeps those, and drops them when the change is reported, which a look at a name may be ahead of.
    pub fn until_shown(&mut self, names: impl IntoIterator<Item = PathBuf>) -> Step {
        let names: Vec<PathBuf> = names.into_iter().collect();
        let start = Instant::now();
        loop {
            let mut complaint = None;
            for name in &names {
                let shown = if self.names.contains_key(name) {
                    self.check_name(name)
                } else if fs::symlink_metadata(self.path(name)).is_ok() {
                    wrong(format!("{} is still there", name.display()))
                } else {
                    Ok(())
                };
                match shown {
                    Ok(()) => {}
                    Err(Trouble::Gone) => return Err(Trouble::Gone),
                    Err(Trouble::Wrong(what)) => {
                        complaint = Some(what);
                        break;
                    }
                }
            }
            for dir in names.iter().filter_map(|name| name.parent()) {
                if complaint.is_none() && !self.is_listed_right(dir)? {
                    complaint = Some(format!("the listing of {}", dir.display()));
                }
            }
            let Some(what) = complaint else { break };
            self.sort("statfs", 0, ask_server(&self.own_dir()))?.ok();
            if start.elapsed() > PATIENCE {
                return wrong(format!("not shown after {PATIENCE:?}: {what}"));
            }
        }
        let micros = start.elapsed().as_micros() as u64;
        let slowest = self.control.word(Word::SlowestMicros);
        slowest.fetch_max(micros, Ordering::AcqRel);
        Ok(())
    }
}

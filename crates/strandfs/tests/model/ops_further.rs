//! Steps that concern what is in files, by further ways: ranges copied, mappings, handles, locks.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::ops_data::{MOST_BYTES, open_plain};
use super::support::files::SharedMap;
use super::tree::What;
use super::worker::{Step, Worker, coarse_now};

impl Worker {
    pub fn copy_range(&mut self) -> Step {
        let Some(name) = self.any_name(What::File) else {
            return Ok(());
        };
        let from_id = self.names[&name];
        let Ok(from) = self.sort("open", from_id, open_plain(&self.path(&name), 0))? else {
            return self.wrong_node(from_id, "open: refused");
        };
        let Some((id, file)) = self.any_open()? else {
            return Ok(());
        };
        let (at, len, to) = (self.place(from_id), 1 + self.length(), self.place(id));
        let overlaps = id == from_id && at < to + len && to < at + len;
        if overlaps || to + len > MOST_BYTES {
            return Ok(());
        }
        let what = format!("copy {len} at {at} of {} to {to}", name.display());
        self.note(id, &what);
        self.note(from_id, &format!("{what} (source)"));
        let since = coarse_now();
        let pre = self.nodes[&id].clone();
        let source = self.nodes[&from_id].bytes.clone();
        let there = source.len().saturating_sub(at).min(len);
        let mut post = pre.clone();
        post.torn |= self.nodes[&from_id].torn;
        post.write(to, source.get(at..at + there).unwrap_or_default());
        post.solid = false;
        self.expect(id, post);
        let (mut offset_in, mut offset_out) = (at as u64, to as u64);
        let copied = rustix::fs::copy_file_range(
            &from,
            Some(&mut offset_in),
            &file,
            Some(&mut offset_out),
            len,
        );
        match self.sort("copy_file_range", id, copied.map_err(io::Error::from))? {
            Ok(count) if count == there => self.commit(),
            Ok(count) if count > 0 && count < there => {
                self.note(id, &format!("only {count} were copied"));
                let mut pre = pre;
                pre.torn |= self.nodes[&from_id].torn;
                self.written_in_part(id, &file, (&pre, to), (count, &source[at..]))?;
            }
            Ok(count) => {
                let text = format!(
                    "copy_file_range: {count} of {there}, source of {}",
                    source.len()
                );
                return self.wrong_node(id, &text);
            }
            Err(code) => {
                self.note(id, &format!("refused: {code}"));
                self.adopt(id, &file, "copy_file_range")?;
                return self.check_fstat(id, &file);
            }
        }
        if there > 0 {
            self.touched(id, since);
        }
        for id in [id, from_id] {
            // They may share blocks: a store in one may need room then.
            self.nodes.get_mut(&id).unwrap().solid = false;
        }
        self.check_fstat(id, &file)?;
        self.read_back(id, &file, to, there)?;
        self.keep(id, file, true);
        Ok(())
    }

    /// Stores where every byte has its room; nothing else can be stored for sure.
    pub fn store_mapped(&mut self) -> Step {
        let Some((id, file)) = self.any_open()? else {
            return Ok(());
        };
        let len = self.nodes[&id].bytes.len();
        if len == 0 || !self.nodes[&id].solid {
            return Ok(());
        }
        // On btrfs a change takes new room.
        if self.config.short && self.config.has("btrfs") {
            return Ok(());
        }
        let at = self.random.usize(0..len);
        let count = (1 + self.random.usize(0..20_000)).min(len - at);
        let data = self.data(count);
        self.note(id, &format!("store {count} at {at}, mapped {len}"));
        let mut post = self.nodes[&id].clone();
        post.write(at, &data);
        self.expect(id, post);
        let mapped = SharedMap::new(&file, len);
        let mut map = match mapped {
            // Files that bypass the page cache may not be mapped in some configurations.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                self.forget();
                return Ok(());
            }
            other => match self.sort("mmap", id, other)? {
                Ok(map) => map,
                Err(_) => {
                    self.forget();
                    return Ok(());
                }
            },
        };
        if self.random.bool() {
            let found = self.sort("load from a mapping", id, map.try_bytes())?;
            let found = found.unwrap_or_default();
            if let Some(different) = self.nodes[&id].differs(&found) {
                return self.wrong_node(id, &format!("mapped: {different}"));
            }
        }
        let stored = map.try_store(at, &data);
        if let Err(code) = self.sort("store in a mapping where all has its room", id, stored)? {
            return self.wrong_node(id, &format!("store in a mapping: error {code}"));
        }
        let synced = map.try_sync();
        match self.sort("msync", id, synced)? {
            Ok(()) => {}
            Err(code) => return self.wrong_node(id, &format!("msync: error {code}")),
        }
        drop(map);
        self.commit();
        // When a mapped store sets the time is not known.
        let node = self.nodes.get_mut(&id).unwrap();
        (node.set_time, node.floor) = (None, 0);
        self.check_fstat(id, &file)?;
        self.read_back(id, &file, at, count)?;
        self.keep(id, file, true);
        Ok(())
    }

    pub fn sync_or_close(&mut self) -> Step {
        if self.kept.is_empty() {
            return Ok(());
        }
        let at = self.random.usize(0..self.kept.len());
        let id = self.kept[at].id;
        let synced = match self.random.u32(0..3) {
            0 => self.kept[at].file.sync_all(),
            1 => self.kept[at].file.sync_data(),
            _ => Ok(()),
        };
        let synced = self.sort("fsync", id, synced)?;
        if let Err(code) = synced {
            return self.wrong_node(id, &format!("fsync: error {code}"));
        }
        if self.random.bool() {
            self.kept.swap_remove(at);
            self.drop_nameless();
        }
        Ok(())
    }

    pub fn look_step(&mut self) -> Step {
        match self.random.u32(0..10) {
            0..4 => {
                if let Some(name) = self.any_name(What::File) {
                    self.check_name(&name)?;
                }
                Ok(())
            }
            4..6 => match self.any_name(What::File) {
                // What is only in the kernel yet is on no branch.
                Some(name) if !self.config.writeback => self.check_on_branches(&name),
                _ => Ok(()),
            },
            6 => self.by_handle(),
            7 => self.flock_own(),
            _ => {
                let dir = self.any_dir();
                self.check_listing(&dir)
            }
        }
    }

    /// By handle as by name.
    pub fn by_handle(&mut self) -> Step {
        let Some(name) = self.any_name(What::File) else {
            return Ok(());
        };
        let id = self.names[&name];
        let path = self.path(&name);
        let handle = super::support::files::name_to_handle(&path);
        let Ok(handle) = self.sort("name_to_handle_at", id, handle)? else {
            return Ok(());
        };
        let opened =
            super::support::files::open_by_handle(&self.own_dir(), &handle, libc::O_RDONLY);
        match self.sort("open_by_handle_at", id, opened)? {
            Ok(file) => {
                self.check_fstat(id, &file)?;
                self.read_back(id, &file, 0, 20_000)
            }
            Err(code) => self.wrong_node(id, &format!("open_by_handle_at: error {code}")),
        }
    }

    /// A lock that nobody else wants is to be had, and keeps a second one away.
    pub fn flock_own(&mut self) -> Step {
        let Some(name) = self.any_name(What::File) else {
            return Ok(());
        };
        let id = self.names[&name];
        let path = self.path(&name);
        let mut two = Vec::new();
        for _ in 0..2 {
            match self.sort("open", id, open_plain(&path, 0))? {
                Ok(file) => two.push(file),
                Err(code) => return self.wrong_node(id, &format!("open: error {code}")),
            }
        }
        let lock = |file: &File, how| {
            // SAFETY: an open descriptor and a number.
            match unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // An earlier close, of which the kernel tells without waiting for the answer, is waited for.
        let own = lock(&two[0], libc::LOCK_EX);
        if let Err(code) = self.sort("flock", id, own)? {
            return self.wrong_node(id, &format!("flock: error {code}"));
        }
        match lock(&two[1], libc::LOCK_SH) {
            Err(error) if error.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(()),
            other => match self.sort("flock", id, other)? {
                Ok(()) => self.wrong_node(id, "both have a lock that only one can have"),
                Err(_) => Ok(()),
            },
        }
    }
}

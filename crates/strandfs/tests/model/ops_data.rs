//! Steps that concern what is in files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FallocateFlags;

use super::tree::{Id, Node, What, difference};
use super::worker::{Kept, Step, Worker, coarse_now};

/// No file grows beyond this.
pub const MOST_BYTES: usize = 3 << 20;
const MOST_KEPT: usize = 6;

/// Opens for reading, with these flags.
pub fn open_plain(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

impl Worker {
    pub fn data_step(&mut self) -> Step {
        match self.random.u32(0..100) {
            0..9 => self.make_file(),
            9..16 => self.open_anew(),
            16..34 => self.write_somewhere(),
            34..44 => self.append(),
            44..52 => self.cut_or_grow(),
            52..64 => self.allocate(),
            64..70 => self.punch_or_zero(),
            70..76 => self.read_somewhere(),
            76..84 => self.copy_range(),
            84..94 => self.store_mapped(),
            _ => self.sync_or_close(),
        }
    }

    /// Of a write, a part may have been done when there was no more room, or no more server.
    pub fn may_be_partial(&self) -> bool {
        self.config.short || self.config.kills
    }

    /// A length: mostly short, sometimes long.
    pub fn length(&mut self) -> usize {
        match self.random.u32(0..20) {
            0 => self.random.usize(0..1_400_000),
            1..6 => self.random.usize(0..200_000),
            6..9 => 4096 * self.random.usize(1..20),
            _ => self.random.usize(0..9000),
        }
    }

    /// A place in a file, sometimes beyond its end.
    pub fn place(&mut self, id: Id) -> usize {
        let len = self.nodes[&id].bytes.len();
        match self.random.u32(0..12) {
            0 => len + self.random.usize(0..100_000),
            1 => len,
            2..4 => 4096 * self.random.usize(0..=len / 4096),
            _ => self.random.usize(0..=len),
        }
    }

    pub fn flags(&mut self) -> i32 {
        match self.random.u32(0..10) {
            0 => libc::O_SYNC,
            1 => libc::O_DSYNC,
            _ => 0,
        }
    }

    /// A file, perhaps one without a name any more, open for writing; none where that is refused.
    pub fn any_open(&mut self) -> Step<Option<(Id, File)>> {
        let writable: Vec<usize> = (0..self.kept.len())
            .filter(|at| self.kept[*at].writable)
            .collect();
        if !writable.is_empty() && self.random.bool() {
            let kept = &self.kept[writable[self.random.usize(0..writable.len())]];
            return Ok(Some((kept.id, kept.file.try_clone().unwrap())));
        }
        let Some(name) = self.any_name(What::File) else {
            return Ok(None);
        };
        let id = self.names[&name];
        let flags = self.flags();
        let path = self.path(&name);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(&path);
        match self.sort("open to write", id, opened)? {
            Ok(file) => {
                self.check_fstat(id, &file)?;
                Ok(Some((id, file)))
            }
            Err(_) => Ok(None),
        }
    }

    /// Perhaps it stays open.
    pub fn keep(&mut self, id: Id, file: File, writable: bool) {
        if self.random.u32(0..4) > 0 {
            return;
        }
        self.kept.push(Kept { file, id, writable });
        if self.kept.len() > MOST_KEPT {
            let at = self.random.usize(0..MOST_KEPT);
            self.kept.swap_remove(at);
            self.drop_nameless();
        }
    }

    /// A node that no name and no open file leads to is no more.
    pub fn drop_nameless(&mut self) {
        let mut held: Vec<Id> = self.names.values().copied().collect();
        held.extend(self.kept.iter().map(|kept| kept.id));
        self.nodes.retain(|id, _| held.contains(id));
    }

    pub fn make_file(&mut self) -> Step {
        let name = self.some_name('f', 9);
        let mode = [0o600, 0o644, 0o640, 0o666][self.random.usize(0..4)];
        let path = self.path(&name);
        let exclusive = self.random.bool();
        if self.names.contains_key(&name) {
            let id = self.names[&name];
            let made = OpenOptions::new().write(true).create_new(true).open(&path);
            return match made {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
                other => match self.sort("create over a name", id, other)? {
                    Ok(_) => self.wrong_node(id, "made though it was there"),
                    Err(_) => Ok(()),
                },
            };
        }
        let id = self.new_id();
        self.note(id, &format!("make {} mode {mode:o}", name.display()));
        let since = coarse_now();
        let mut names = self.names.clone();
        names.insert(name, id);
        self.expect_names(names);
        self.expect(id, Node::new(What::File, mode));
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(mode).create(true);
        options.create_new(exclusive);
        let made = self.sort("make", id, options.open(&path))?;
        let Ok(file) = made else {
            self.forget();
            return Ok(());
        };
        self.commit();
        self.touched(id, since);
        self.check_fstat(id, &file)?;
        let data_len = self.length();
        let data = self.data(data_len);
        self.write_to(id, &file, 0, &data)?;
        self.keep(id, file, true);
        Ok(())
    }

    /// O_CREAT with O_TRUNC, of what is there and of what is not.
    pub fn open_anew(&mut self) -> Step {
        let Some(name) = self.any_name(What::File) else {
            return self.make_file();
        };
        let id = self.names[&name];
        self.note(id, &format!("open with O_TRUNC as {}", name.display()));
        let since = coarse_now();
        let mut post = self.nodes[&id].clone();
        post.resize(0);
        post.solid = true;
        self.expect(id, post);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let opened = self.sort("open with O_TRUNC", id, options.open(self.path(&name)))?;
        let mut file = match opened {
            Ok(file) => file,
            Err(code) => {
                self.note(id, &format!("refused: {code}"));
                if !self.config.has_quota() {
                    self.forget();
                    return Ok(());
                }
                self.note_torn(id, 0);
                let found = open_plain(&self.path(&name), 0);
                return match self.sort("open what was not truncated", id, found)? {
                    Ok(found) => self.adopt(id, &found, "open with O_TRUNC"),
                    Err(code) => self.wrong_node(id, &format!("open: error {code}")),
                };
            }
        };
        self.commit();
        self.touched(id, since);
        use std::io::Seek;
        let end = self.sort("SEEK_END", id, file.seek(io::SeekFrom::End(0)))?;
        if end != Ok(0) {
            return self.wrong_node(id, &format!("SEEK_END after O_TRUNC: {end:?}"));
        }
        self.check_fstat(id, &file)?;
        let len = self.length();
        let data = self.data(len);
        self.write_to(id, &file, 0, &data)?;
        self.keep(id, file, true);
        Ok(())
    }

    pub fn write_to(&mut self, id: Id, file: &File, at: usize, data: &[u8]) -> Step {
        if at + data.len() > MOST_BYTES {
            return Ok(());
        }
        self.note(id, &format!("write {} bytes at {at}", data.len()));
        let since = coarse_now();
        let pre = self.nodes[&id].clone();
        let mut post = pre.clone();
        post.write(at, data);
        self.expect(id, post);
        match self.sort("write", id, file.write_at(data, at as u64))? {
            Ok(count) if count == data.len() => self.commit(),
            Ok(count) if self.may_be_partial() && count > 0 => {
                self.note(id, &format!("only {count} were written"));
                self.written_in_part(id, file, (&pre, at), (count, data))?;
            }
            Ok(count) => return self.wrong_node(id, &format!("{count} of {} bytes", data.len())),
            Err(code) => {
                self.note(id, &format!("refused: {code}"));
                self.adopt(id, file, "write")?;
                return self.check_fstat(id, file);
            }
        }
        if !data.is_empty() {
            self.touched(id, since);
        }
        self.check_fstat(id, file)
    }

    /// Where the server died in a write, the kernel tells of the part that it had heard to be done;
    /// more of it may be.
    pub fn written_in_part(
        &mut self,
        id: Id,
        file: &File,
        (pre, at): (&Node, usize),
        (count, data): (usize, &[u8]),
    ) -> Step {
        let mut part = pre.clone();
        part.write(at, &data[..count]);
        self.nodes.insert(id, part);
        // On its way is still the whole.
        let asked = rustix::fs::statx(
            file,
            "",
            rustix::fs::AtFlags::EMPTY_PATH | rustix::fs::AtFlags::STATX_FORCE_SYNC,
            rustix::fs::StatxFlags::BASIC_STATS,
        );
        let asked = self.sort("statx", id, asked.map_err(io::Error::from))?;
        if let Err(code) = asked {
            return self.wrong_node(id, &format!("statx: error {code}"));
        }
        self.forget();
        Ok(())
    }

    pub fn write_somewhere(&mut self) -> Step {
        let Some((id, file)) = self.any_open()? else {
            return Ok(());
        };
        let (at, len) = (self.place(id), self.length());
        let data = self.data(len);
        self.write_to(id, &file, at, &data)?;
        if self.random.u32(0..4) == 0 {
            let len = data.len().min(5000);
            self.read_back(id, &file, at, len)?;
        }
        self.keep(id, file, true);
        Ok(())
    }

    /// O_APPEND: the bytes come where the file ended.
    pub fn append(&mut self) -> Step {
        let Some(name) = self.any_name(What::File) else {
            return Ok(());
        };
        let id = self.names[&name];
        let opened = OpenOptions::new()
            .read(true)
            .append(true)
            .open(self.path(&name));
        let Ok(mut file) = self.sort("open to append", id, opened)? else {
            return Ok(());
        };
        for _ in 0..self.random.u32(1..4) {
            let len = 1 + self.length();
            let data = self.data(len);
            let at = self.nodes[&id].bytes.len();
            if at + data.len() > MOST_BYTES {
                return Ok(());
            }
            self.note(id, &format!("append {} bytes at {at}", data.len()));
            let since = coarse_now();
            let pre = self.nodes[&id].clone();
            let mut post = pre.clone();
            post.write(at, &data);
            self.expect(id, post);
            use std::io::{Seek, Write};
            match self.sort("append", id, file.write(&data))? {
                Ok(count) if count == data.len() => self.commit(),
                Ok(count) if self.may_be_partial() && count > 0 => {
                    self.written_in_part(id, &file, (&pre, at), (count, &data))?;
                }
                Ok(count) => return self.wrong_node(id, &format!("appended {count}")),
                Err(code) => {
                    self.note(id, &format!("refused: {code}"));
                    self.adopt(id, &file, "append")?;
                    return self.check_fstat(id, &file);
                }
            }
            self.touched(id, since);
            let position = file.stream_position().unwrap();
            if position != self.nodes[&id].bytes.len() as u64 {
                return self.wrong_node(id, &format!("appended up to {position}"));
            }
            self.check_fstat(id, &file)?;
        }
        let len = self.nodes[&id].bytes.len();
        let from = len.saturating_sub(9000);
        self.read_back(id, &file, from, len - from)
    }

    pub fn cut_or_grow(&mut self) -> Step {
        let Some((id, file)) = self.any_open()? else {
            return Ok(());
        };
        let len = self.place(id).min(MOST_BYTES);
        self.note(id, &format!("ftruncate to {len}"));
        let since = coarse_now();
        let was = self.nodes[&id].bytes.len();
        let mut post = self.nodes[&id].clone();
        post.resize(len);
        self.expect(id, post);
        match self.sort("ftruncate", id, file.set_len(len as u64))? {
            Ok(()) => {
                self.commit();
                if was != len {
                    self.touched(id, since);
                } else {
                    self.nodes.get_mut(&id).unwrap().set_time = None;
                }
            }
            Err(code) => {
                self.note(id, &format!("refused: {code}"));
                self.note_torn(id, len);
                self.adopt(id, &file, "ftruncate")?;
            }
        }
        self.check_fstat(id, &file)?;
        self.read_back(id, &file, len.saturating_sub(3000), 6000)?;
        self.keep(id, file, true);
        Ok(())
    }

    /// Room for bytes; where there is none, the size is what it was.
    pub fn allocate(&mut self) -> Step {
        let Some((id, file)) = self.any_open()? else {
            return Ok(());
        };
        let keeps_size = self.random.u32(0..4) == 0;
        let huge = self.config.short && self.random.u32(0..5) == 0;
        let at = self.place(id);
        let len = if huge {
            self.random.usize(20 << 20..60 << 20)
        } else {
            1 + self.length()
        };
        let flags = if keeps_size {
            FallocateFlags::KEEP_SIZE
        } else {
            FallocateFlags::empty()
        };
        if !huge && at + len > MOST_BYTES {
            return Ok(());
        }
        self.note(
            id,
            &format!("fallocate {len} at {at}, keeps size: {keeps_size}"),
        );
        let mut post = self.nodes[&id].clone();
        let was = post.bytes.len();
        if !keeps_size && post.bytes.len() < at + len {
            let solid = post.solid && at <= was;
            post.resize(at + len);
            post.solid = solid;
        }
        // All of it has its room.
        post.solid |= at == 0 && len >= post.bytes.len();
        self.expect(id, post);
        let done = rustix::fs::fallocate(&file, flags, at as u64, len as u64);
        match self.sort("fallocate", id, done.map_err(io::Error::from))? {
            Ok(()) => {
                self.commit();
                self.nodes.get_mut(&id).unwrap().set_time = None;
            }
            Err(code) => {
                self.note(id, &format!("refused: {code}"));
                self.adopt(id, &file, "fallocate")?;
                let now = self.nodes[&id].bytes.len();
                if now != was {
                    return self.wrong_node(id, &format!("a refused fallocate: {now} bytes"));
                }
            }
        }
        self.check_fstat(id, &file)?;
        if huge {
            // What a program does that wanted it for a record.
            let room = self.nodes[&id].bytes.len();
            if room > MOST_BYTES {
                self.cut(id, &file, was)?;
            }
        }
        self.keep(id, file, true);
        Ok(())
    }

    pub fn cut(&mut self, id: Id, file: &File, len: usize) -> Step {
        self.note(id, &format!("ftruncate to {len}"));
        let mut post = self.nodes[&id].clone();
        post.resize(len);
        self.expect(id, post);
        match self.sort("ftruncate", id, file.set_len(len as u64))? {
            Ok(()) => self.commit(),
            Err(_) => {
                self.note_torn(id, len);
                self.adopt(id, file, "ftruncate")?;
            }
        }
        self.nodes.get_mut(&id).unwrap().set_time = None;
        self.check_fstat(id, file)
    }

    /// A cut was refused. btrfs at its quota has let go of what was behind the new end in the page cache
    /// then: what was not written yet is lost, and the rest of a block reads as zeros until the page is
    /// dropped. So it does on the bare filesystem.
    pub fn note_torn(&mut self, id: Id, len: usize) {
        let quota = self.config.has_quota();
        let node = self.nodes.get_mut(&id).unwrap();
        node.torn |= quota && len < node.bytes.len();
    }

    pub fn punch_or_zero(&mut self) -> Step {
        let Some((id, file)) = self.any_open()? else {
            return Ok(());
        };
        let punch = self.random.bool();
        let (at, len) = (self.place(id), 1 + self.length());
        let flags = if punch {
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
        } else {
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
        };
        self.note(id, &format!("punch {punch} or zero, {len} at {at}"));
        let mut post = self.nodes[&id].clone();
        let end = post.bytes.len().min(at + len);
        if at < end {
            post.bytes[at..end].fill(0);
        }
        post.solid &= !punch;
        self.expect(id, post);
        let done = rustix::fs::fallocate(&file, flags, at as u64, len as u64);
        match done {
            // tmpfs knows no ZERO_RANGE.
            Err(rustix::io::Errno::OPNOTSUPP) => {
                // Done in part on a disk that was full, from which the file moved there.
                self.adopt(id, &file, "punch or zero")?;
                if self.config.writeback {
                    // The kernel, which keeps the times then, has set them before it asked.
                    self.nodes.get_mut(&id).unwrap().set_time = None;
                }
            }
            other => match self.sort("punch or zero", id, other.map_err(io::Error::from))? {
                Ok(()) => {
                    self.commit();
                    self.nodes.get_mut(&id).unwrap().set_time = None;
                }
                Err(code) => {
                    self.note(id, &format!("refused: {code}"));
                    self.adopt(id, &file, "punch or zero")?;
                    // Refused for want of room, ext4 has zeros in its page cache and the old bytes on
                    // disk, where O_DIRECT reads them: on the bare filesystem, too.
                    let bytes = self.nodes[&id].bytes.get(at..end).unwrap_or_default();
                    let bytes = bytes.to_vec();
                    self.write_to(id, &file, at, &bytes)?;
                }
            },
        }
        self.check_fstat(id, &file)?;
        self.read_back(id, &file, at, len.min(20_000))?;
        self.keep(id, file, true);
        Ok(())
    }

    pub fn read_back(&mut self, id: Id, file: &File, at: usize, len: usize) -> Step {
        let mut room = vec![0xA5; len];
        let mut done = 0;
        while done < len {
            let read = file.read_at(&mut room[done..], (at + done) as u64);
            match self.sort("read", id, read)? {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(code) => return self.wrong_node(id, &format!("read: error {code}")),
            }
        }
        let bytes = &self.nodes[&id].bytes;
        let expected = bytes.get(at..bytes.len().min(at + len)).unwrap_or_default();
        match difference(expected, &room[..done]) {
            None => Ok(()),
            Some(_) if self.nodes[&id].torn && done == expected.len() => Ok(()),
            Some(different) => self.wrong_node(id, &format!("read of {len} at {at}: {different}")),
        }
    }

    pub fn read_somewhere(&mut self) -> Step {
        if !self.kept.is_empty() && self.random.bool() {
            let at = self.random.usize(0..self.kept.len());
            let (id, file) = (self.kept[at].id, self.kept[at].file.try_clone().unwrap());
            let (at, len) = (self.place(id), self.length());
            return self.read_back(id, &file, at, len);
        }
        let Some(name) = self.any_name(What::File) else {
            return Ok(());
        };
        let id = self.names[&name];
        let opened = open_plain(&self.path(&name), 0);
        match self.sort("open", id, opened)? {
            Ok(file) => {
                let (at, len) = (self.place(id), self.length());
                self.read_back(id, &file, at, len)?;
                self.check_fstat(id, &file)?;
                self.keep(id, file, false);
                Ok(())
            }
            Err(code) => self.wrong_node(id, &format!("open: error {code}")),
        }
    }
}

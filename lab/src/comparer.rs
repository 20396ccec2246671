//! Whether files hold what was written to them.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

use crate::contents::{Contents, Holds};
use crate::pattern::{Aligned, Pattern};

/// Compares the files of a subject with what they are to hold.
pub(crate) struct Comparer<'a> {
    /// Whether a server gives the bytes.
    pub is_served: bool,
    /// What is written.
    pub pattern: &'a mut Pattern,
    /// What was written last.
    pub contents: &'a Contents,
    /// Room to read.
    pub buffer: &'a mut Aligned,
}

impl Comparer<'_> {
    /// A whole file of so many bytes, if that is known, of the pattern from `ahead` on.
    pub fn file(&mut self, path: &Path, bytes: Option<u64>, ahead: u64) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let mut file = self.open(path).map_err(failed)?;
        let mut at = 0;
        loop {
            let found = read_whole(&mut file, self.buffer.slice()).map_err(failed)?;
            if found == 0 {
                break;
            }
            self.compare(path, ahead, at, found)?;
            at += found as u64;
        }
        match bytes {
            Some(bytes) if bytes != at => Err(format!(
                "{}: it has {at} bytes where {bytes} were written",
                path.display()
            )),
            _ => Ok(()),
        }
    }

    /// The file that is written anew.
    pub fn file_if_any(&mut self, path: &Path, ahead: u64) -> Result<(), String> {
        match self.contents.anew_bytes {
            // None yet, or it could not be written, which is said there.
            None if !path.exists() => Ok(()),
            bytes => self.file(path, bytes, ahead),
        }
    }

    /// Places of the file that is read, each from where to where.
    pub fn places(&mut self, path: &Path, places: &[(u64, u64)]) -> Result<(), String> {
        if places.is_empty() {
            return Ok(());
        }
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = self.open(path).map_err(failed)?;
        for &(from, to) in places {
            let buffer = self.buffer.slice();
            let length = buffer.len().min((to - from) as usize);
            let Some(block) = buffer.get_mut(..length) else {
                continue;
            };
            file.read_exact_at(block, from).map_err(failed)?;
            self.compare(path, 0, from, length)?;
        }
        Ok(())
    }

    /// What a server keeps has to come from the server: without the pages that the kernel has above it.
    fn open(&self, path: &Path) -> std::io::Result<File> {
        let file = File::open(path)?;
        if self.is_served {
            // Whoever keeps them all the same is compared with what they are.
            let _ = fadvise(&file, 0, None, Advice::DontNeed);
        }
        Ok(file)
    }

    /// Whether the first bytes of the buffer are what the file holds at this place.
    fn compare(&mut self, path: &Path, ahead: u64, at: u64, length: usize) -> Result<(), String> {
        let end = at + length as u64;
        let parts = match ahead {
            0 => self.contents.between(at, end),
            _ => vec![(end, Holds::Pattern(0))],
        };
        let mut from = at;
        for (to, holds) in parts {
            let range = (from - at) as usize..(to - at) as usize;
            let found = self.buffer.slice().get(range).unwrap_or_default();
            if let Holds::Pattern(further) = holds {
                let same = self.pattern.check(ahead + further + from, found);
                same.map_err(|differs| {
                    let byte = from + differs as u64;
                    format!("{}: byte {byte} is not what was written", path.display())
                })?;
            }
            from = to;
        }
        Ok(())
    }
}

/// Fills `buffer` unless the file ends; servers may answer in pieces.
pub(crate) fn read_whole(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|it| !it.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

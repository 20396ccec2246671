//! Files that all workers share: a log, a counter behind a lock, a name that only one can make.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use super::checks::read_whole;
use super::control::Word;
use super::shared::{LOG_BYTES, RECORD_BYTES, record_of};
use super::worker::{Step, Worker, coarse_now, wrong};

impl Worker {
    /// Records of all workers in one file, each whole and once.
    pub fn append_record(&mut self) -> Step {
        let path = self.in_shared("log");
        let opened = OpenOptions::new()
            .append(true)
            .read(true)
            .create(true)
            .open(path);
        let Ok(mut file) = self.sort("open the log", 0, opened)? else {
            return Ok(());
        };
        if file.metadata().is_ok_and(|stat| stat.len() > LOG_BYTES) {
            return Ok(());
        }
        for _ in 0..self.random.u32(1..5) {
            let number = self.shared.records;
            self.say(&format!("append record {number}"));
            self.shared.records += 1;
            self.shared.records_perhaps.insert(number);
            let record = self.shared.record(number);
            let written = self.sort("append to the log", 0, file.write(&record))?;
            if written != Ok(RECORD_BYTES) {
                return wrong(format!("append to the log: {written:?}"));
            }
            self.shared.records_perhaps.remove(&number);
        }
        if self.random.u32(0..6) == 0 {
            return self.check_log();
        }
        Ok(())
    }

    pub fn check_log(&mut self) -> Step {
        let opened = File::open(self.in_shared("log"));
        let file = match opened {
            Err(error)
                if error.raw_os_error() == Some(libc::ENOENT) && self.shared.records == 0 =>
            {
                return Ok(());
            }
            other => self.sort("open the log", 0, other)?,
        };
        let Ok(file) = file else {
            return Ok(());
        };
        let Ok(mut found) = self.sort("read the log", 0, read_whole(&file))? else {
            return wrong("read the log: refused");
        };
        // The last one may be on its way.
        found.truncate(found.len() / RECORD_BYTES * RECORD_BYTES);
        let mut last = None;
        let mut seen = BTreeSet::new();
        for (at, record) in found.chunks(RECORD_BYTES).enumerate() {
            let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().unwrap());
            let (worker, number) = (word(0) as usize, word(4));
            if record != record_of(worker, number) {
                return wrong(format!("record {at} of the log is nobody's: {record:02x?}"));
            }
            if worker == self.number {
                if last.is_some_and(|last| last >= number) || !seen.insert(number) {
                    return wrong(format!(
                        "record {number} of {worker} is not where it belongs"
                    ));
                }
                last = Some(number);
            }
        }
        for number in 0..self.shared.records {
            if !seen.contains(&number) && !self.shared.records_perhaps.contains(&number) {
                return wrong(format!("record {number} of {} is lost", self.number));
            }
        }
        Ok(())
    }

    /// A number that grows by one under a lock.
    pub fn count(&mut self) -> Step {
        let path = self.in_shared("counter");
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let Ok(file) = self.sort("open the counter", 0, opened)? else {
            return Ok(());
        };
        let by_range = self.config.seed.is_multiple_of(2);
        let lock = |how: i32| {
            let done = if by_range {
                let lock = libc::flock {
                    l_type: how as i16,
                    l_whence: 0,
                    l_start: 0,
                    l_len: 8,
                    l_pid: 0,
                };
                // SAFETY: fcntl reads one flock structure for this command.
                unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLKW, &raw const lock) }
            } else {
                let how = if how == libc::F_WRLCK {
                    libc::LOCK_EX
                } else {
                    libc::LOCK_UN
                };
                // SAFETY: an open descriptor and a number.
                unsafe { libc::flock(file.as_raw_fd(), how) }
            };
            match done {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        if let Err(code) = self.sort("lock", 0, lock(libc::F_WRLCK))? {
            return wrong(format!("lock: error {code}"));
        }
        let mut bytes = [0; 8];
        let read = self.sort("read the counter", 0, file.read_at(&mut bytes, 0))?;
        if read != Ok(8) {
            return wrong(format!("the counter: {read:?}"));
        }
        let value = u64::from_le_bytes(bytes);
        let acknowledged = self.control.get(Word::Counted);
        let perhaps = self.control.get(Word::CountedPerhaps);
        if value < acknowledged || value > acknowledged + perhaps || value < self.shared.last_count
        {
            return wrong(format!(
                "the counter is at {value}, counted were {acknowledged} and perhaps {perhaps}"
            ));
        }
        self.shared.counting = true;
        let written = file.write_at(&(value + 1).to_le_bytes(), 0);
        match self.sort("write the counter", 0, written)? {
            Ok(8) => {}
            Ok(count) => return wrong(format!("the counter: {count} bytes written")),
            Err(_) => {
                self.shared.counting = false;
                return Ok(());
            }
        }
        self.shared.last_count = value + 1;
        self.control.add(Word::Counted, 1);
        self.shared.counting = false;
        if self.random.bool() {
            self.sort("unlock", 0, lock(libc::F_UNLCK))?.ok();
        }
        Ok(())
    }

    /// O_EXCL: of all who make a name one makes it.
    pub fn make_exclusively(&mut self) -> Step {
        let path = self.in_shared("exclusive");
        let made = OpenOptions::new().write(true).create_new(true).open(&path);
        match made {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => return Ok(()),
            other => {
                if self.sort("make exclusively", 0, other)?.is_err() {
                    return Ok(());
                }
            }
        }
        let own = self.number as u64 + 1;
        let word = self.control.word(Word::ExclusiveOwner);
        let taken = word.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
        if let Err(owner) = taken {
            return wrong(format!(
                "worker {} has it, and this one made it too",
                owner - 1
            ));
        }
        word.store(0, Ordering::Release);
        let since = coarse_now();
        loop {
            match self.sort("unlink", 0, fs::remove_file(&path))? {
                Ok(()) => break,
                // Its branch will take changes again.
                Err(_) if coarse_now() - since < 60_000_000_000 => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                Err(code) => return wrong(format!("unlink: error {code}")),
            }
        }
        Ok(())
    }
}

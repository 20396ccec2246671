//! What a server said last, in memory that its guardian has too: the log of a server in the background
//! may lead nowhere, and one that is killed says nothing at all.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;

/// So many lines are kept.
const SLOTS: u64 = 12;
const SLOT_BYTES: usize = 512;
/// Before the text: the number of the line.
const NUMBER_BYTES: usize = 8;
/// Behind them, once the server has ended in order.
const IN_ORDER: u8 = 1;

struct LastWords {
    memory: File,
    next: AtomicU64,
}

static LAST_WORDS: OnceLock<LastWords> = OnceLock::new();

/// Begins to keep them; panics are among them. Once.
///
/// # Errors
/// There is no memory.
pub fn keep() -> io::Result<()> {
    let memory = File::from(rustix::fs::memfd_create(
        "strandfs-last-words",
        MemfdFlags::CLOEXEC,
    )?);
    memory.set_len(SLOTS * SLOT_BYTES as u64 + 1)?;
    let next = AtomicU64::new(1);
    if LAST_WORDS.set(LastWords { memory, next }).is_ok() {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            note(&info.to_string());
            before(info);
        }));
    }
    Ok(())
}

/// Keeps a line, in place of the oldest.
pub fn note(line: &str) {
    let Some(words) = LAST_WORDS.get() else {
        return;
    };
    let number = words.next.fetch_add(1, Ordering::Relaxed);
    let mut slot = [0; SLOT_BYTES];
    let (head, text) = slot.split_at_mut(NUMBER_BYTES);
    head.copy_from_slice(&number.to_ne_bytes());
    for (place, byte) in text.iter_mut().zip(line.bytes()) {
        *place = byte;
    }
    let at = number % SLOTS * SLOT_BYTES as u64;
    let _ = words.memory.write_all_at(&slot, at);
}

/// The server ends because it was asked to, or has said why it cannot go on.
pub fn end_in_order() {
    if let Some(words) = LAST_WORDS.get() {
        let _ = words
            .memory
            .write_all_at(&[IN_ORDER], SLOTS * SLOT_BYTES as u64);
    }
}

/// For the guardian.
pub fn memory() -> Option<BorrowedFd<'static>> {
    LAST_WORDS.get().map(|words| words.memory.as_fd())
}

/// In the guardian: the lines, the latest last; none if the server has ended in order.
pub fn read(memory: &File) -> Option<Vec<String>> {
    let mut mark = [0];
    let marked = memory.read_exact_at(&mut mark, SLOTS * SLOT_BYTES as u64);
    if marked.is_ok() && mark == [IN_ORDER] {
        return None;
    }
    let mut lines = Vec::new();
    for slot in 0..SLOTS {
        let mut bytes = [0; SLOT_BYTES];
        if memory
            .read_exact_at(&mut bytes, slot * SLOT_BYTES as u64)
            .is_err()
        {
            break;
        }
        let (head, text) = bytes.split_at(NUMBER_BYTES);
        let number = u64::from_ne_bytes(head.try_into().unwrap_or_default());
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        if number != 0 && !text.is_empty() {
            lines.push((number, String::from_utf8_lossy(text).into_owned()));
        }
    }
    lines.sort();
    Some(lines.into_iter().map(|(_, text)| text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_until_the_server_ends_in_order() {
        keep().unwrap();
        for number in 0..40 {
            note(&format!("line {number}"));
        }
        note(&"long".repeat(1000));
        let memory = File::from(memory().unwrap().try_clone_to_owned().unwrap());
        let lines = read(&memory).unwrap();
        assert_eq!(lines.len() as u64, SLOTS);
        assert_eq!(lines[lines.len() - 2], "line 39");
        assert!(lines[lines.len() - 1].starts_with("longlong"));
        end_in_order();
        assert_eq!(read(&memory), None);
    }
}

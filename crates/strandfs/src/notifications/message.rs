//! What the server tells the notifier: one line of JSON each. Paths are bytes, not text.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};
use strandfs_pool::health::events::Event;

/// A message.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The pool is mounted: from here on the server's end is news.
    Mounted,
    /// The server is about to end because it was asked to.
    Unmounted,
    /// Something happened to a branch.
    Branch {
        /// The event's name.
        event: String,
        /// The branch's path.
        branch: Vec<u8>,
        /// What was told before.
        was: String,
        /// For people.
        reason: String,
        /// Changes that were not told.
        left_out: u64,
    },
}

impl Message {
    /// An event as a message.
    pub fn of(event: Event) -> Message {
        Message::Branch {
            event: event.name.to_owned(),
            branch: event.branch.into_os_string().into_vec(),
            was: event.was.to_owned(),
            reason: event.reason,
            left_out: event.left_out,
        }
    }

    /// As it is sent.
    ///
    /// # Errors
    /// None that are known.
    pub fn line(&self) -> io::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }

    /// As it was sent.
    ///
    /// # Errors
    /// It is no message.
    pub fn read(line: &[u8]) -> io::Result<Message> {
        Ok(serde_json::from_slice(line)?)
    }
}

/// The variables that the program finds in its environment.
pub type Variables = Vec<(&'static str, OsString)>;

/// Those of an event.
pub fn variables(pool: &OsString, event: &str, reason: &str) -> Variables {
    vec![
        ("STRANDFS_EVENT", text(event)),
        ("STRANDFS_POOL", pool.clone()),
        ("STRANDFS_REASON", text(reason)),
    ]
}

/// Those that an event of a branch has besides.
pub fn of_branch(branch: &[u8], was: &str, left_out: u64) -> Variables {
    let branch = std::ffi::OsStr::from_bytes(branch).to_owned();
    vec![
        ("STRANDFS_BRANCH", branch),
        ("STRANDFS_WAS", text(was)),
        ("STRANDFS_LEFT_OUT", text(&left_out.to_string())),
    ]
}

/// No variable can hold a NUL; whatever has one is told without.
fn text(value: &str) -> OsString {
    value.replace('\0', "").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_and_reason_comes_through() {
        let message = Message::Branch {
            event: "missing".to_owned(),
            branch: b"/\xff\n\" b".to_vec(),
            was: "ok".to_owned(),
            reason: "two\nlines".to_owned(),
            left_out: 3,
        };
        let line = message.line().unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(Message::read(&line).unwrap(), message);
        assert!(Message::read(b"{}\n").is_err());
    }
}

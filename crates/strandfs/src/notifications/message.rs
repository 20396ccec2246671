//! What the server tells the notifier: one line of JSON each. Paths are bytes, not text.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};
use strandfs_pool::health::events::Event;

use crate::logging::one_line;

/// A message.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The pool is mounted: from here on the server's end is news.
    Mounted,
    /// The server is about to end because it was asked to.
    Unmounted,
    /// Somebody asks whether the program runs: the answer has this number.
    Trial(u64),
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

/// How a trial went, as the notifier answers: a line that nothing else that it says begins like, since
/// that is said without control characters.
pub struct Answer {
    /// Of [`Message::Trial`].
    pub number: u64,
    /// A clause for people if the program did not run or failed.
    pub outcome: Result<(), String>,
}

const ANSWER: &str = "\u{1}";

impl Answer {
    /// As it is sent.
    pub fn line(&self) -> String {
        let why = self.outcome.as_ref().err();
        let why = why.map_or_else(String::new, |why| format!(" {}", one_line(why)));
        format!("{ANSWER}{}{why}\n", self.number)
    }

    /// As it was sent; none if the line is no answer.
    pub fn read(line: &str) -> Option<Answer> {
        let line = line.strip_prefix(ANSWER)?;
        let (number, why) = match line.split_once(' ') {
            Some((number, why)) => (number, Err(why.to_owned())),
            None => (line, Ok(())),
        };
        Some(Answer {
            number: number.parse().ok()?,
            outcome: why,
        })
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
    fn answers_are_known_from_what_is_said() {
        for outcome in [Ok(()), Err("it cannot be started: no\nway".to_owned())] {
            let answer = Answer { number: 7, outcome };
            let line = answer.line();
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            let read = Answer::read(line.trim_end_matches('\n')).unwrap();
            assert_eq!(read.number, 7);
            assert_eq!(read.outcome.is_ok(), answer.outcome.is_ok());
        }
        let said = one_line("\u{1}7");
        assert!(Answer::read(&said).is_none(), "{said}");
        assert!(Answer::read("7").is_none());
    }

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

//! A request that is answered later, from any thread, while no thread stays with it.

use std::fmt;
use std::sync::Arc;

use crate::types::Errno;

/// How answers of deferred requests go. For transports.
pub trait AnswerLater: Send + Sync {
    /// Answers the request, which has no data to give.
    fn answer(&self, unique: u64, result: Result<(), Errno>);
}

/// The right and the duty to answer one request. Dropped, it answers EIO: no caller waits for ever.
///
/// Answering may take a system call. It is harmless after the end of the mount.
pub struct Deferred {
    unique: u64,
    way: Option<Arc<dyn AnswerLater>>,
}

impl Deferred {
    /// Of the request with this number. For transports.
    pub fn new(unique: u64, way: Arc<dyn AnswerLater>) -> Self {
        let way = Some(way);
        Self { unique, way }
    }

    /// The request's number.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Answers.
    pub fn answer(mut self, result: Result<(), Errno>) {
        if let Some(way) = self.way.take() {
            way.answer(self.unique, result);
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if let Some(way) = self.way.take() {
            way.answer(self.unique, Err(Errno::IO));
        }
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Deferred").field(&self.unique).finish()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[derive(Default)]
    struct Answers(Mutex<Vec<(u64, Result<(), Errno>)>>);

    impl AnswerLater for Answers {
        fn answer(&self, unique: u64, result: Result<(), Errno>) {
            self.0.lock().push((unique, result));
        }
    }

    #[test]
    fn each_request_is_answered_once_and_a_forgotten_one_with_an_error() {
        let answers = Arc::new(Answers::default());
        Deferred::new(4, answers.clone()).answer(Ok(()));
        drop(Deferred::new(6, answers.clone()));
        Deferred::new(8, answers.clone()).answer(Err(Errno::INTR));
        let expected = [(4, Ok(())), (6, Err(Errno::IO)), (8, Err(Errno::INTR))];
        assert_eq!(*answers.0.lock(), expected);
    }
}

//! The threads that serve requests.

use serde::{Deserialize, Serialize};

use crate::words::{PinThreads, Transport};

/// Threads that read when only the others were asked for.
const READERS: usize = 2;
/// Bounds of the threads that process when their number is left to the server.
const PROCESSING: std::ops::RangeInclusive<usize> = 2..=8;

/// The threads that serve requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As of the settings.
pub struct ThreadSettings {
    /// See [`ThreadSettings::most`].
    pub threads: i32,
    pub process_thread_count: i32,
    pub pin_threads: PinThreads,
    /// How requests come.
    pub transport: Transport,
    /// A nice value. `None`: -10 where that is allowed.
    pub scheduling_priority: Option<i32>,
    pub proxy_ioprio: bool,
}

impl Default for ThreadSettings {
    fn default() -> Self {
        Self {
            threads: 0,
            process_thread_count: -1,
            pin_threads: PinThreads::Off,
            transport: Transport::Auto,
            scheduling_priority: None,
            proxy_ioprio: false,
        }
    }
}

impl ThreadSettings {
    /// The most threads to serve with on a machine of so many CPUs; `None` leaves it to the
    /// session. See the help of `threads` and `process-thread-count`.
    pub fn most(&self, cpus: usize) -> Option<usize> {
        let (readers, others) = (self.threads, self.process_thread_count);
        match (readers, others) {
            (0, -1) => None,
            (readers, -1) => Some(count(readers, cpus)),
            (readers, others) => {
                let readers = match readers {
                    0 => READERS,
                    _ => count(readers, cpus),
                };
                let others = match others {
                    0 => cpus.clamp(*PROCESSING.start(), *PROCESSING.end()),
                    _ => count(others, cpus),
                };
                Some(readers + others)
            }
        }
    }
}

/// A positive number is itself, a negative one a share of the CPUs; at least one.
fn count(number: i32, cpus: usize) -> usize {
    let size = number.unsigned_abs() as usize;
    match number {
        ..0 => (cpus / size).max(1),
        _ => size.max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_numbers_count() {
        for (threads, process, cpus, most) in [
            (0, -1, 16, None),
            (5, -1, 16, Some(5)),
            (-2, -1, 16, Some(8)),
            (-32, -1, 16, Some(1)),
            (0, 4, 16, Some(6)),
            (3, 4, 16, Some(7)),
            (0, 0, 1, Some(4)),
            (0, 0, 4, Some(6)),
            (1, 0, 64, Some(9)),
            (1, -4, 16, Some(5)),
        ] {
            let settings = ThreadSettings {
                threads,
                process_thread_count: process,
                ..ThreadSettings::default()
            };
            assert_eq!(settings.most(cpus), most, "{threads} {process}");
        }
    }
}

//! A mounted connection as the filesystem sees it: backing files ([`backing`]) and
//! notifications ([`notify`]).

mod backing;
mod notify;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use crate::mount::abort::is_connected;
use crate::report::TransportReport;
use crate::traffic::{LatencyReport, Traffic, TrafficReport};
use crate::types::Errno;

/// Where the numbers of RETRIEVE notifications start, and the step between them: over a ring they
/// must differ from those of all requests, which the kernel counts up from 0, and be even.
const FIRST_RETRIEVAL: u64 = 1 << 62;
const NEXT_RETRIEVAL: u64 = 2;

/// A cheap handle to the connection; clones share it. It may be used from any thread, and stays
/// valid after the mount has ended: calls then fail with ENODEV, ENOTCONN or ENOENT.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
}

struct Shared {
    device: Arc<OwnedFd>,
    retrievals: Mutex<Retrievals>,
    traffic: Traffic,
    number: OnceLock<u32>,
    substitute: OnceLock<Weak<dyn Substitute>>,
    transport: Mutex<TransportReport>,
}

/// Answers requests in the place of threads that do not come back.
pub(crate) trait Substitute: Send + Sync {
    /// See [`Connection::give_up`].
    fn answer_for(&self, thread: u32, errno: Errno) -> bool;
}

/// Who waits for data asked for by a RETRIEVE notification.
#[derive(Default)]
struct Retrievals {
    last: u64,
    waiting: HashMap<u64, Sender<Vec<u8>>>,
    closed: bool,
}

impl Retrievals {
    fn next_number(&mut self) -> u64 {
        let number = FIRST_RETRIEVAL + self.last * NEXT_RETRIEVAL;
        self.last += 1;
        number
    }
}

impl Connection {
    /// A connection over an open `/dev/fuse` that is mounted already. For the session, for a
    /// successor that was handed the descriptor, and for tests: over `/dev/null` every
    /// notification succeeds and goes nowhere, and [`open_backing`](Self::open_backing) fails
    /// with ENOTTY.
    pub fn from_device(device: Arc<OwnedFd>) -> Self {
        let retrievals = Mutex::default();
        Self {
            shared: Arc::new(Shared {
                device,
                retrievals,
                traffic: Traffic::new(),
                number: OnceLock::new(),
                substitute: OnceLock::new(),
                transport: Mutex::default(),
            }),
        }
    }

    /// Answers the request that a thread of the session (by its kernel id) is carrying out with
    /// `errno`, so that its caller goes on though the thread does not come back. What the thread
    /// answers when it does is taken back, as for an interrupted request; what it did stays
    /// done. False if the thread carries none out, it was answered already, or the transport
    /// cannot.
    pub fn give_up(&self, thread: u32, errno: Errno) -> bool {
        let substitute = self.shared.substitute.get().and_then(Weak::upgrade);
        substitute.is_some_and(|substitute| substitute.answer_for(thread, errno))
    }

    /// Who answers for threads that do not come back; once.
    pub(crate) fn set_substitute(&self, substitute: Weak<dyn Substitute>) {
        let _ = self.shared.substitute.set(substitute);
    }

    /// The kernel's number of the connection: a directory of that name is beneath
    /// `/sys/fs/fuse/connections`, and it is the minor device number of the mount (the major one
    /// is 0). `None` if the connection was not made by mounting.
    pub fn number(&self) -> Option<u32> {
        self.shared.number.get().copied()
    }

    /// The mount is made.
    pub(crate) fn set_number(&self, number: u32) {
        // Set once: a session mounts once.
        let _ = self.shared.number.set(number);
    }

    /// Whether the mount is there still, for the kernel if for nobody else. Once it is not, its
    /// [`number`](Self::number) may be that of another.
    pub fn is_alive(&self) -> bool {
        is_connected(self.device()).unwrap_or(true)
    }

    /// What there has been to do so far. Cheap: takes no lock that a request takes.
    pub fn traffic(&self) -> TrafficReport {
        self.shared.traffic.report()
    }

    /// How long requests took so far. Takes no lock that a request takes, but adds up some ten thousand
    /// numbers for each thread.
    pub fn latencies(&self) -> LatencyReport {
        self.shared.traffic.latencies()
    }

    /// How requests come.
    pub fn transport(&self) -> TransportReport {
        self.shared.transport.lock().clone()
    }

    /// The transport is chosen, or has changed.
    pub(crate) fn set_transport(&self, report: TransportReport) {
        *self.shared.transport.lock() = report;
    }

    /// Where it is counted.
    pub(crate) fn counter(&self) -> &Traffic {
        &self.shared.traffic
    }

    /// The descriptor of the connection.
    pub(crate) fn device(&self) -> BorrowedFd<'_> {
        self.shared.device.as_fd()
    }

    /// The same, to be kept open.
    pub(crate) fn device_to_keep(&self) -> &Arc<OwnedFd> {
        &self.shared.device
    }

    /// A number for a RETRIEVE notification and the place its data will arrive.
    pub(crate) fn expect_retrieval(&self) -> Result<(u64, Receiver<Vec<u8>>), Errno> {
        let mut retrievals = self.shared.retrievals.lock();
        if retrievals.closed {
            return Err(Errno::NOTCONN);
        }
        let number = retrievals.next_number();
        let (sender, receiver) = channel();
        retrievals.waiting.insert(number, sender);
        Ok((number, receiver))
    }

    /// A number for a RETRIEVE notification whose data nobody wants.
    pub(crate) fn unexpected_retrieval(&self) -> u64 {
        self.shared.retrievals.lock().next_number()
    }

    /// The notification could not be sent: nobody will answer.
    pub(crate) fn cancel_retrieval(&self, number: u64) {
        self.shared.retrievals.lock().waiting.remove(&number);
    }

    /// A NOTIFY_REPLY has come.
    pub(crate) fn deliver_retrieval(&self, number: u64, data: &[u8]) {
        let waiting = self.shared.retrievals.lock().waiting.remove(&number);
        if let Some(sender) = waiting {
            // Whoever asked may have given up: then nobody needs the data.
            let _ = sender.send(data.to_vec());
        }
    }

    /// The mount has ended: nothing more will be delivered.
    pub(crate) fn close_retrievals(&self) {
        let mut retrievals = self.shared.retrievals.lock();
        retrievals.closed = true;
        retrievals.waiting.clear();
    }
}

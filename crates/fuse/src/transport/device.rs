//! `/dev/fuse`: read a request, carry it out, write the answer; one system call each.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Server;
use super::buffer::{ReplyBuffer, RequestBuffer};
use super::follow::{Callers, Served, Verdict};
use super::further;
use super::kept::KeptRequest;
use super::placement::Role;
use super::second;
use super::shares::user_of;
use super::undo;
use super::worker_pool::{Next, WorkerPool};
use super::worker_state::{WakeReason, WorkerState};
use zerocopy::IntoBytes;

use crate::abi::{InHeader, Opcode, OutHeader};
use crate::affinity::run_anywhere;
use crate::deferred::Deferred;
use crate::dispatch::{Outcome, dispatch, tell_if_slow};
use crate::filesystem::Worker;
use crate::life::{End, SessionError};
use crate::message::Message;
use crate::request::Request;
use crate::sys;
use crate::traffic::Times;
use crate::types::Errno;

/// How long a new thread waits for its first work.
const FIRST_WAIT: Duration = Duration::from_secs(10);

/// The life of a thread.
pub(super) fn work(
    worker_pool: &Arc<WorkerPool>,
    worker_state: &Arc<WorkerState>,
    mut request: RequestBuffer,
    mut reply: ReplyBuffer,
) {
    worker_state.take();
    let departure = Departure {
        worker_pool,
        worker_state,
    };
    if let Err(errno) = sys::allow_wake_signal() {
        tracing::debug!(%errno, "unblocking the wake signal");
    }
    // It inherited the place of the thread that started it.
    run_anywhere();
    worker_state.place(&worker_pool.placement, Role::Working);
    let mut next = Next::Park(Some(FIRST_WAIT));
    loop {
        next = match next {
            Next::Leave => break,
            Next::Read => {
                worker_state.place(&worker_pool.placement, Role::Reading);
                worker_state.become_reader();
                match read_and_answer(worker_pool, worker_state, &mut request, &mut reply) {
                    Step::HandedOff(deferred) => return_worker(worker_pool, worker_state, deferred),
                    Step::SteppedBack(next) => next,
                    Step::Ended => break,
                }
            }
            Next::Assist => assist(worker_pool, worker_state, &mut request, &mut reply),
            Next::Work => match worker_pool.begin_kept(worker_state, request.room()) {
                Some((len, since)) => {
                    let bytes = request.message(len);
                    let answered =
                        answer_kept(worker_pool, worker_state, (bytes, since), &mut reply);
                    return_worker(worker_pool, worker_state, answered.deferred)
                }
                None => worker_pool.idle(worker_state),
            },
            Next::Park(patience) => match worker_state.wait(patience) {
                WakeReason::Read => Next::Read,
                WakeReason::Work => Next::Work,
                WakeReason::Assist => Next::Assist,
                WakeReason::Leave => break,
                WakeReason::Nothing if worker_pool.may_retire(worker_state) => break,
                WakeReason::Nothing => Next::Park(None),
            },
        };
    }
    drop(departure);
}

/// A request is over for a thread that is no reader any more. An interrupt that came while the
/// thread was with it goes to whoever is to answer it later.
fn return_worker(
    worker_pool: &WorkerPool,
    worker_state: &Arc<WorkerState>,
    deferred: Option<u64>,
) -> Next {
    let next = worker_pool.return_worker(worker_state);
    pass_interrupt_on(worker_pool, worker_state, deferred);
    next
}

fn pass_interrupt_on(worker_pool: &WorkerPool, worker_state: &WorkerState, deferred: Option<u64>) {
    if let Some(unique) = deferred
        && worker_state.was_interrupted(unique)
    {
        worker_pool.server.filesystem.interrupt(unique);
    }
}

/// Takes the thread off the worker table, however it ends.
struct Departure<'a> {
    worker_pool: &'a WorkerPool,
    worker_state: &'a Arc<WorkerState>,
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        self.worker_pool.depart(self.worker_state);
    }
}

/// Why a reader stopped reading.
enum Step {
    /// Another thread has the role; the request, if it is answered later.
    HandedOff(Option<u64>),
    /// Another one reads, which is enough: what the thread does then.
    SteppedBack(Next),
    /// The mount has ended.
    Ended,
}

/// Lets FORGETs gather where nothing else but INTERRUPT comes this way: to be woken for each of
/// those that removing files causes would cost the remover more than the work itself.
#[derive(Default)]
struct Gathering {
    in_a_row: u32,
}

impl Gathering {
    /// So many FORGETs are taken one by one.
    const AT_ONCE: u32 = 4;
    /// An INTERRUPT waits no longer than this.
    const PAUSE: Duration = Duration::from_millis(1);

    /// Called with what was read; pauses when it is time to, and says until when.
    fn after(&mut self, worker_pool: &WorkerPool, bytes: &[u8], began: Instant) -> Option<Instant> {
        // Over /dev/fuse alone, others wait behind a FORGET.
        if worker_pool.ring.get().is_none() || !is_forget(bytes) || began.elapsed() > Self::PAUSE {
            self.in_a_row = 0;
            return None;
        }
        self.in_a_row += 1;
        (self.in_a_row > Self::AT_ONCE).then(|| {
            std::thread::sleep(Self::PAUSE);
            Instant::now()
        })
    }
}

fn is_forget(bytes: &[u8]) -> bool {
    const FORGETS: [Opcode; 2] = [Opcode::Forget, Opcode::BatchForget];
    <InHeader as zerocopy::FromBytes>::read_from_prefix(bytes)
        .is_ok_and(|(header, _)| FORGETS.iter().any(|own| *own as u32 == header.opcode))
}

/// A reader's loop.
fn read_and_answer(
    worker_pool: &Arc<WorkerPool>,
    worker_state: &Arc<WorkerState>,
    request: &mut RequestBuffer,
    reply: &mut ReplyBuffer,
) -> Step {
    let mut gathering = Gathering::default();
    let mut callers = Callers::default();
    let mut began = Instant::now();
    loop {
        match rustix::io::read(worker_pool.server.connection.device(), request.room()) {
            Ok(len) => {
                let arrived = Instant::now();
                let is_queued = callers
                    .wants_sample()
                    .then(|| further::is_readable(worker_pool));
                let bytes = request.message(len);
                let from = (arrived, Reader::First);
                let answered = answer(worker_pool, worker_state, bytes, reply, from);
                if !worker_state.leave() {
                    return Step::HandedOff(answered.deferred);
                }
                // Where two read, the other one may have been told.
                pass_interrupt_on(worker_pool, worker_state, answered.deferred);
                if worker_pool.carries_all() {
                    let thread = worker_state.asker().1;
                    let together = &worker_pool.further.together;
                    let served = Served {
                        thread,
                        before: together.note_asker(thread),
                        are_two: together.are_two(),
                        arrived,
                        waited: arrived - began,
                        is_queued,
                        bytes: len.max(reply.sent_bytes()),
                    };
                    if let Some(next) = follow(worker_pool, worker_state, &mut callers, served) {
                        return Step::SteppedBack(next);
                    }
                }
                let paused = gathering.after(worker_pool, request.message(len), began);
                // A pause is no waiting.
                began = paused.unwrap_or(answered.at);
            }
            // A signal; or a request withdrawn while it was read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {
                if worker_pool.life.has_ended() {
                    return Step::Ended;
                }
                began = Instant::now();
            }
            Err(errno) => {
                end_of(worker_pool, errno);
                return Step::Ended;
            }
        }
    }
}

/// The connection cannot be read any more.
fn end_of(worker_pool: &WorkerPool, errno: Errno) {
    worker_pool.life.end(match errno {
        Errno::NODEV => Ok(End::Unmounted),
        Errno::CONNABORTED => Ok(End::Aborted),
        _ => Err(SessionError::Read(errno)),
    });
}

/// Reads beside the reader while there is something to read. The thread is as one whose request was
/// handed off, from each request's beginning: it blocks nobody.
fn assist(
    worker_pool: &Arc<WorkerPool>,
    worker_state: &Arc<WorkerState>,
    request: &mut RequestBuffer,
    reply: &mut ReplyBuffer,
) -> Next {
    let mut served = 0;
    let mut next = None;
    while next.is_none() && !worker_pool.life.has_ended() && further::is_readable(worker_pool) {
        let device = worker_pool.server.connection.device();
        match rustix::io::read(device, request.room()) {
            Ok(len) => {
                served += 1;
                let bytes = request.message(len);
                let from = (Instant::now(), Reader::Further);
                let answered = answer(worker_pool, worker_state, bytes, reply, from);
                next = worker_pool.go_on_reading(worker_state);
                pass_interrupt_on(worker_pool, worker_state, answered.deferred);
            }
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            Err(errno) => {
                end_of(worker_pool, errno);
                break;
            }
        }
    }
    worker_pool.further.leave(served);
    next.unwrap_or_else(|| worker_pool.return_worker(worker_state))
}

/// Who has read a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// The reader, or the second.
    First,
    /// One beside them.
    Further,
}

/// Puts the reader, which is at rest, where its requests come from, and has others read as well where they
/// are many. What it does if it is one too many.
fn follow(
    worker_pool: &Arc<WorkerPool>,
    worker_state: &Arc<WorkerState>,
    callers: &mut Callers,
    served: Served,
) -> Option<Next> {
    let together = &worker_pool.further.together;
    match callers.note(served) {
        Verdict::Stay => {}
        Verdict::Anywhere => worker_state.release(),
        Verdict::Crowded => {
            together.note_alone(false);
            worker_state.release();
            further::call(worker_pool);
        }
        Verdict::TakingTurns { are_crowded } => {
            together.note_alone(false);
            worker_state.release();
            if !second::call(worker_pool, served.arrived) && are_crowded {
                further::call(worker_pool);
            }
        }
        Verdict::Alone if together.note_alone(true) => {
            if let Some(next) = second::step_back(worker_pool, worker_state) {
                return Some(next);
            }
        }
        Verdict::Alone => {}
        Verdict::With(_) if !worker_pool.can_follow => {}
        Verdict::With(thread) => {
            if !worker_pool.whereabouts.ask(thread) {
                worker_state.release();
            }
        }
    }
    if let Some(cpu) = worker_pool.whereabouts.found()
        && callers.are_followed()
    {
        worker_state.bind(cpu);
    }
    if worker_state.was_starved() {
        callers.back_off(served.arrived);
    }
    worker_state.set_yielding(callers.want_yielding(served.arrived));
    callers.note_yielding(worker_state.yields());
    None
}

/// A request that its thread is done with.
struct Answered {
    /// Its number, if somebody else answers it.
    deferred: Option<u64>,
    /// When that was.
    at: Instant,
}

impl Answered {
    /// Just now.
    fn now(deferred: Option<u64>) -> Self {
        Self {
            deferred,
            at: Instant::now(),
        }
    }
}

/// Carries one message out, which was read at this time.
fn answer(
    worker_pool: &Arc<WorkerPool>,
    worker_state: &Arc<WorkerState>,
    bytes: &[u8],
    reply: &mut ReplyBuffer,
    (arrived, reader): (Instant, Reader),
) -> Answered {
    let enter = |unique| match reader {
        Reader::First => worker_state.enter(unique),
        Reader::Further => worker_state.enter_handed_off(unique),
    };
    let message = match Message::from_bytes(bytes) {
        Ok(message) => message,
        Err(error) => {
            enter(0);
            refuse(&worker_pool.server, bytes, reply, error.errno());
            return Answered::now(None);
        }
    };
    let header = &message.header;
    worker_state.counts.count(header.opcode);
    worker_state.note_asker(header.uid, header.pid);
    enter(header.unique);
    worker_pool.watchdog.note_work();
    if worker_pool.puts_aside(worker_state, header, bytes) {
        return Answered::now(None);
    }
    let begun = Begun {
        at: arrived,
        since: None,
    };
    carry_out(worker_pool, worker_state, &message, (bytes, begun), reply)
}

/// Carries out what was kept, which has been begun.
fn answer_kept(
    worker_pool: &Arc<WorkerPool>,
    worker_state: &Arc<WorkerState>,
    (bytes, since): (&[u8], Instant),
    reply: &mut ReplyBuffer,
) -> Answered {
    let begun = Begun {
        at: Instant::now(),
        since: Some(since),
    };
    match Message::from_bytes(bytes) {
        Ok(message) => carry_out(worker_pool, worker_state, &message, (bytes, begun), reply),
        // It was read before.
        Err(_) => Answered::now(None),
    }
}

/// When a thread took a request, and when it had come, if that was before.
#[derive(Clone, Copy)]
struct Begun {
    at: Instant,
    since: Option<Instant>,
}

fn carry_out(
    worker_pool: &Arc<WorkerPool>,
    worker_state: &Arc<WorkerState>,
    message: &Message<'_>,
    (bytes, begun): (&[u8], Begun),
    reply: &mut ReplyBuffer,
) -> Answered {
    let unique = message.header.unique;
    let server = &worker_pool.server;
    let since = begun.since;
    worker_state.counts.begin(since.unwrap_or(begun.at));
    let below = server.filesystem.time_below();
    let worker = DeviceWorker {
        worker_pool,
        worker_state,
        unique,
        since,
        asked: Cell::new(false),
        later: Cell::new(Later::No),
    };
    let outcome = dispatch(
        &*server.filesystem,
        &server.dialect,
        message,
        reply.payload(),
        &worker,
    );
    let made = Instant::now();
    let mut times = Times {
        whole: made - since.unwrap_or(begun.at),
        queued: since.map(|since| begun.at - since),
        below: server.filesystem.time_below().saturating_sub(below),
        answering: None,
    };
    let opcode = message.header.opcode;
    match worker.later.get() {
        Later::No => {}
        Later::Answered => {
            worker_state.counts.count_done(opcode, times, None);
            return Answered {
                deferred: Some(unique),
                at: made,
            };
        }
        Later::Again(after) => {
            let request = KeptRequest {
                unique,
                uid: user_of(&message.header),
                since: since.unwrap_or_else(Instant::now),
                bytes: bytes.into(),
            };
            worker_pool.keep(worker_state, request, after);
            worker_state.counts.end();
            return Answered::now(None);
        }
    }
    let mut error = None;
    let is_answered = !matches!(outcome, Outcome::NoReply);
    match outcome {
        Outcome::Reply { errno, len } => {
            error = errno;
            if send(server, reply, unique, errno, len) == Sent::Unwanted && errno.is_none() {
                undo::undo(server, &message.header, reply.payload(), &worker);
            }
        }
        Outcome::NoReply => {}
        Outcome::NotForFilesystem(Request::Interrupt { unique: whose }) => {
            interrupt(worker_pool, whose, unique);
        }
        Outcome::NotForFilesystem(Request::NotifyReply { data, .. }) => {
            server.connection.deliver_retrieval(unique, data);
        }
        Outcome::NotForFilesystem(Request::Destroy) => {
            send(server, reply, unique, None, 0);
        }
        // INIT was answered before; whatever else this is, it must not stay unanswered.
        Outcome::NotForFilesystem(_) => {
            send(server, reply, unique, Some(Errno::IO), 0);
        }
    }
    let at = Instant::now();
    times.whole += at - made;
    times.answering = is_answered.then(|| at - made);
    worker_state.counts.count_done(opcode, times, error);
    tell_if_slow(&*server.filesystem, &server.dialect, message, &times, error);
    Answered { deferred: None, at }
}

/// Has a request interrupted. Where others read as well, the request may have been read by one of them
/// and not be known yet: the kernel says so once more (EAGAIN in fuse_dev_do_write, fs/fuse/dev.c). It does
/// not of a request that is answered by now. So this waits only while another reader is between its read and
/// `WorkerState::enter`, where it waits for nothing but a CPU.
fn interrupt(worker_pool: &WorkerPool, whose: u64, message: u64) {
    if !worker_pool.interrupt(whose)
        && worker_pool.further.are_there()
        && answer_with_error(&worker_pool.server, message, Errno::AGAIN)
    {
        std::thread::sleep(further::SETTLE);
    }
}

/// A message whose frame is broken: answered if at least its header can be read.
fn refuse(server: &Server, bytes: &[u8], reply: &mut ReplyBuffer, errno: Errno) {
    tracing::error!(%errno, len = bytes.len(), "a message that cannot be read");
    if let Ok((header, _)) = <InHeader as zerocopy::FromBytes>::read_from_prefix(bytes) {
        send(server, reply, header.unique, Some(errno), 0);
    }
}

/// What became of a reply.
#[derive(PartialEq, Eq)]
enum Sent {
    /// The kernel has it.
    Taken,
    /// Nobody waits for it any more.
    Unwanted,
    /// The kernel refused it; an error was sent in its place.
    Refused,
}

fn send(
    server: &Server,
    reply: &mut ReplyBuffer,
    unique: u64,
    errno: Option<Errno>,
    len: usize,
) -> Sent {
    let device = server.connection.device();
    let message = reply.message(unique, errno, len);
    match rustix::io::retry_on_intr(|| rustix::io::write(device, message)) {
        Ok(_) => Sent::Taken,
        Err(Errno::NOENT) => Sent::Unwanted,
        // The connection is gone.
        Err(Errno::NODEV | Errno::PERM | Errno::NOTCONN) => Sent::Taken,
        Err(refusal) => {
            tracing::error!(%refusal, unique, len, "the kernel refused a reply");
            // Left unanswered, the request would block its caller for ever.
            let message = reply.message(unique, Some(Errno::IO), 0);
            let _ = rustix::io::write(device, message);
            Sent::Refused
        }
    }
}

/// Answers a request with an error, from any thread; false if nobody waits for the answer.
pub(super) fn answer_with_error(server: &Server, unique: u64, errno: Errno) -> bool {
    let header = OutHeader {
        len: size_of::<OutHeader>() as u32,
        error: -errno.raw_os_error(),
        unique,
    };
    let device = server.connection.device();
    rustix::io::retry_on_intr(|| rustix::io::write(device, header.as_bytes())).is_ok()
}

/// When a request is answered.
#[derive(Clone, Copy)]
enum Later {
    /// By its thread, now.
    No,
    /// By somebody else.
    Answered,
    /// It is carried out again after this time.
    Again(Duration),
}

/// The transport's side of a request.
struct DeviceWorker<'a> {
    worker_pool: &'a Arc<WorkerPool>,
    worker_state: &'a WorkerState,
    unique: u64,
    /// When it came, if that was not just now.
    since: Option<Instant>,
    asked: Cell<bool>,
    later: Cell<Later>,
}

impl Worker for DeviceWorker<'_> {
    fn may_block(&self) {
        if self.asked.replace(true) {
            return;
        }
        self.worker_state.set_may_block();
        let word = self.worker_state.word();
        if WorkerState::is_handling(word) {
            self.worker_pool.hand_off(self.worker_state, word);
        } else {
            self.worker_pool.note_may_block(self.worker_state);
        }
    }

    fn interrupted(&self) -> bool {
        self.worker_state.is_interrupted()
    }

    fn defer(&self) -> Result<Deferred, Errno> {
        match self.later.get() {
            Later::No => {
                self.later.set(Later::Answered);
                Ok(Deferred::new(self.unique, self.worker_pool.late.clone()))
            }
            Later::Answered | Later::Again(_) => Err(Errno::NOSYS),
        }
    }

    fn again(&self, after: Duration, at_most: Duration) -> bool {
        if self.since.is_some_and(|since| since.elapsed() > at_most) {
            return false;
        }
        match self.later.get() {
            Later::No | Later::Again(_) => {
                self.later.set(Later::Again(after));
                true
            }
            Later::Answered => false,
        }
    }

    fn is_deferred(&self) -> bool {
        !matches!(self.later.get(), Later::No)
    }
}

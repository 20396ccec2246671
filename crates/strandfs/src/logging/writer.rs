//! The thread that writes the log, and the queue that leads to it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::sync::mpsc::{channel, sync_channel};
use std::time::{Duration, Instant};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::line::Line;
use super::repeats::Repeats;
use super::sink::Sink;
use crate::last_words;

/// Lines that may wait. Beyond it they are lost, and counted.
const QUEUE_MAX: usize = 4096;
/// How long the end of the process waits for the log.
const PATIENCE: Duration = Duration::from_secs(2);

enum Message {
    Line(Line),
    Sink(Sink),
    Flush(Sender<()>),
}

/// The writing thread, from outside.
pub struct Writer {
    queue: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

/// Puts events on the queue.
pub struct Collector {
    queue: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(sink: Sink) -> io::Result<Writer> {
        let (queue, messages) = sync_channel(QUEUE_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let mut work = Work {
            sink,
            repeats: Repeats::default(),
            lost: Arc::clone(&lost),
        };
        std::thread::Builder::new()
            .name("strandfs-log".to_owned())
            .spawn(move || work.run(&messages))?;
        Ok(Writer { queue, lost })
    }

    /// What feeds it.
    pub fn collector(&self) -> Collector {
        Collector {
            queue: self.queue.clone(),
            lost: Arc::clone(&self.lost),
        }
    }

    /// Later lines go elsewhere.
    pub fn change_sink(&self, sink: Sink) {
        self.send(Message::Sink(sink));
    }

    /// Waits until all is written, two seconds at most.
    pub fn flush(&self) {
        let (done, wait) = channel();
        if self.send(Message::Flush(done)) {
            let _ = wait.recv_timeout(PATIENCE);
        }
    }

    /// Puts a message on the queue even if that takes a moment.
    fn send(&self, mut message: Message) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.queue.try_send(message) {
                Ok(()) => return true,
                Err(TrySendError::Full(back)) if Instant::now() < deadline => message = back,
                Err(_) => return false,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl<S: Subscriber> Layer<S> for Collector {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if self.queue.try_send(Message::Line(Line::of(event))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What the thread has.
struct Work {
    sink: Sink,
    repeats: Repeats,
    lost: Arc<AtomicU64>,
}

impl Work {
    /// Until nobody can send any more.
    fn run(&mut self, messages: &Receiver<Message>) {
        loop {
            let received = match self.repeats.next_due() {
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => messages.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            let now = Instant::now();
            for line in self.repeats.due(now) {
                self.sink.write(&line);
            }
            match received {
                Ok(Message::Line(line)) => {
                    if self.repeats.admit(&line, now) {
                        if line.level <= Level::WARN {
                            last_words::note(&format!("{} {}", line.level, line.text()));
                        }
                        self.sink.write(&line);
                    }
                }
                Ok(Message::Sink(sink)) => self.sink = sink,
                Ok(Message::Flush(done)) => {
                    for line in self.repeats.all(now) {
                        self.sink.write(&line);
                    }
                    // Whoever waited may have gone.
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let lost = self.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                let message = format!("{lost} log lines were lost: they came too fast");
                self.sink.write(&Line::own(Level::WARN, message));
            }
        }
    }
}

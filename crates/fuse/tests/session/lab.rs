//! A filesystem whose files misbehave on request, served by this process.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use strandfs_fuse::abi::InitFlags;
use strandfs_fuse::{
    AttrReply, BackingId, Connection, Context, End, Entry, Errno, FileAttr, Filesystem, Handle,
    MountOptions, NodeId, Open, OpenFlags, OpenReply, Read, Release, Result, Session,
    SessionConfig, TransportChoice, Unmounter, Wants,
};

use crate::support::{Mountpoint, eventually};

/// How long the slow files take to be read.
pub const SLOW: Duration = Duration::from_millis(300);

/// Looking it up takes as long, without a word; it is not there.
pub const SLOW_NAME: &str = "slow-name";

pub const FAST: NodeId = NodeId(2);
/// Sleeps without a word.
const SLOW_SILENT: NodeId = NodeId(3);
/// Says that it may block, then sleeps.
const SLOW_POLITE: NodeId = NodeId(4);
/// Blocks in a system call that only a signal ends.
const STUCK: NodeId = NodeId(5);
/// Blocks until the gate is opened.
const GATE: NodeId = NodeId(6);
/// Passthrough to a file.
const THROUGH: NodeId = NodeId(7);
/// Read through the page cache.
pub const CACHED: NodeId = NodeId(8);
/// Panics.
const BROKEN: NodeId = NodeId(9);
/// Has its first read carried out again after a while.
const LATER: NodeId = NodeId(10);
/// Works for a moment before it says that it may block, and blocks as the stuck one does.
const BUSY_THEN_STUCK: NodeId = NodeId(11);

/// After this while.
pub const AGAIN_AFTER: Duration = Duration::from_millis(100);

thread_local! {
    /// How long this thread has slept for the polite file.
    static SLEPT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

const NAMES: [(&str, NodeId); 10] = [
    ("fast", FAST),
    ("slow", SLOW_SILENT),
    ("polite", SLOW_POLITE),
    ("stuck", STUCK),
    ("gate", GATE),
    ("through", THROUGH),
    ("cached", CACHED),
    ("broken", BROKEN),
    ("later", LATER),
    ("busy-then-stuck", BUSY_THEN_STUCK),
];

/// The filesystem.
pub struct Lab {
    pub connection: OnceLock<Connection>,
    pub gate: (Mutex<bool>, Condvar),
    /// Requests that are blocked now.
    pub blocked: AtomicUsize,
    /// Requests that ended with EINTR.
    pub interrupted: AtomicUsize,
    pub lookups: AtomicUsize,
    /// Who looked names up.
    pub threads: Mutex<HashSet<ThreadId>>,
    pub destroyed: AtomicUsize,
    tried: AtomicBool,
    pub backing: Mutex<Option<BackingId>>,
    pub content: Mutex<Vec<u8>>,
    /// Nobody writes to it: reading blocks.
    silence: (OwnedFd, OwnedFd),
}

impl Lab {
    fn attr(&self, node: NodeId) -> FileAttr {
        let directory = node == NodeId::ROOT;
        FileAttr {
            ino: node.0,
            size_bytes: self.content.lock().unwrap().len() as u64,
            mode: if directory { 0o040_755 } else { 0o100_644 },
            nlink: 1,
            block_size_bytes: 4096,
            ..FileAttr::default()
        }
    }

    /// What comes before the data of a file.
    fn misbehave(&self, cx: &Context<'_>, node: NodeId) -> Result<()> {
        match node {
            SLOW_SILENT => thread::sleep(SLOW),
            SLOW_POLITE => {
                cx.may_block();
                thread::sleep(SLOW);
                SLEPT.set(SLEPT.get() + SLOW);
            }
            LATER if !self.tried.swap(true, Ordering::SeqCst) => {
                assert!(cx.again(AGAIN_AFTER, SLOW * 100));
                return Err(Errno::AGAIN);
            }
            STUCK => self.block_for_ever(cx)?,
            BUSY_THEN_STUCK => {
                let began = Instant::now();
                while began.elapsed() < Duration::from_millis(2) {
                    std::hint::spin_loop();
                }
                self.block_for_ever(cx)?;
            }
            GATE => self.wait_for_gate(cx),
            BROKEN => panic!("as it should"),
            _ => {}
        }
        Ok(())
    }

    fn block_for_ever(&self, cx: &Context<'_>) -> Result<()> {
        cx.may_block();
        let result = rustix::io::read(self.silence.0.as_fd(), &mut [0; 1]);
        assert!(cx.interrupted());
        self.interrupted.fetch_add(1, Ordering::SeqCst);
        result.map(drop)
    }

    fn wait_for_gate(&self, cx: &Context<'_>) {
        cx.may_block();
        let (open, opened) = &self.gate;
        drop(
            opened
                .wait_while(open.lock().unwrap(), |open| !*open)
                .unwrap(),
        );
    }
}

impl Filesystem for Lab {
    fn init(&self, _: &strandfs_fuse::Negotiated, connection: &Connection) -> Result<()> {
        assert!(self.connection.set(connection.clone()).is_ok());
        Ok(())
    }

    fn time_below(&self) -> Duration {
        SLEPT.get()
    }

    fn destroy(&self) {
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }

    fn lookup(&self, _: &Context<'_>, _: NodeId, name: &OsStr) -> Result<Entry> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        self.threads.lock().unwrap().insert(thread::current().id());
        if name == SLOW_NAME {
            self.blocked.fetch_add(1, Ordering::SeqCst);
            thread::sleep(SLOW);
            self.blocked.fetch_sub(1, Ordering::SeqCst);
        }
        let found = NAMES.iter().find(|(known, _)| name == *known);
        let &(_, node) = found.ok_or(Errno::NOENT)?;
        Ok(Entry {
            node,
            generation: 0,
            entry_valid: Duration::from_secs(3600),
            attr_valid: Duration::from_secs(3600),
            attr: self.attr(node),
        })
    }

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply {
            attr: self.attr(node),
            attr_valid: Duration::from_secs(3600),
        })
    }

    fn open(&self, _: &Context<'_>, node: NodeId, _: &Open) -> Result<OpenReply> {
        let backing = match node {
            THROUGH => *self.backing.lock().unwrap(),
            _ => None,
        };
        let flags = match node {
            CACHED => OpenFlags::KEEP_CACHE,
            THROUGH if backing.is_some() => OpenFlags::PASSTHROUGH,
            _ => OpenFlags::DIRECT_IO,
        };
        Ok(OpenReply {
            handle: Handle(node.0),
            flags,
            backing,
        })
    }

    fn read(&self, cx: &Context<'_>, node: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        self.blocked.fetch_add(1, Ordering::SeqCst);
        let result = self.misbehave(cx, node);
        self.blocked.fetch_sub(1, Ordering::SeqCst);
        result?;
        let content = self.content.lock().unwrap();
        let rest = content
            .get(args.offset_bytes as usize..)
            .unwrap_or_default();
        let len = rest.len().min(out.len());
        out[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn flush(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Handle,
        _: strandfs_fuse::LockOwner,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    fn release(&self, _: &Context<'_>, _: NodeId, _: &Release) -> Result<()> {
        Ok(())
    }
}

impl Lab {
    pub fn new() -> Arc<Self> {
        Arc::new(Lab {
            connection: OnceLock::new(),
            gate: Default::default(),
            blocked: AtomicUsize::new(0),
            interrupted: AtomicUsize::new(0),
            lookups: AtomicUsize::new(0),
            threads: Mutex::default(),
            destroyed: AtomicUsize::new(0),
            tried: AtomicBool::new(false),
            backing: Mutex::default(),
            content: Mutex::new(b"content".to_vec()),
            silence: rustix::pipe::pipe().expect("a pipe"),
        })
    }
}

/// A mounted lab, served by threads of this process.
pub struct Bench {
    pub lab: Arc<Lab>,
    pub mountpoint: Mountpoint,
    unmounter: Unmounter,
    serving: Option<JoinHandle<End>>,
}

impl Bench {
    pub fn new(max_threads: usize) -> Self {
        Self::on(TransportChoice::Device, max_threads)
    }

    pub fn on(transport: TransportChoice, max_threads: usize) -> Self {
        Self::with(transport, max_threads, None)
    }

    pub fn with(
        transport: TransportChoice,
        max_threads: usize,
        further_readers: Option<usize>,
    ) -> Self {
        let lab = Lab::new();
        let mountpoint = Mountpoint::new();
        let config = SessionConfig {
            wants: Wants {
                flags: InitFlags::PASSTHROUGH | InitFlags::PARALLEL_DIROPS,
                max_stack_depth: 1,
                ..SessionConfig::default().wants
            },
            max_threads: match transport {
                // Each CPU needs one.
                TransportChoice::Ring => 512,
                _ => max_threads,
            },
            transport,
            further_readers,
            ..SessionConfig::default()
        };
        let options = MountOptions::default();
        let session =
            Session::mount(lab.clone(), mountpoint.path(), &options, config).expect("a mount");
        let unmounter = session.unmounter();
        let serving = Some(thread::spawn(move || session.serve().expect("an end")));
        Self {
            lab,
            mountpoint,
            unmounter,
            serving,
        }
    }

    pub fn connection(&self) -> &Connection {
        self.lab.connection.get().expect("init was called")
    }

    /// Reads a file on a thread of its own; the bytes and how long it took.
    pub fn read(&self, name: &str) -> JoinHandle<(std::io::Result<Vec<u8>>, Duration)> {
        let path = self.mountpoint.file(name);
        thread::spawn(move || {
            let start = Instant::now();
            (std::fs::read(path), start.elapsed())
        })
    }

    /// Waits until so many requests are in the hands of the filesystem.
    pub fn wait_for_blocked(&self, count: usize) {
        eventually("requests blocked", || {
            self.lab.blocked.load(Ordering::SeqCst) == count
        });
    }

    pub fn open_gate(&self) {
        *self.lab.gate.0.lock().unwrap() = true;
        self.lab.gate.1.notify_all();
    }

    /// Unmounts; why the session ended.
    pub fn finish(mut self) -> End {
        self.unmounter.unmount().expect("unmount");
        let end = self.serving.take().unwrap().join().expect("no panic");
        assert!(!self.mountpoint.is_mounted());
        assert_eq!(self.lab.destroyed.load(Ordering::SeqCst), 1);
        end
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        *self.lab.gate.0.lock().unwrap_or_else(|it| it.into_inner()) = true;
        self.lab.gate.1.notify_all();
        let _ = self.unmounter.force();
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
    }
}

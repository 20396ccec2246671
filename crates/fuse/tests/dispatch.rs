//! From a message to the bytes of its answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strandfs_fuse::abi::{self, InitFlags, Opcode};
use strandfs_fuse::*;
use support::Idle;
use support::requests::{Parts, device, group_extension};
use zerocopy::FromBytes;

const DIALECT: Dialect = Dialect {
    flags: InitFlags::SETXATTR_EXT,
    minor: 45,
};

/// Answers by the name or handle asked for.
#[derive(Default)]
struct Scripted {
    forgotten: AtomicU64,
}

fn entry(node: u64) -> Entry {
    Entry {
        node: NodeId(node),
        generation: 3,
        entry_valid: Duration::from_millis(1500),
        attr_valid: Duration::from_secs(9),
        attr: FileAttr {
            ino: 100,
            mode: 0o100644,
            rdev: 0x801,
            ..FileAttr::default()
        },
    }
}

impl Filesystem for Scripted {
    fn lookup(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<Entry> {
        assert_eq!(
            (cx.unique, cx.uid, cx.gid, cx.pid),
            (0x1001, 1000, 1001, 77)
        );
        assert_eq!(parent, NodeId(42));
        match name.as_bytes() {
            b"panic" => panic!("as asked"),
            b"restart" => Err(Errno::from_raw_os_error(512)),
            b"none" => Err(Errno::NOENT),
            _ => Ok(entry(7)),
        }
    }
    fn forget(&self, node: NodeId, lookups: u64) {
        assert_ne!(node, NodeId(666), "as asked");
        self.forgotten
            .fetch_add(node.0 * 1000 + lookups, Ordering::Relaxed);
    }
    fn statx(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Option<Handle>,
        _: u32,
        _: u32,
    ) -> Result<StatxReply> {
        let btime = Some(Timestamp {
            seconds: -1,
            nanoseconds: 2,
        });
        let extended = ExtendedAttr {
            attr: entry(1).attr,
            btime,
            ..ExtendedAttr::default()
        };
        Ok(StatxReply {
            extended,
            attr_valid: Duration::from_secs(1),
        })
    }
    fn readlink(&self, _: &Context<'_>, _: NodeId, out: &mut [u8]) -> Result<usize> {
        assert_eq!(out.len(), 4095);
        out[..6].copy_from_slice(b"target");
        Ok(6)
    }
    fn mkdir(&self, cx: &Context<'_>, _: NodeId, _: &MakeNode<'_>) -> Result<Entry> {
        assert_eq!(cx.supplementary_gid, Some(5));
        Ok(entry(8))
    }
    fn create(&self, _: &Context<'_>, _: NodeId, _: &Create<'_>) -> Result<(Entry, OpenReply)> {
        let flags = OpenFlags::PASSTHROUGH | OpenFlags::NOFLUSH;
        Ok((
            entry(9),
            OpenReply {
                handle: Handle(5),
                flags,
                backing: Some(BackingId(3)),
            },
        ))
    }
    fn read(&self, _: &Context<'_>, _: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        out.fill(b'r');
        Ok(if args.handle == Handle(1) {
            out.len() - 1
        } else {
            out.len() + 1
        })
    }
    fn write(&self, _: &Context<'_>, _: NodeId, args: &Write<'_>) -> Result<usize> {
        Ok(args.data.len() + usize::from(args.handle != Handle(1)))
    }
    fn readdir(
        &self,
        _: &Context<'_>,
        _: NodeId,
        handle: Handle,
        _: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        if handle == Handle(1) {
            assert!(sink.push(1, 2, None, OsStr::new("name")));
        }
        Err(Errno::IO)
    }
    fn getxattr(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: &OsStr,
        out: Option<&mut [u8]>,
    ) -> Result<usize> {
        match out {
            None => Ok(70_000),
            Some(out) => {
                out[..3].copy_from_slice(b"abc");
                Ok(3)
            }
        }
    }
    fn ioctl(
        &self,
        _: &Context<'_>,
        _: NodeId,
        args: &Ioctl<'_>,
        out: &mut [u8],
    ) -> Result<IoctlReply> {
        out[..2].copy_from_slice(args.input);
        Ok(IoctlReply {
            result: 4,
            output_bytes: 2,
        })
    }
    fn copy_file_range(&self, _: &Context<'_>, _: NodeId, args: &CopyFileRange) -> Result<u64> {
        Ok(args.len_bytes)
    }
}

/// What `parts` brings: the error, or the bytes of the answer.
fn run(parts: &Parts) -> Result<Vec<u8>> {
    let mut out = vec![0xa5; 8192];
    let bytes = parts.device();
    match dispatch(
        &Scripted::default(),
        &DIALECT,
        &device(&bytes),
        &mut out,
        &Idle,
    ) {
        Outcome::Reply {
            errno: Some(errno),
            len,
        } => {
            assert_eq!(len, 0);
            Err(errno)
        }
        Outcome::Reply { errno: None, len } => Ok(out[..len].to_vec()),
        other => panic!("{other:?}"),
    }
}

fn reply<T: FromBytes>(parts: &Parts) -> T {
    T::read_from_bytes(&run(parts).unwrap()).expect("a reply of that size")
}

fn lookup(name: &[u8]) -> Parts {
    Parts::bare(Opcode::Lookup, name, "")
}

#[test]
fn an_entry_carries_its_times() {
    let out: abi::EntryOut = reply(&lookup(b"some\0"));
    assert_eq!((out.nodeid, out.generation), (7, 3));
    assert_eq!((out.entry_valid, out.entry_valid_nsec), (1, 500_000_000));
    assert_eq!((out.attr_valid, out.attr_valid_nsec), (9, 0));
    assert_eq!((out.attr.ino, out.attr.mode), (100, 0o100644));
}

#[test]
fn errors_reach_the_kernel_if_it_can_take_them() {
    assert_eq!(run(&lookup(b"none\0")), Err(Errno::NOENT));
    assert_eq!(run(&lookup(b"restart\0")), Err(Errno::IO));
    assert_eq!(run(&lookup(b"a/b\0")), Err(Errno::INVAL));
    assert_eq!(
        run(&Parts {
            opcode: 99,
            ..lookup(b"x\0")
        }),
        Err(Errno::NOSYS)
    );
    assert_eq!(
        run(&Parts::bare(Opcode::Statfs, b"", "")),
        Err(Errno::NOSYS)
    );
}

#[test]
fn a_panic_costs_one_request() {
    assert_eq!(run(&lookup(b"panic\0")), Err(Errno::IO));
}

#[test]
fn forgets_are_never_answered() {
    let forget_of = |nodeid: u64, parts: &Parts| {
        let fs = Scripted::default();
        let mut bytes = parts.device();
        bytes[16..24].copy_from_slice(&nodeid.to_ne_bytes());
        let outcome = dispatch(&fs, &DIALECT, &device(&bytes), &mut [], &Idle);
        assert!(matches!(outcome, Outcome::NoReply), "{outcome:?}");
        fs.forgotten.load(Ordering::Relaxed)
    };
    let forget = Parts::new(Opcode::Forget, &[3u64], b"", "");
    assert_eq!(forget_of(42, &forget), 42_003);
    assert_eq!(forget_of(666, &forget), 0);
    let list: Vec<u8> = [1u64, 2, 3, 4]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    let mut batch = Parts::new(Opcode::BatchForget, &[2u32, 0], &list, "");
    assert_eq!(forget_of(0, &batch), 1_002 + 3_004);
    batch.payload.truncate(8);
    assert_eq!(forget_of(0, &batch), 0, "malformed, and still not answered");
}

#[test]
fn the_session_gets_its_own() {
    for opcode in [Opcode::Destroy, Opcode::Interrupt, Opcode::Init] {
        let bytes = Parts::new(opcode, &[7u32, 45, 0, 0], b"", "").device();
        let outcome = dispatch(
            &Scripted::default(),
            &DIALECT,
            &device(&bytes),
            &mut [],
            &Idle,
        );
        assert!(
            matches!(outcome, Outcome::NotForFilesystem(_)),
            "{outcome:?}"
        );
    }
}

#[test]
fn statx_tells_the_birth() {
    let out: abi::StatxOut = reply(&Parts::new(
        Opcode::Statx,
        &abi::StatxIn::default(),
        b"",
        "",
    ));
    assert_eq!(out.stat.mask, 0xfff);
    assert_eq!((out.stat.btime.tv_sec, out.stat.btime.tv_nsec), (-1, 2));
    assert_eq!((out.stat.rdev_major, out.stat.rdev_minor), (8, 1));
    assert_eq!(out.stat.mode, 0o100644);
}

#[test]
fn create_answers_entry_and_open_file() {
    let out = run(&Parts::new(
        Opcode::Create,
        &abi::CreateIn::default(),
        b"new\0",
        "",
    ))
    .unwrap();
    let (entry, rest) = abi::EntryOut::read_from_prefix(&out).unwrap();
    let open = abi::OpenOut::read_from_bytes(rest).unwrap();
    assert_eq!((entry.nodeid, open.fh), (9, 5));
    assert_eq!((open.open_flags, open.backing_id), (1 << 7 | 1 << 5, 3));
}

#[test]
fn creating_sees_the_group() {
    let mut parts = Parts::new(Opcode::Mkdir, &abi::MkdirIn::default(), b"dir\0", "");
    parts.extensions = group_extension(5);
    assert_eq!(reply::<abi::EntryOut>(&parts).nodeid, 8);
}

#[test]
fn data_moves_in_place() {
    let read = |fh, size| {
        run(&Parts::new(
            Opcode::Read,
            &abi::ReadIn {
                fh,
                size,
                ..abi::ReadIn::default()
            },
            b"",
            "",
        ))
    };
    assert_eq!(read(1, 10).unwrap(), b"rrrrrrrrr");
    assert_eq!(read(2, 10), Err(Errno::IO), "more than asked for");
    assert_eq!(
        read(1, 8193),
        Err(Errno::INVAL),
        "more than fits is not the end of the file"
    );
    let write = |fh| {
        let head = abi::WriteIn {
            fh,
            size: 4,
            ..abi::WriteIn::default()
        };
        run(&Parts::new(Opcode::Write, &head, b"data", ""))
    };
    assert_eq!(
        abi::WriteOut::read_from_bytes(&write(1).unwrap())
            .unwrap()
            .size,
        4
    );
    assert_eq!(write(2), Err(Errno::IO), "more than was given");
    assert_eq!(
        run(&Parts::bare(Opcode::Readlink, b"", "")).unwrap(),
        b"target"
    );
}

#[test]
fn an_error_after_entries_waits() {
    let list = |fh| {
        let head = abi::ReadIn {
            fh,
            size: 4096,
            ..abi::ReadIn::default()
        };
        run(&Parts::new(Opcode::Readdir, &head, b"", ""))
    };
    assert_eq!(list(1).unwrap().len(), 32);
    assert_eq!(list(2), Err(Errno::IO));
}

#[test]
fn xattrs_tell_their_length_first() {
    let get = |size| Parts::new(Opcode::Getxattr, &[size, 0u32], b"user.x\0", "");
    assert_eq!(reply::<abi::GetxattrOut>(&get(0)).size, 70_000);
    assert_eq!(run(&get(100_000)).unwrap(), b"abc");
}

#[test]
fn ioctl_answers_behind_its_head() {
    let head = abi::IoctlIn {
        in_size: 2,
        out_size: u32::MAX,
        ..abi::IoctlIn::default()
    };
    let out = run(&Parts::new(Opcode::Ioctl, &head, b"in", "")).unwrap();
    let (head, data) = abi::IoctlOut::read_from_prefix(&out).unwrap();
    assert_eq!((head.result, data), (4, &b"in"[..]));
}

#[test]
fn a_narrow_copy_stays_narrow() {
    let head = abi::CopyFileRangeIn {
        len: u64::MAX,
        ..abi::CopyFileRangeIn::default()
    };
    let narrow: abi::WriteOut = reply(&Parts::new(Opcode::CopyFileRange, &head, b"", ""));
    assert_eq!(narrow.size, 0xffff_f000);
    let wide: abi::CopyFileRangeOut = reply(&Parts::new(Opcode::CopyFileRange64, &head, b"", ""));
    assert_eq!(wide.bytes_copied, u64::MAX);
}

//! The part of the table about open files and what is left over.

use strandfs_fuse_abi::*;

use super::Parts;

/// Opening, reading and writing, listing, locking, and the rest.
pub fn requests() -> Vec<Parts> {
    [opens(), files(), copies(), listings(), locks(), rest()].concat()
}

fn opens() -> Vec<Parts> {
    let create = CreateIn {
        flags: 0o102,
        mode: 0o100644,
        umask: 0o22,
        open_flags: 1,
    };
    let release = ReleaseIn {
        fh: 5,
        flags: 2,
        release_flags: 2,
        lock_owner: 6,
    };
    let released = "(Release { handle: Handle(5), flags: 2, \
                    flock_owner: Some(LockOwner(6)), flush: false })";
    vec![
        Parts::new(
            Opcode::Open,
            &OpenIn {
                flags: 0o1302,
                open_flags: 1,
            },
            b"",
            "Open(Open { flags: 514, kill_suidgid: true })",
        ),
        Parts::new(
            Opcode::Opendir,
            &OpenIn {
                flags: 0o200000,
                open_flags: 0,
            },
            b"",
            "Opendir { flags: 65536 }",
        ),
        Parts::new(
            Opcode::Create,
            &create,
            b"new\0",
            r#"Create(Create { name: "new", mode: 33188, umask: 18, flags: 66, kill_suidgid: true })"#,
        ),
        // The kernel's name for a file without one is `/`.
        Parts::new(
            Opcode::Tmpfile,
            &create,
            b"/\0",
            r#"Tmpfile(Create { name: "/", mode: 33188, umask: 18, flags: 66, kill_suidgid: true })"#,
        ),
        Parts::new(
            Opcode::Flush,
            &FlushIn {
                fh: 5,
                unused: 9,
                padding: 9,
                lock_owner: 6,
            },
            b"",
            "Flush { handle: Handle(5), owner: LockOwner(6) }",
        ),
        Parts::new(
            Opcode::Release,
            &release,
            b"",
            &format!("Release{released}"),
        ),
        Parts::new(
            Opcode::Releasedir,
            &release,
            b"",
            &format!("Releasedir{released}"),
        ),
    ]
}

fn files() -> Vec<Parts> {
    let read = ReadIn {
        fh: 5,
        offset: 6,
        size: 7,
        read_flags: 2,
        lock_owner: 8,
        flags: 9,
        padding: 99,
    };
    let write = WriteIn {
        fh: 5,
        offset: 6,
        size: 4,
        write_flags: 5,
        lock_owner: 8,
        flags: 9,
        padding: 99,
    };
    vec![
        Parts::new(
            Opcode::Read,
            &read,
            b"",
            "Read { args: Read { handle: Handle(5), offset_bytes: 6, flags: 9, \
             lock_owner: Some(LockOwner(8)) }, size_bytes: 7 }",
        ),
        Parts::new(
            Opcode::Write,
            &write,
            b"data",
            "Write(Write { handle: Handle(5), offset_bytes: 6, data: [100, 97, 116, 97], \
             flags: 9, from_cache: true, kill_suidgid: true, lock_owner: None })",
        ),
        Parts::new(
            Opcode::Fsync,
            &FsyncIn {
                fh: 5,
                fsync_flags: 1,
                padding: 9,
            },
            b"",
            "Fsync { handle: Handle(5), scope: DataOnly }",
        ),
        Parts::new(
            Opcode::Fallocate,
            &FallocateIn {
                fh: 5,
                offset: 6,
                length: 7,
                mode: 3,
                padding: 9,
            },
            b"",
            "Fallocate(Fallocate { handle: Handle(5), offset_bytes: 6, len_bytes: 7, mode: 3 })",
        ),
        Parts::new(
            Opcode::Lseek,
            &LseekIn {
                fh: 5,
                offset: 6,
                whence: 3,
                padding: 9,
            },
            b"",
            "Lseek { handle: Handle(5), offset_bytes: 6, whence: 3 }",
        ),
    ]
}

fn copies() -> Vec<Parts> {
    let copy = CopyFileRangeIn {
        fh_in: 1,
        off_in: 2,
        nodeid_out: 3,
        fh_out: 4,
        off_out: 5,
        len: 6,
        flags: 7,
    };
    let copied = "CopyFileRange { args: CopyFileRange { handle_in: Handle(1), offset_in_bytes: 2, \
                  node_out: NodeId(3), handle_out: Handle(4), offset_out_bytes: 5, len_bytes: 6, \
                  flags: 7 }, wide: ";
    vec![
        Parts::new(
            Opcode::CopyFileRange,
            &copy,
            b"",
            &format!("{copied}false }}"),
        ),
        Parts::new(
            Opcode::CopyFileRange64,
            &copy,
            b"",
            &format!("{copied}true }}"),
        ),
    ]
}

fn listings() -> Vec<Parts> {
    let read = ReadIn {
        fh: 5,
        offset: 6,
        size: 4096,
        ..ReadIn::default()
    };
    let listed = "{ handle: Handle(5), offset: 6, size_bytes: 4096 }";
    vec![
        Parts::new(Opcode::Readdir, &read, b"", &format!("Readdir {listed}")),
        Parts::new(
            Opcode::Readdirplus,
            &read,
            b"",
            &format!("Readdirplus {listed}"),
        ),
        Parts::new(
            Opcode::Fsyncdir,
            &FsyncIn {
                fh: 5,
                fsync_flags: 0,
                padding: 9,
            },
            b"",
            "Fsyncdir { handle: Handle(5), scope: All }",
        ),
        Parts::new(Opcode::Syncfs, &SyncfsIn { padding: 0 }, b"", "Syncfs"),
    ]
}

fn locks() -> Vec<Parts> {
    let lock = |kind, lk_flags| LkIn {
        fh: 5,
        owner: 6,
        lk: FileLock {
            start: 7,
            end: i64::MAX.cast_unsigned(),
            kind,
            pid: 8,
        },
        lk_flags,
        padding: 9,
    };
    let asked = |name: &str, kind: &str, flock: bool, wait: bool| {
        format!(
            "{name}(LockRequest {{ handle: Handle(5), owner: LockOwner(6), lock: Lock {{ \
             kind: {kind}, start_bytes: 7, end_bytes: 9223372036854775807, pid: 8 }}, \
             flock: {flock}, wait: {wait} }})"
        )
    };
    vec![
        Parts::new(
            Opcode::Getlk,
            &lock(0, 0),
            b"",
            &asked("Getlk", "Shared", false, false),
        ),
        Parts::new(
            Opcode::Setlk,
            &lock(2, 0),
            b"",
            &asked("Setlk", "Unlock", false, false),
        ),
        Parts::new(
            Opcode::Setlkw,
            &lock(1, 1),
            b"",
            &asked("Setlk", "Exclusive", true, true),
        ),
    ]
}

fn rest() -> Vec<Parts> {
    let ioctl = IoctlIn {
        fh: 5,
        flags: 0b11_1001,
        cmd: 6,
        arg: 7,
        in_size: 2,
        out_size: 8,
    };
    let init = InitIn {
        major: 7,
        minor: 45,
        max_readahead: 6,
        flags: 7,
        flags2: 8,
        unused: [0; 11],
    };
    vec![
        Parts::new(
            Opcode::Bmap,
            &BmapIn {
                block: 5,
                blocksize: 512,
                padding: 9,
            },
            b"",
            "Bmap { block: 5, block_size_bytes: 512 }",
        ),
        Parts::new(
            Opcode::Ioctl,
            &ioctl,
            b"in",
            "Ioctl(Ioctl { handle: Handle(5), command: 6, argument: 7, input: [105, 110], \
             directory: true, words_of_32_bits: true, output_max_bytes: 8 })",
        ),
        Parts::new(
            Opcode::Poll,
            &PollIn {
                fh: 5,
                kh: 6,
                flags: 1,
                events: 7,
            },
            b"",
            "Poll { handle: Handle(5), waiter: 6, notify: true, events: 7 }",
        ),
        Parts::new(
            Opcode::Setupmapping,
            &SetupmappingIn::default(),
            b"",
            "Setupmapping",
        ),
        Parts::new(
            Opcode::Removemapping,
            &RemovemappingIn { count: 0 },
            b"",
            "Removemapping",
        ),
        Parts::new(
            Opcode::Init,
            &init,
            b"",
            "Init(InitIn { major: 7, minor: 45, max_readahead: 6, flags: 7, flags2: 8, \
             unused: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] })",
        ),
        Parts::bare(Opcode::Destroy, b"", "Destroy"),
        Parts::new(
            Opcode::Interrupt,
            &InterruptIn { unique: 12 },
            b"",
            "Interrupt { unique: 12 }",
        ),
        Parts::new(
            Opcode::NotifyReply,
            &NotifyRetrieveIn {
                offset: 6,
                size: 2,
                ..NotifyRetrieveIn::default()
            },
            b"ab",
            "NotifyReply { offset_bytes: 6, data: [97, 98] }",
        ),
    ]
}

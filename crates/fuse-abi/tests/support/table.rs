//! One well-formed request of every kind.

use strandfs_fuse_abi::*;

use super::{Parts, group_extension, table_files};

/// All of them; SETXATTR in its longer form.
pub fn every_request() -> Vec<Parts> {
    let mut all = [names(), forgets(), attributes(), xattrs()].concat();
    all.extend(table_files::requests());
    all
}

fn names() -> Vec<Parts> {
    let mknod = MknodIn {
        mode: 0o10644,
        rdev: 0x801,
        umask: 0o22,
        padding: 9,
    };
    let mkdir = MkdirIn {
        mode: 0o755,
        umask: 0o27,
    };
    let mut symlink = Parts::bare(
        Opcode::Symlink,
        b"name\0../tar get\0",
        r#"Symlink { name: "name", target: "../tar get" }"#,
    );
    symlink.extensions = group_extension(5);
    let mut made = Parts::new(
        Opcode::Mkdir,
        &mkdir,
        b"dir\0",
        r#"Mkdir(MakeNode { name: "dir", mode: 493, umask: 23, rdev: 0 })"#,
    );
    made.extensions = group_extension(6);
    vec![
        Parts::bare(Opcode::Lookup, b"a name\0", r#"Lookup { name: "a name" }"#),
        Parts::bare(Opcode::Lookup, b"..\0", r#"Lookup { name: ".." }"#),
        symlink,
        Parts::new(
            Opcode::Mknod,
            &mknod,
            b"pipe\0",
            r#"Mknod(MakeNode { name: "pipe", mode: 4516, umask: 18, rdev: 2049 })"#,
        ),
        made,
        Parts::bare(Opcode::Unlink, b"gone\0", r#"Unlink { name: "gone" }"#),
        Parts::bare(Opcode::Rmdir, b"gone\0", r#"Rmdir { name: "gone" }"#),
        Parts::new(
            Opcode::Rename,
            &RenameIn { newdir: 43 },
            b"old\0new\0",
            r#"Rename(Rename { name: "old", new_parent: NodeId(43), new_name: "new", flags: 0 })"#,
        ),
        Parts::new(
            Opcode::Rename2,
            &Rename2In {
                newdir: 43,
                flags: 2,
                padding: 9,
            },
            b"old\0new\0",
            r#"Rename(Rename { name: "old", new_parent: NodeId(43), new_name: "new", flags: 2 })"#,
        ),
        Parts::new(
            Opcode::Link,
            &LinkIn { oldnodeid: 44 },
            b"more\0",
            r#"Link { node: NodeId(44), new_name: "more" }"#,
        ),
    ]
}

fn forgets() -> Vec<Parts> {
    let list = [[1u64, 2], [3, 4]];
    let bytes: Vec<u8> = list
        .iter()
        .flatten()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    let left = format!("BatchForget(ForgetList {{ left: {bytes:?} }})");
    vec![
        Parts::new(
            Opcode::Forget,
            &ForgetIn { nlookup: 3 },
            b"",
            "Forget { lookups: 3 }",
        ),
        Parts::new(
            Opcode::BatchForget,
            &BatchForgetIn { count: 2, dummy: 9 },
            &bytes,
            &left,
        ),
    ]
}

fn attributes() -> Vec<Parts> {
    let setattr = SetattrIn {
        valid: 0xfff & !(1 << 8),
        padding: 9,
        fh: 1,
        size: 2,
        lock_owner: 3,
        atime: 4,
        mtime: 5u64.wrapping_neg(),
        ctime: 6,
        atimensec: u32::MAX,
        mtimensec: 8,
        ctimensec: 9,
        mode: 10,
        unused4: 99,
        uid: 11,
        gid: 12,
        unused5: 99,
    };
    vec![
        Parts::new(
            Opcode::Getattr,
            &GetattrIn {
                getattr_flags: 1,
                dummy: 9,
                fh: 5,
            },
            b"",
            "Getattr { handle: Some(Handle(5)) }",
        ),
        Parts::new(
            Opcode::Statx,
            &StatxIn {
                getattr_flags: 0,
                reserved: 9,
                fh: 5,
                sx_flags: 0x4000,
                sx_mask: 0xfff,
            },
            b"",
            "Statx { handle: None, mask: 4095, sync_flags: 16384 }",
        ),
        // ATIME and ATIME_NOW: the time beside it does not count, not even its nanoseconds.
        Parts::new(
            Opcode::Setattr,
            &setattr,
            b"",
            "Setattr(SetAttr { mode: Some(10), uid: Some(11), gid: Some(12), \
             size_bytes: Some(2), atime: Some(Now), \
             mtime: Some(At(Timestamp { seconds: -5, nanoseconds: 8 })), \
             ctime: Some(Timestamp { seconds: 6, nanoseconds: 9 }), handle: Some(Handle(1)), \
             lock_owner: Some(LockOwner(3)), kill_suidgid: true })",
        ),
        Parts::new(
            Opcode::Setattr,
            &SetattrIn {
                valid: 0,
                ..setattr
            },
            b"",
            "Setattr(SetAttr { mode: None, uid: None, gid: None, size_bytes: None, atime: None, \
             mtime: None, ctime: None, handle: None, lock_owner: None, kill_suidgid: false })",
        ),
        Parts::bare(Opcode::Readlink, b"", "Readlink"),
        Parts::bare(Opcode::Statfs, b"", "Statfs"),
        Parts::new(
            Opcode::Access,
            &AccessIn {
                mask: 4,
                padding: 9,
            },
            b"",
            "Access { mask: 4 }",
        ),
    ]
}

fn xattrs() -> Vec<Parts> {
    vec![
        Parts::new(
            Opcode::Setxattr,
            &SetxattrIn {
                size: 3,
                flags: 2,
                setxattr_flags: 1,
                padding: 9,
            },
            b"user.x\0a\0b",
            r#"Setxattr(SetXattr { name: "user.x", value: [97, 0, 98], flags: 2, kill_sgid: true })"#,
        ),
        Parts::new(
            Opcode::Getxattr,
            &GetxattrIn {
                size: 100,
                padding: 9,
            },
            b"user.x\0",
            r#"Getxattr { name: "user.x", size_bytes: 100 }"#,
        ),
        Parts::new(
            Opcode::Listxattr,
            &GetxattrIn {
                size: 100,
                padding: 9,
            },
            b"",
            "Listxattr { size_bytes: 100 }",
        ),
        Parts::bare(
            Opcode::Removexattr,
            b"user.x/y\0",
            r#"Removexattr { name: "user.x/y" }"#,
        ),
    ]
}

//! Sizes and offsets as the kernel has them (from `pahole` and `linux/fuse.h`).

use std::mem::{offset_of, size_of};

use super::*;

#[test]
fn sizes() {
    let table = [
        ("InHeader", size_of::<InHeader>(), 40),
        ("OutHeader", size_of::<OutHeader>(), 16),
        ("InitIn", size_of::<InitIn>(), 64),
        ("InitOut", size_of::<InitOut>(), 64),
        ("InterruptIn", size_of::<InterruptIn>(), 8),
        ("Attr", size_of::<Attr>(), 88),
        ("AttrOut", size_of::<AttrOut>(), 104),
        ("GetattrIn", size_of::<GetattrIn>(), 16),
        ("SetattrIn", size_of::<SetattrIn>(), 88),
        ("StatfsOut", size_of::<StatfsOut>(), 80),
        ("AccessIn", size_of::<AccessIn>(), 8),
        ("StatxIn", size_of::<StatxIn>(), 24),
        ("Statx", size_of::<Statx>(), 256),
        ("StatxOut", size_of::<StatxOut>(), 288),
        ("EntryOut", size_of::<EntryOut>(), 128),
        ("ForgetOne", size_of::<ForgetOne>(), 16),
        ("BatchForgetIn", size_of::<BatchForgetIn>(), 8),
        ("MknodIn", size_of::<MknodIn>(), 16),
        ("MkdirIn", size_of::<MkdirIn>(), 8),
        ("RenameIn", size_of::<RenameIn>(), 8),
        ("Rename2In", size_of::<Rename2In>(), 16),
        ("LinkIn", size_of::<LinkIn>(), 8),
        ("OpenIn", size_of::<OpenIn>(), 8),
        ("CreateIn", size_of::<CreateIn>(), 16),
        ("OpenOut", size_of::<OpenOut>(), 16),
        ("ReleaseIn", size_of::<ReleaseIn>(), 24),
        ("FlushIn", size_of::<FlushIn>(), 24),
        ("ReadIn", size_of::<ReadIn>(), 40),
        ("WriteIn", size_of::<WriteIn>(), 40),
        ("WriteOut", size_of::<WriteOut>(), 8),
        ("FsyncIn", size_of::<FsyncIn>(), 16),
        ("SyncfsIn", size_of::<SyncfsIn>(), 8),
        ("FallocateIn", size_of::<FallocateIn>(), 32),
        ("LseekIn", size_of::<LseekIn>(), 24),
        ("LseekOut", size_of::<LseekOut>(), 8),
        ("CopyFileRangeIn", size_of::<CopyFileRangeIn>(), 56),
        ("CopyFileRangeOut", size_of::<CopyFileRangeOut>(), 8),
        ("IoctlIn", size_of::<IoctlIn>(), 32),
        ("IoctlOut", size_of::<IoctlOut>(), 16),
        ("PollIn", size_of::<PollIn>(), 24),
        ("PollOut", size_of::<PollOut>(), 8),
        ("BmapIn", size_of::<BmapIn>(), 16),
        ("BmapOut", size_of::<BmapOut>(), 8),
        ("SetupmappingIn", size_of::<SetupmappingIn>(), 40),
        ("RemovemappingIn", size_of::<RemovemappingIn>(), 4),
        ("RemovemappingOne", size_of::<RemovemappingOne>(), 16),
        ("Dirent", size_of::<Dirent>(), 24),
        ("Direntplus", size_of::<Direntplus>(), 152),
        ("FileLock", size_of::<FileLock>(), 24),
        ("LkIn", size_of::<LkIn>(), 48),
        ("LkOut", size_of::<LkOut>(), 24),
        ("SetxattrInCompat", size_of::<SetxattrInCompat>(), 8),
        ("SetxattrIn", size_of::<SetxattrIn>(), 16),
        ("GetxattrIn", size_of::<GetxattrIn>(), 8),
        ("GetxattrOut", size_of::<GetxattrOut>(), 8),
        ("ExtHeader", size_of::<ExtHeader>(), 8),
        ("Secctx", size_of::<Secctx>(), 8),
        ("NotifyInvalInodeOut", size_of::<NotifyInvalInodeOut>(), 24),
        ("NotifyInvalEntryOut", size_of::<NotifyInvalEntryOut>(), 16),
        ("NotifyDeleteOut", size_of::<NotifyDeleteOut>(), 24),
        ("NotifyStoreOut", size_of::<NotifyStoreOut>(), 24),
        ("NotifyRetrieveOut", size_of::<NotifyRetrieveOut>(), 32),
        ("NotifyRetrieveIn", size_of::<NotifyRetrieveIn>(), 40),
        ("NotifyPruneOut", size_of::<NotifyPruneOut>(), 16),
        ("UringReqHeader", size_of::<UringReqHeader>(), 288),
        ("UringEntInOut", size_of::<UringEntInOut>(), 32),
        ("UringCmdReq", size_of::<UringCmdReq>(), 24),
        ("BackingMap", size_of::<BackingMap>(), 16),
    ];
    for (name, found, expected) in table {
        assert_eq!(found, expected, "size of {name}");
    }
}

#[test]
fn offsets() {
    assert_eq!(offset_of!(InHeader, unique), 8);
    assert_eq!(offset_of!(InHeader, total_extlen), 36);
    assert_eq!(offset_of!(InitOut, max_write), 20);
    assert_eq!(offset_of!(InitOut, max_pages), 28);
    assert_eq!(offset_of!(InitOut, flags2), 32);
    assert_eq!(offset_of!(InitOut, max_stack_depth), 36);
    assert_eq!(offset_of!(InitOut, request_timeout), 40);
    assert_eq!(offset_of!(Attr, mode), 60);
    assert_eq!(offset_of!(SetattrIn, uid), 76);
    assert_eq!(offset_of!(EntryOut, attr), 40);
    assert_eq!(offset_of!(OpenOut, backing_id), 12);
    assert_eq!(offset_of!(Statx, ino), 32);
    assert_eq!(offset_of!(Statx, atime), 64);
    assert_eq!(offset_of!(Statx, rdev_major), 128);
    assert_eq!(offset_of!(StatxOut, stat), 32);
    assert_eq!(offset_of!(UringReqHeader, ring_ent_in_out), 256);
    assert_eq!(offset_of!(UringEntInOut, payload_sz), 16);
}

#[test]
fn flags_keep_unknown_bits() {
    let all = InitFlags::from_words(u32::MAX, u32::MAX);
    assert_eq!(all.bits(), u64::MAX);
    assert_eq!(all.words(), (u32::MAX, u32::MAX));
    assert_eq!(InitFlags::OVER_IO_URING.words(), (0, 1 << 9));
    assert_eq!(InitFlags::PASSTHROUGH.words(), (0, 1 << 5));
}

#[test]
fn opcodes_convert_both_ways() {
    for opcode in Opcode::ALL {
        assert_eq!(Opcode::try_from(*opcode as u32), Ok(*opcode));
    }
    for unknown in [0, 7, 19, 54, 4097, 1 << 20, u32::MAX] {
        assert_eq!(Opcode::try_from(unknown), Err(UnknownOpcode(unknown)));
    }
}

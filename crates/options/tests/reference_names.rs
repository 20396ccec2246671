//! No option of mergerfs is missing: every name it has or had is one the table answers to.
#![allow(clippy::unwrap_used, clippy::panic)]

use strandfs_options::table;

/// Its current options, the ones it hides among them.
const CURRENT: &str = "
    allow-idmap async-read branches branches-mount-timeout branches-mount-timeout-fail
    cache.attr cache.entry cache.files cache.files.process-names cache.negative-entry cache.readdir
    cache.statfs cache.symlinks cache.writeback
    category.action category.create category.search config debug direct-io-allow-mmap
    dropcacheonclose export-support flush-on-close follow-symlinks fsname
    func.access func.chmod func.chown func.create func.getattr func.getxattr func.link
    func.listxattr func.mkdir func.mknod func.open func.readdir func.readlink func.removexattr
    func.rename func.rmdir func.setxattr func.symlink func.truncate func.unlink func.utimens
    fuse-msg-size gid handle-killpriv handle-killpriv-v2 ignorepponrename inodecalc
    kernel-permissions-check lazy-umount-mountpoint link-cow link-exdev log.file minfreespace
    mount mountpoint moveonenospc never-forget-nodes nfsopenhack nullrw parallel-direct-writes
    passthrough.io passthrough.max-stack-depth pin-threads posix-acl process-thread-count
    process-thread-queue-depth proxy-ioprio read-thread-count readahead rename-exdev
    scheduling-priority security-capability srcmounts statfs statfs-ignore symlinkify
    symlinkify-timeout threads uid umask xattr";

/// What it still takes from former versions.
const FORMER: &str = "
    atomic-o-trunc attr-timeout auto-cache big-writes cache.open defaults direct-io entry-timeout
    gid-cache.expire-timeout gid-cache.remove-timeout hard-remove kernel-cache negative-entry
    negative-timeout no-splice-move no-splice-read no-splice-write noforget nonempty remember
    remember-nodes splice-move splice-read splice-write sync-read use-ino";

/// What its mount code and mount helper take, and what mount(8) passes to it.
const OF_MOUNTING: &str = "
    allow-other async atime auto auto-unmount blkdev blksize context default-permissions
    defcontext dev diratime dirsync exec fscontext large-read lazytime max-read noatime noauto
    nodev nodiratime noexec nofail nolazytime norelatime nostrictatime nosuid nouser relatime ro
    rootcontext rw setuid strictatime subtype suid sync user users _netdev x-systemd.automount
    x-gvfs-show";

// `pid` and `version` are in its list of keys too; they can only be read and are no options.

fn names() -> impl Iterator<Item = &'static str> {
    [CURRENT, FORMER, OF_MOUNTING]
        .into_iter()
        .flat_map(str::split_whitespace)
}

#[test]
fn every_name_of_mergerfs_is_known_in_both_spellings() {
    let mut unknown = Vec::new();
    for name in names() {
        for spelling in [name.to_owned(), name.replace('-', "_")] {
            if table::find(&spelling).is_none() {
                unknown.push(spelling);
            }
        }
        assert_eq!(
            table::find(name).map(|(option, _)| option.name),
            table::find(&name.replace('-', "_")).map(|(option, _)| option.name),
        );
    }
    assert_eq!(unknown, Vec::<String>::new());
}

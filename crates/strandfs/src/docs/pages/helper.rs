//! mount.strandfs(8) and umount.fuse.strandfs(8).

use clap::CommandFactory;

use super::arguments;
use crate::docs::man::Page;
use crate::exit::MOUNT_TABLE;
use crate::mount_helper::HelperArgs;
use crate::umount_helper::UmountHelperArgs;

const FSTAB: &str = "\
/mnt/disk1:/mnt/disk2:/mnt/archive=NC  /mnt/pool  strandfs  category.create=mfs,nofail  0 0
media                                  /mnt/media strandfs  defaults                    0 0";

/// The page of the helper that mounts.
pub fn page() -> String {
    let mut page = Page::new("mount.strandfs", "8", "mount a pool for mount(8)");
    page.section("Synopsis");
    page.paragraph("`mount -t strandfs` [`-o` OPTIONS] SOURCE DIR");
    page.paragraph(
        "`mount.strandfs` SOURCE DIR [`-sfnv`] [`-N` NAMESPACE] [`-o` OPTIONS] [`-t` TYPE]",
    );
    page.section("Description").paragraph(
        "mount(8) starts this program for the types `strandfs` and `fuse.strandfs`. SOURCE is a \
        list of branches as in strandfs(1), joined by colons, or NAME for \
        `/etc/strandfs/NAME.toml`, or a path that ends in `.toml`. The program returns when the \
        pool serves.",
    );
    page.paragraph(
        "A line of fstab that was written for mergerfs needs no other change than of its type. \
        Options that are no longer needed are accepted, and named in the log.",
    );
    page.section("Arguments");
    arguments(&mut page, &HelperArgs::command());
    page.section("Mount options").paragraph(
        "Those of strandfs(1), and what mount(8) knows itself, which is left to it: `auto`, \
        `noauto`, `nofail`, `_netdev`, `user`, `users`, `x-systemd.*` and the like. Unlike \
        `strandfs mount`, a mount by root honours set-id bits and devices, as for any filesystem; \
        `nosuid` and `nodev` forbid them.",
    );
    page.item(
        "remount",
        "Set the mount flags anew: `ro`, `nosuid`, `noatime` and the like. Other options are \
        changed while the pool is mounted as strandfs(1) says.",
    );
    page.section("Examples").literal(FSTAB);
    page.section("Exit status");
    for (_, code, meaning) in &MOUNT_TABLE {
        page.item(&code.to_string(), meaning);
    }
    page.section("See also");
    page.paragraph(
        "`strandfs`(1), `strandfs.toml`(5), `umount.fuse.strandfs`(8), `mount`(8), `fstab`(5)",
    );
    page.render()
}

/// The page of the helper that unmounts.
pub fn unmounting() -> String {
    let mut page = Page::new("umount.fuse.strandfs", "8", "unmount a pool for umount(8)");
    page.section("Synopsis");
    page.paragraph("`umount` [`-flrv`] DIR");
    page.paragraph("`umount.fuse.strandfs` DIR [`-flnrv`] [`-N` NAMESPACE] [`-t` TYPE]");
    page.section("Description").paragraph(
        "umount(8) starts this program for pools, and so does systemd for its mount units. The pool \
        is unmounted as by `strandfs umount`: the program returns when the server has ended, 15 \
        seconds later at most. Then nothing holds the branches any more, and their disks can be \
        unmounted. `umount -i` does without this program, and does not wait.",
    );
    page.paragraph(
        "umount(8) looks at what filesystem a FUSE mount is only with one of its options, or where \
        the line of fstab has a word that mount(8) notes, such as `x-systemd.requires-mounts-for` \
        or `_netdev`. Of other lines, and of pools that `strandfs mount` mounted, `umount` does not \
        wait: there `strandfs umount` does.",
    );
    page.section("Arguments");
    arguments(&mut page, &UmountHelperArgs::command());
    page.section("Exit status");
    page.item("0", "Unmounted; with `-r` perhaps read-only instead.");
    page.item("1", "A mistake in the arguments.");
    page.item(
        "32",
        "Not unmounted; a sentence on standard error says why.",
    );
    page.section("See also");
    page.paragraph("`strandfs`(1), `mount.strandfs`(8), `umount`(8)");
    page.render()
}

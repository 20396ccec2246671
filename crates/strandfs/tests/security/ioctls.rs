//! Every ioctl in both widths, as a user who does not own the file.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::IFlags;
use rustix::io::Errno;

use super::people::{ALICE, MALLORY, act_as, command_as};
use super::support::files::put;
use super::support::{Kind, Pool, mounts, say};
use crate::{need_root, need_tool};

/// What `chattr` sets, as FS_IOC_SETFLAGS has it.
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const NODUMP: u32 = 0x40;
const NOATIME: u32 = 0x80;
/// The same and others, as FS_IOC_FSSETXATTR has it.
const X_IMMUTABLE: u32 = 0x8;
const X_APPEND: u32 = 0x10;
const X_PROJINHERIT: u32 = 0x200;

const GET_FLAGS: u32 = 0x8008_6601;
const GET_VERSION: u32 = 0x8008_7601;
const GET_FSX: u32 = 0x801c_581f;

/// Commands that ask or change something of an inode, by name: what is passed is the argument's
/// words, given what FS_IOC_GETFLAGS and FS_IOC_FSGETXATTR say before.
type Words = fn(u32, [u32; 7]) -> [u32; 7];

fn with_flags(flags: u32, wanted: u32) -> [u32; 7] {
    [flags | wanted, 0, 0, 0, 0, 0, 0]
}

fn with_xflags(mut fsx: [u32; 7], wanted: u32) -> [u32; 7] {
    fsx[0] |= wanted;
    fsx
}

fn with_project(mut fsx: [u32; 7]) -> [u32; 7] {
    fsx[3] = 4242;
    fsx
}

const COMMANDS: &[(&str, u32, Words)] = &[
    ("GETFLAGS", GET_FLAGS, |_, _| [0; 7]),
    ("GETFLAGS of 32 bits", 0x8004_6601, |_, _| [0; 7]),
    ("GETVERSION", GET_VERSION, |_, _| [0; 7]),
    ("GETVERSION of 32 bits", 0x8004_7601, |_, _| [0; 7]),
    ("FSGETXATTR", GET_FSX, |_, _| [0; 7]),
    ("SETFLAGS as it is", 0x4008_6602, |f, _| with_flags(f, 0)),
    ("SETFLAGS nodump", 0x4008_6602, |f, _| with_flags(f, NODUMP)),
    ("SETFLAGS noatime", 0x4008_6602, |f, _| {
        with_flags(f, NOATIME)
    }),
    ("SETFLAGS immutable", 0x4008_6602, |f, _| {
        with_flags(f, IMMUTABLE)
    }),
    ("SETFLAGS append", 0x4008_6602, |f, _| with_flags(f, APPEND)),
    ("SETFLAGS nothing", 0x4008_6602, |_, _| [0; 7]),
    ("SETFLAGS of 32 bits nodump", 0x4004_6602, |f, _| {
        with_flags(f, NODUMP)
    }),
    ("SETFLAGS of 32 bits immutable", 0x4004_6602, |f, _| {
        with_flags(f, IMMUTABLE)
    }),
    ("SETFLAGS of 32 bits append", 0x4004_6602, |f, _| {
        with_flags(f, APPEND)
    }),
    ("SETFLAGS of 32 bits nothing", 0x4004_6602, |_, _| [0; 7]),
    ("SETVERSION", 0x4008_7602, |_, _| [77, 0, 0, 0, 0, 0, 0]),
    ("SETVERSION of 32 bits", 0x4004_7602, |_, _| {
        [77, 0, 0, 0, 0, 0, 0]
    }),
    ("FSSETXATTR as it is", 0x401c_5820, |_, x| x),
    ("FSSETXATTR project", 0x401c_5820, |_, x| with_project(x)),
    ("FSSETXATTR inherit", 0x401c_5820, |_, x| {
        with_xflags(x, X_PROJINHERIT)
    }),
    ("FSSETXATTR immutable", 0x401c_5820, |_, x| {
        with_xflags(x, X_IMMUTABLE)
    }),
    ("FSSETXATTR append", 0x401c_5820, |_, x| {
        with_xflags(x, X_APPEND)
    }),
];

/// What must not reach a branch, whoever asks; tried as a user, for some of it stops a disk.
const NEVER: &[(&str, u32)] = &[
    ("FIFREEZE", 0xc004_5877),
    ("FITHAW", 0xc004_5878),
    ("FITRIM", 0xc018_5879),
    ("FS_IOC_SHUTDOWN", 0x8004_587d),
    ("FS_IOC_SETFSLABEL", 0x4100_9432),
    ("FICLONE", 0x4004_9409),
    ("FICLONERANGE", 0x4020_940d),
    ("FIDEDUPERANGE", 0xc018_9436),
    ("EXT4_IOC_SETVERSION_OLD", 0x4008_6604),
    ("EXT4_IOC_MOVE_EXT", 0xc028_660f),
    ("EXT4_IOC_MIGRATE", 0x6609),
    ("EXT4_IOC_SWAP_BOOT", 0x6611),
    ("EXT4_IOC_RESIZE_FS", 0x4008_6610),
    ("FS_IOC_SET_ENCRYPTION_POLICY", 0x800c_6613),
    ("FS_IOC_ADD_ENCRYPTION_KEY", 0xc050_6617),
    ("FS_IOC_ENABLE_VERITY", 0x4080_6685),
    ("XFS_IOC_FREE_EOFBLOCKS", 0x8080_583a),
    ("XFS_IOC_SWAPEXT", 0xc0c0_586d),
    ("BTRFS_IOC_SUBVOL_SETFLAGS", 0x4008_941a),
];

/// How a call is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Width {
    Wide,
    /// As a 32-bit program makes it.
    Narrow,
}

fn ioctl(file: &File, width: Width, command: u32, words: &mut [u32; 7]) -> Result<(), Errno> {
    let mut room = [0u32; 16];
    room[..7].copy_from_slice(words);
    let result = match width {
        Width::Wide => {
            // SAFETY: no command here transfers more than the 64 bytes of `room`, which lives on.
            let result = unsafe {
                libc::ioctl(
                    file.as_raw_fd(),
                    command as libc::Ioctl,
                    room.as_mut_ptr().cast::<libc::c_void>(),
                )
            };
            match result {
                -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
                _ => Ok(()),
            }
        }
        Width::Narrow => narrow::ioctl(file, command, &mut room),
    };
    words.copy_from_slice(&room[..7]);
    result
}

#[cfg(target_arch = "x86_64")]
mod narrow {
    use super::*;

    /// Whether the kernel takes calls of 32-bit programs.
    pub fn is_possible() -> bool {
        Path::new("/proc/sys/abi/vsyscall32").exists()
    }

    /// ioctl(2) by the gate of 32-bit programs: the kernel sees one of those.
    pub fn ioctl(file: &File, command: u32, room: &mut [u32; 16]) -> Result<(), Errno> {
        const IOCTL: i32 = 54;
        // SAFETY: a new private mapping, below 4 GiB where such programs have theirs.
        let low = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT,
                -1,
                0,
            )
        };
        assert_ne!(low, libc::MAP_FAILED);
        let result: i32;
        // SAFETY: the mapping has room for 16 words, more than any command transfers; the gate
        // keeps all registers but eax and r8 to r11.
        unsafe {
            std::ptr::copy_nonoverlapping(room.as_ptr(), low.cast::<u32>(), room.len());
            std::arch::asm!(
                "xchg {fd}, rbx",
                "int 0x80",
                "xchg {fd}, rbx",
                fd = inout(reg) u64::from(file.as_raw_fd() as u32) => _,
                inlateout("eax") IOCTL => result,
                in("ecx") command,
                in("edx") low as usize as u32,
                lateout("r8") _,
                lateout("r9") _,
                lateout("r10") _,
                lateout("r11") _,
            );
            std::ptr::copy_nonoverlapping(low.cast::<u32>(), room.as_mut_ptr(), room.len());
            libc::munmap(low, 4096);
        }
        match result {
            0.. => Ok(()),
            negative => Err(Errno::from_raw_os_error(-negative)),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod narrow {
    use super::*;

    pub fn is_possible() -> bool {
        false
    }

    pub fn ioctl(_: &File, _: u32, _: &mut [u32; 16]) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }
}

fn widths() -> Vec<Width> {
    if narrow::is_possible() {
        return vec![Width::Wide, Width::Narrow];
    }
    say("skipped: calls of 32-bit programs, which this kernel does not take");
    vec![Width::Wide]
}

/// Flags, version and project of what is at `path`, as far as there are such.
fn state(path: &Path) -> String {
    let file = File::open(path).unwrap();
    let mut text = String::new();
    for command in [GET_FLAGS, GET_VERSION, GET_FSX] {
        let mut words = [0; 7];
        match ioctl(&file, Width::Wide, command, &mut words) {
            Ok(()) if command == GET_VERSION => {
                // A random number, unless it was set.
                let known = if words[0] == 77 { "set" } else { "random" };
                write!(text, "{known}; ").unwrap();
            }
            // The number of extents is not of interest.
            Ok(()) => write!(text, "{:x} {:x}; ", words[0], words[3]).unwrap(),
            Err(errno) => write!(text, "{errno:?}; ").unwrap(),
        }
    }
    text
}

/// Makes what is at `path` as `how` is, whatever was done to it.
fn set_back(path: &Path, flags: u32) {
    let file = File::open(path).unwrap();
    for command in [0x4008_6602, 0x401c_5820] {
        let mut words = [0; 7];
        if command == 0x401c_5820 {
            let _ = ioctl(&file, Width::Wide, GET_FSX, &mut words);
            words[0] &= !(X_IMMUTABLE | X_APPEND | X_PROJINHERIT);
            words[3] = 0;
        } else {
            words[0] = flags & !(IMMUTABLE | APPEND);
        }
        let _ = ioctl(&file, Width::Wide, command, &mut words);
    }
    rustix::fs::ioctl_setflags(&file, IFlags::from_bits_retain(flags)).unwrap();
}

/// What comes of a call by `user`, and what it leaves on the branch.
fn attempt(
    user: u32,
    (path, beneath): (&Path, &Path),
    width: Width,
    (command, words): (u32, Words),
) -> String {
    let outcome = |result: Result<(), Errno>| match result {
        Ok(()) => "ok".to_owned(),
        Err(errno) => format!("{errno:?}"),
    };
    let before = state(beneath);
    let done = act_as(user, || {
        let file = File::open(path).unwrap();
        let (mut flags, mut fsx) = ([0; 7], [0; 7]);
        let _ = ioctl(&file, Width::Wide, GET_FLAGS, &mut flags);
        let _ = ioctl(&file, Width::Wide, GET_FSX, &mut fsx);
        ioctl(&file, width, command, &mut words(flags[0], fsx))
    });
    let after = match state(beneath) {
        after if after == before => "unchanged".to_owned(),
        after => after,
    };
    format!("{} {after}", outcome(done))
}

/// A directory with what is tried on, of this owner; some of it as the administrator fixed it.
fn furnish(root: &Path) {
    chown(root, Some(0), Some(0)).unwrap();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    for (name, _) in places() {
        let path = root.join(name);
        match name.chars().next() {
            Some('d') => fs::create_dir(&path).unwrap(),
            Some('f') => put(&path, "x"),
            _ => continue,
        }
        chown(&path, Some(ALICE), Some(ALICE)).unwrap();
    }
}

fn places() -> [(&'static str, u32); 6] {
    [
        ("f", 0),
        ("f-fixed", IMMUTABLE),
        ("f-append", APPEND),
        ("d", 0),
        ("d-fixed", IMMUTABLE),
        (".", 0),
    ]
}

#[test]
fn ioctls_of_either_width_do_for_each_user_what_they_do_on_the_bare_filesystem() {
    need_root!();
    for kind in [Kind::Tmpfs("64m"), Kind::Loop("ext4", "32m")] {
        if matches!(kind, Kind::Loop(..)) && !mounts::loop_works("ext4") {
            continue;
        }
        let pool = Pool::build().branch(kind, "").mount();
        let bare = pool.outside("bare");
        fs::create_dir(&bare).unwrap();
        mounts::make_branch(&bare, kind);
        furnish(&bare);
        furnish(&pool.on(0, "."));
        let mut differences = Vec::new();
        for (place, fixed) in places() {
            let flags = |path: PathBuf| {
                let file = File::open(path).unwrap();
                rustix::fs::ioctl_getflags(&file).map(|flags| flags.bits() | fixed)
            };
            let (Ok(on_bare), Ok(on_branch)) = (flags(bare.join(place)), flags(pool.on(0, place)))
            else {
                say("skipped: no inode flags on tmpfs");
                break;
            };
            for user in [MALLORY, ALICE, 0] {
                for width in widths() {
                    for (name, command, words) in COMMANDS {
                        set_back(&bare.join(place), on_bare);
                        set_back(&pool.on(0, place), on_branch);
                        let (path, beneath) = (pool.path(place), pool.on(0, place));
                        let call = (*command, *words);
                        let bare = bare.join(place);
                        let expected = attempt(user, (&bare, &bare), width, call);
                        let found = attempt(user, (&path, &beneath), width, call);
                        if expected != found {
                            differences.push(format!(
                                "{place} {user} {width:?} {name}: bare {expected}, pool {found}"
                            ));
                        }
                    }
                }
            }
            set_back(&bare.join(place), on_bare & !fixed);
            set_back(&pool.on(0, place), on_branch & !fixed);
        }
        mounts::detach(&bare);
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }
}

#[test]
fn no_other_ioctl_reaches_a_branch() {
    need_root!();
    need_tool!("mkfs.ext4");
    let pool = Pool::build().branch(Kind::Loop("ext4", "32m"), "").mount();
    furnish(&pool.on(0, "."));
    for (place, _) in places() {
        let before = state(&pool.on(0, place));
        for user in [MALLORY, ALICE] {
            for width in widths() {
                for (name, command) in NEVER {
                    let path = pool.path(place);
                    let refused = act_as(user, || {
                        let file = File::open(path).unwrap();
                        ioctl(&file, width, *command, &mut [0; 7])
                    });
                    assert!(refused.is_err(), "{name} on {place}");
                }
            }
        }
        assert_eq!(state(&pool.on(0, place)), before, "{place}");
    }
    // The branch is neither frozen nor shut down.
    put(pool.path("still-there"), "x");
}

#[test]
fn a_user_who_is_root_in_a_namespace_of_their_own_fixes_nothing_of_others() {
    need_root!();
    need_tool!("unshare", "chattr", "mkfs.ext4");
    let pool = Pool::build().branch(Kind::Loop("ext4", "32m"), "").mount();
    furnish(&pool.on(0, "."));
    let chattr = |user: u32, change: &str, name: &str| {
        let mut command = command_as(user, "unshare");
        let command = command.args(["-Ur", "chattr", change]).arg(pool.path(name));
        command.output().unwrap().status.success()
    };
    if !command_as(ALICE, "unshare")
        .args(["-Ur", "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        say("skipped: users may have no user namespaces here");
        return;
    }
    for (name, fixed) in places() {
        let file = File::open(pool.on(0, name)).unwrap();
        let flags = rustix::fs::ioctl_getflags(&file).unwrap().bits() | fixed;
        set_back(&pool.on(0, name), flags);
        let before = state(&pool.on(0, name));
        for change in ["+i", "-i", "+a", "-a", "+d", "=", "+P"] {
            chattr(MALLORY, change, name);
            assert_eq!(state(&pool.on(0, name)), before, "{change} {name}");
        }
        for change in ["+i", "+a", "-i", "-a"] {
            chattr(ALICE, change, name);
            assert_eq!(
                state(&pool.on(0, name)),
                before,
                "{change} {name} by its owner"
            );
        }
        set_back(&pool.on(0, name), flags & !fixed);
    }
    // What an owner may do they may do in a namespace of theirs too.
    assert!(chattr(ALICE, "+d", "f"));
}

#[test]
fn a_pool_or_branch_for_reading_takes_no_change_from_its_owner() {
    need_root!();
    need_tool!("mkfs.ext4");
    for (suffix, option) in [("=RO", "rw"), ("", "ro")] {
        let pool = Pool::build()
            .branch(Kind::Loop("ext4", "32m"), suffix)
            .option(option)
            .mount();
        furnish(&pool.on(0, "."));
        for (place, _) in places() {
            let before = state(&pool.on(0, place));
            for user in [ALICE, 0] {
                for width in widths() {
                    for (name, command, words) in &COMMANDS[5..] {
                        let path = pool.path(place);
                        let call = (*command, *words);
                        let beneath = pool.on(0, place);
                        let came = attempt(user, (&path, &beneath), width, call);
                        let refused = !came.starts_with("ok") && came.ends_with("unchanged");
                        assert!(refused, "{name} on {place} {suffix}{option}: {came}");
                    }
                }
            }
            assert_eq!(state(&pool.on(0, place)), before, "{place}");
        }
    }
}

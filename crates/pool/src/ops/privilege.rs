//! Whether a caller may write to a set-id file without clearing the bits.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::BorrowedFd;
use std::sync::LazyLock;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use strandfs_fuse::abi::InitFlags;
use strandfs_fuse::{Connection, Context, Open, SetAttr, Write, read_lossy};

use crate::base::error::Result;
use crate::base::sys;
use crate::ops::open;
use crate::state::State;
use crate::state::attr::has_set_id;

/// To do to anybody's files what their owners may.
const CAP_FOWNER: u32 = 3;

/// Whether the caller has CAP_FSETID here. Asked of `/proc`, and only where a set-id file is at
/// stake: the kernel no longer tells the server who calls (idmapped mounts), except for requests
/// that create, and marks only writes and truncates. No answer means no.
pub(crate) fn keeps_set_id(cx: &Context<'_>) -> bool {
    const CAP_FSETID: u32 = 4;
    has_capability(cx, CAP_FSETID)
}

/// Whether the caller has CAP_SYS_RESOURCE here, which takes what is kept for root.
pub(crate) fn takes_reserves(cx: &Context<'_>) -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    Task::of(cx).is_some_and(|task| {
        task.in_own_namespace() && task.has(CAP_SYS_RESOURCE) && !task.acts_for_others()
    })
}

fn has_capability(cx: &Context<'_>, number: u32) -> bool {
    Task::of(cx).is_some_and(|task| task.in_own_namespace() && task.has(number))
}

/// Whether the caller has CAP_SYS_ADMIN here, which `trusted.*` attributes are for.
pub(crate) fn is_administrator(cx: &Context<'_>) -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    has_capability(cx, CAP_SYS_ADMIN)
}

/// Whether the caller has CAP_SETFCAP here, to give files capabilities and take them.
pub(crate) fn sets_capabilities(cx: &Context<'_>) -> bool {
    const CAP_SETFCAP: u32 = 31;
    has_capability(cx, CAP_SETFCAP)
}

/// Whether the caller may do to a user's files what only their owner may: root, as the branches know it, or
/// with CAP_FOWNER where that counts for the user. Only asked where a file is somebody else's.
pub(crate) fn acts_for_owner(cx: &Context<'_>, owner: u32) -> bool {
    acts_for(cx, owner, CAP_FOWNER)
}

/// Whether the caller may give a user's files to others, with CAP_CHOWN.
pub(crate) fn gives_away(cx: &Context<'_>, owner: u32) -> bool {
    const CAP_CHOWN: u32 = 0;
    acts_for(cx, owner, CAP_CHOWN)
}

/// Whether the caller may read and write a user's files whatever their modes say, with CAP_DAC_OVERRIDE.
pub(crate) fn overrides_mode(cx: &Context<'_>, owner: u32) -> bool {
    const CAP_DAC_OVERRIDE: u32 = 1;
    acts_for(cx, owner, CAP_DAC_OVERRIDE)
}

/// Whether the caller may read a user's files whatever their modes say, with CAP_DAC_READ_SEARCH.
pub(crate) fn reads_all(cx: &Context<'_>, owner: u32) -> bool {
    const CAP_DAC_READ_SEARCH: u32 = 2;
    acts_for(cx, owner, CAP_DAC_READ_SEARCH)
}

fn acts_for(cx: &Context<'_>, owner: u32, capability: u32) -> bool {
    caller_uid(cx) == Some(0)
        || Task::of(cx)
            .is_some_and(|task| !task.acts_for_others() && task.has_over(capability, owner))
}

/// Who asks for a change of inode flags, with what of that person's powers.
pub(crate) struct Changer {
    uid: u32,
    kept: CapabilitySet,
    /// Projects are the business of this user namespace alone.
    pub in_own_namespace: bool,
}

impl Changer {
    /// The caller, if an inode that is shown as this user's may be changed by that caller: by its
    /// owner, or with CAP_FOWNER where that counts for it. `fixed_owner`: the options show all as
    /// this user's, whoever owns it on the branch.
    ///
    /// # Errors
    /// EPERM for others.
    pub fn of(cx: &Context<'_>, shown_uid: u32, fixed_owner: bool) -> Result<Changer> {
        const CAP_LINUX_IMMUTABLE: u32 = 9;
        let uid = caller_uid(cx);
        let task = Task::of(cx);
        let task = task.as_ref();
        let owns = uid == Some(shown_uid);
        let acts_for_owner = task.is_some_and(|task| task.has_over(CAP_FOWNER, shown_uid));
        if !owns && !acts_for_owner {
            return Err(Errno::PERM.into());
        }
        let in_own_namespace = task.is_some_and(Task::in_own_namespace);
        let mut kept = CapabilitySet::empty();
        kept.set(CapabilitySet::FOWNER, acts_for_owner || fixed_owner);
        let unfixes = in_own_namespace && task.is_some_and(|task| task.has(CAP_LINUX_IMMUTABLE));
        kept.set(CapabilitySet::LINUX_IMMUTABLE, unfixes);
        Ok(Changer {
            uid: uid.unwrap_or(sys::NOBODY),
            kept,
            in_own_namespace,
        })
    }

    /// Has the branch's kernel judge the caller.
    ///
    /// # Errors
    /// Those of `act`.
    pub fn act<T, E: From<Errno>>(&self, act: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        sys::with_powers(self.uid, self.kept, act)
    }
}

/// Whether the caller may leave set-group-id on an inode of this group when its access list goes:
/// with CAP_FSETID, and as a member. Asked of `/proc` as in [`keeps_set_id`].
pub(crate) fn keeps_set_group_id(cx: &Context<'_>, gid: u32) -> bool {
    keeps_set_id(cx) || is_in_group(cx, gid)
}

/// Whether the caller is known to be in a group. Asked of `/proc` as in [`keeps_set_id`].
pub(crate) fn is_in_group(cx: &Context<'_>, gid: u32) -> bool {
    let among = |line: Option<String>, skipped: usize| {
        let line = line.unwrap_or_default();
        let mut listed = line.split_whitespace().skip(skipped);
        listed.any(|listed| listed.parse() == Ok(gid))
    };
    // Of real, effective and saved, only the last counts for files.
    among(status_line(cx, "Gid:"), 3) || among(status_line(cx, "Groups:"), 0)
}

/// The same of a caller who is no thread of the kernel.
pub(crate) fn is_member(cx: &Context<'_>, gid: u32) -> bool {
    is_in_group(cx, gid) && !acts_for_others(cx)
}

/// What idmapped mounts put in place of ids.
const UNKNOWN: u32 = u32::MAX;

/// The user the caller acts as, as the kernel says it or else `/proc`; none if it is not known
/// for certain.
pub(crate) fn caller_uid(cx: &Context<'_>) -> Option<u32> {
    if cx.uid != UNKNOWN {
        return Some(cx.uid);
    }
    let task = Task::of(cx).filter(|task| !task.acts_for_others())?;
    // Real, effective, saved, and the one that counts for files. The kernel shows them as numbers
    // of the server's namespace, and who has none there as nobody.
    let uid = task.line("Uid:")?.split_whitespace().nth(3)?.parse().ok()?;
    (uid != sys::NOBODY || task.in_own_namespace() || *EVERYBODY_HAS_A_NUMBER).then_some(uid)
}

/// Whether the server's namespace has a number for every user of the machine: nobody is a user there.
static EVERYBODY_HAS_A_NUMBER: LazyLock<bool> = LazyLock::new(|| {
    let users = read_lossy("/proc/self/uid_map").unwrap_or_default();
    users.split_whitespace().eq(["0", "0", "4294967295"])
});

/// Whether the caller is known to be none of these users, nor root. Who comes by an idmapped mount has
/// other numbers there than here, and is not known.
pub(crate) fn is_surely_none_of(pool: &State, cx: &Context<'_>, users: &[u32]) -> bool {
    let quickly = match cx.uid {
        UNKNOWN => sys::file_user_of(cx.pid),
        uid => Some(uid),
    };
    let is_one = |uid: u32| uid == 0 || users.contains(&uid);
    match quickly.or_else(|| caller_uid(cx)) {
        None => false,
        Some(uid) if is_one(uid) => false,
        // The kernel's own threads act for others.
        Some(_) => caller_uid(cx).is_some_and(|uid| !is_one(uid)) && !may_come_mapped(pool, cx),
    }
}

/// Whether it is known who calls, by the numbers that branches have. Who comes by an idmapped mount has others.
pub(crate) fn is_known(pool: &State, cx: &Context<'_>) -> bool {
    caller_uid(cx).is_some() && !may_come_mapped(pool, cx)
}

/// Whether the caller is a thread of the kernel, whose groups are not those of whom it acts for.
pub(crate) fn acts_for_others(cx: &Context<'_>) -> bool {
    Task::of(cx).is_some_and(|task| task.acts_for_others())
}

/// Whether the caller can reach an idmapped mount of the pool. Only an administrator can make one; of a FUSE
/// filesystem of their own anybody can.
fn may_come_mapped(pool: &State, cx: &Context<'_>) -> bool {
    let number = pool.connection.get().and_then(Connection::number);
    let Some(number) = number.filter(|_| cx.uid == UNKNOWN) else {
        return false;
    };
    // The list is as long as a user makes it.
    cx.may_block();
    let mounts = File::open(format!("/proc/{}/mountinfo", cx.pid));
    mounts.is_ok_and(|mounts| lists_mapped(mounts, number))
}

/// So much is read of a list of mounts: who is said to have more, with names of any length, comes by none of those.
const MOUNTS_MAX_BYTES: u64 = 16 << 20;

/// Whether an idmapped mount of a FUSE filesystem is in a list of mounts.
fn lists_mapped(mounts: impl Read, number: u32) -> bool {
    let mut mounts = BufReader::new(mounts.take(MOUNTS_MAX_BYTES));
    let mut line = Vec::new();
    loop {
        line.clear();
        match mounts.read_until(b'\n', &mut line) {
            Ok(1..) if is_mapped(&String::from_utf8_lossy(&line), number) => return true,
            Ok(1..) => {}
            Ok(0) | Err(_) => return false,
        }
    }
}

/// Of a line of `mountinfo`.
fn is_mapped(line: &str, number: u32) -> bool {
    let mut fields = line.split(' ').skip(2);
    let device = fields.next().and_then(|device| device.strip_prefix("0:"));
    let options = fields.nth(2).unwrap_or_default();
    device.and_then(|minor| minor.parse().ok()) == Some(number)
        && options.split(',').any(|option| option == "idmapped")
}

/// A line of the caller's `/proc/PID/status` without its key; none for callers in another user
/// namespace, whose ids and capabilities mean something else.
fn status_line(cx: &Context<'_>, key: &str) -> Option<String> {
    let task = Task::of(cx)?;
    let line = task.in_own_namespace().then(|| task.line(key)).flatten();
    line.map(str::to_owned)
}

/// What `/proc` shows of a caller, who waits for the answer meanwhile.
struct Task {
    status: String,
    /// Of another user namespace: the users it knows, by the server's numbers.
    foreign_users: Option<String>,
}

impl Task {
    fn of(cx: &Context<'_>) -> Option<Task> {
        if cx.pid == 0 {
            return None;
        }
        let read = |what: &str| read_lossy(format!("/proc/{}/{what}", cx.pid)).ok();
        let namespace = |task: String| std::fs::read_link(format!("/proc/{task}/ns/user")).ok();
        let own = namespace("self".to_owned())?;
        let foreign = namespace(cx.pid.to_string())? != own;
        Some(Task {
            status: read("status")?,
            foreign_users: match foreign {
                true => Some(read("uid_map")?),
                false => None,
            },
        })
    }

    fn in_own_namespace(&self) -> bool {
        self.foreign_users.is_none()
    }

    /// Whether it is a thread of the kernel (that serves NFS, for example): its own user and powers are
    /// not those of whom it acts for. It has no memory of its own.
    fn acts_for_others(&self) -> bool {
        self.line("VmSize:").is_none()
    }

    /// A line of the status without its key.
    fn line(&self, key: &str) -> Option<&str> {
        self.status.lines().find_map(|line| line.strip_prefix(key))
    }

    /// Whether a capability is in force, in the caller's own user namespace.
    fn has(&self, number: u32) -> bool {
        self.line("CapEff:")
            .and_then(|line| u64::from_str_radix(line.trim(), 16).ok())
            .is_some_and(|effective| effective & 1 << number != 0)
    }

    /// Whether a capability counts for what a user owns.
    fn has_over(&self, number: u32, owner: u32) -> bool {
        self.has(number) && self.knows_user(owner)
    }

    /// Whether the caller's user namespace has this user, so that capabilities there count for
    /// what the user owns.
    fn knows_user(&self, uid: u32) -> bool {
        let Some(users) = &self.foreign_users else {
            return true;
        };
        users.lines().any(|range| {
            let mut numbers = range.split_whitespace().skip(1).map(str::parse::<u32>);
            match (numbers.next(), numbers.next()) {
                (Some(Ok(first)), Some(Ok(count))) => {
                    uid.checked_sub(first).is_some_and(|offset| offset < count)
                }
                _ => false,
            }
        })
    }
}

/// Makes a change of the file's bytes that the kernel does not mark: set-id bits fall with it
/// unless the caller may keep them.
///
/// # Errors
/// Those of `fstat(2)`, `capset(2)`, `chmod(2)` and of `change`.
pub(crate) fn with_unmarked_change<T>(
    cx: &Context<'_>,
    file: BorrowedFd<'_>,
    change: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let stat = rustix::fs::fstat(file)?;
    let keeps = !has_set_id(stat.st_mode) || keeps_set_id(cx);
    sys::want_fsetid(keeps)?;
    let outcome = change()?;
    // Where the group may not execute the file, set-group-id falls for those who are not in the
    // group: the branch has asked that of the server, which is in root's.
    let group_alone = stat.st_mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID;
    if !keeps && group_alone && !keeps_set_group_id(cx, stat.st_gid) {
        let mode = rustix::fs::fstat(file)?.st_mode & 0o7777;
        sys::chmod(file, Mode::from_raw_mode(mode & !libc::S_ISGID))?;
    }
    Ok(outcome)
}

/// Who sees to it that set-id bits fall.
enum Clearing {
    /// The server, where the kernel marks a change (HANDLE_KILLPRIV_V2).
    WhereMarked,
    /// The server, at every change by a caller who may not keep them (HANDLE_KILLPRIV).
    Always,
    /// The kernel, by changing the mode beforehand; not for writes past its page cache.
    ByKernel,
}

fn clearing(pool: &State) -> Clearing {
    let agreed = |flag| {
        let negotiated = pool.negotiated.get();
        negotiated.is_some_and(|negotiated| negotiated.flags.contains(flag))
    };
    if agreed(InitFlags::HANDLE_KILLPRIV_V2) {
        Clearing::WhereMarked
    } else if agreed(InitFlags::HANDLE_KILLPRIV) {
        Clearing::Always
    } else {
        Clearing::ByKernel
    }
}

/// Whether this write clears set-id bits.
pub(crate) fn write_clears_set_id(pool: &State, cx: &Context<'_>, args: &Write<'_>) -> bool {
    match clearing(pool) {
        Clearing::WhereMarked => args.kill_suidgid,
        Clearing::ByKernel if args.from_cache => false,
        // Nobody knows whose pages these are.
        Clearing::Always if args.from_cache => true,
        Clearing::Always | Clearing::ByKernel => {
            let file = open::opened(pool, args.handle).and_then(|opened| Ok(opened.file()?));
            let mode = file.and_then(|file| Ok(rustix::fs::fstat(&*file)?));
            mode.map_or(true, |stat| has_set_id(stat.st_mode)) && !keeps_set_id(cx)
        }
    }
}

/// Whether this truncation or change of owner clears set-id bits.
pub(crate) fn change_clears_set_id(pool: &State, cx: &Context<'_>, change: &SetAttr) -> bool {
    match clearing(pool) {
        Clearing::WhereMarked => change.kill_suidgid,
        Clearing::ByKernel => false,
        Clearing::Always => {
            let concerned =
                change.size_bytes.is_some() || change.uid.is_some() || change.gid.is_some();
            concerned && !keeps_set_id(cx)
        }
    }
}

/// Whether opening with `O_TRUNC` clears set-id bits; `marked` is the kernel's word.
pub(crate) fn open_clears_set_id(pool: &State, cx: &Context<'_>, args: &Open) -> bool {
    match clearing(pool) {
        Clearing::WhereMarked => args.kill_suidgid,
        _ => args.flags & libc::O_TRUNC != 0 && !keeps_set_id(cx),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: &str =
        "34 26 0:51 / /mnt/pool rw,nosuid,idmapped shared:5 - fuse.strandfs pool rw\n";

    /// Whoever seemed to come by an idmapped mount was known to nobody, and let do what was forbidden since.
    #[test]
    fn an_idmapped_mount_of_a_users_own_filesystem_makes_nobody_unknown() {
        let own = MINE.replace("0:51", "0:77");
        let plain = MINE.replace(",idmapped", "");
        let elsewhere = "35 26 8:51 / /mnt/idmapped rw,idmapped - ext4 /dev/sda1 rw,idmapped\n";
        for (mounts, mapped) in [
            (MINE.to_owned(), true),
            (own.clone(), false),
            (format!("{own}{plain}{elsewhere}\n0:51 0:51\n"), false),
            (format!("{own}\u{fffd}{MINE}{MINE}"), true),
        ] {
            assert_eq!(lists_mapped(mounts.as_bytes(), 51), mapped, "{mounts}");
        }
    }

    #[test]
    fn of_very_many_mounts_a_part_is_read() {
        struct Counted<'a>(&'a std::cell::Cell<u64>);
        impl Read for Counted<'_> {
            fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
                let line = MINE.replace(",idmapped", "");
                let read = line.as_bytes().read(out)?;
                self.0.set(self.0.get() + read as u64);
                assert!(self.0.get() < 2 * MOUNTS_MAX_BYTES, "all of it is read");
                Ok(read)
            }
        }
        let read = std::cell::Cell::new(0);
        assert!(!lists_mapped(Counted(&read), 51));
        assert!(read.get() > MOUNTS_MAX_BYTES / 2);
    }

    #[test]
    fn capabilities_of_another_user_namespace_count_for_its_users_alone() {
        let task = |foreign_users: Option<&str>| Task {
            status: "Name:\tx\nUid:\t1\t2\t3\t4\nCapEff:\t0000000000000008\n".to_owned(),
            foreign_users: foreign_users.map(str::to_owned),
        };
        let own = task(None);
        assert!(own.knows_user(0) && own.knows_user(70_000));
        assert!(own.has(3) && !own.has(9));
        let foreign = task(Some("         0       1000          1\n  1 100000 65536\n"));
        for (uid, known) in [
            (0, false),
            (999, false),
            (1000, true),
            (1001, false),
            (99_999, false),
            (100_000, true),
            (165_535, true),
            (165_536, false),
        ] {
            assert_eq!(foreign.knows_user(uid), known, "{uid}");
        }
        assert!(!task(Some("nonsense")).knows_user(0));
    }
}

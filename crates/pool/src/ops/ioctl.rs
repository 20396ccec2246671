//! IOCTL: inode flags and versions only; nothing else reaches a branch. One more is the preload
//! library's question to the server itself.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use strandfs_options::Function;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strandfs_fuse::{Context, Ioctl, IoctlReply, NodeId};
use strandfs_preload_abi::BRANCH_FILE;

use crate::base::error::Result;
use crate::base::open::reopen;
use crate::base::sys;
use crate::coherence::{invalidate, remembered};
use crate::directory::{Directories, attr, set};
use crate::health::Health;
use crate::ops::alteration::{Alteration, Now, Role, TakeBack};
use crate::ops::change::{self, change_each};
use crate::ops::hidden_copies::Power;
use crate::ops::privilege::Changer;
use crate::ops::{open, preload, retry};
use crate::state::node::Node;

/// Room for the argument of every command that may reach a branch.
const ARGUMENT_BYTES: usize = 32;

/// The code for callers of 64 bits of a command, which is the same but for its size; ENOTTY for one of
/// the other width than the caller's, as everywhere: the kernel checks the right one only.
fn native(command: u32, words_of_32_bits: bool) -> Result<u32> {
    /// FS_IOC_SETFLAGS, GETFLAGS, SETVERSION and GETVERSION, each of both widths.
    const PAIRS: [(u32, u32); 4] = [
        (0x4004_6602, 0x4008_6602),
        (0x8004_6601, 0x8008_6601),
        (0x4004_7602, 0x4008_7602),
        (0x8004_7601, 0x8008_7601),
    ];
    match PAIRS
        .iter()
        .find(|pair| pair.0 == command || pair.1 == command)
    {
        Some((narrow, wide)) if (command == *narrow) == words_of_32_bits => Ok(*wide),
        Some(_) => Err(Errno::NOTTY.into()),
        None => Ok(command),
    }
}

/// FS_IOC_SETFLAGS.
const SET_FLAGS: u32 = 0x4008_6602;
/// FS_IOC_FSSETXATTR.
const SET_FSXATTR: u32 = 0x401c_5820;

/// Of a command that changes something, the one that tells how it is now.
fn question_of(command: u32) -> Option<u32> {
    match command {
        SET_FLAGS => Some(0x8008_6601),
        // FS_IOC_SETVERSION.
        0x4008_7602 => Some(0x8008_7601),
        SET_FSXATTR => Some(0x801c_581f),
        _ => None,
    }
}

type Argument = [u8; ARGUMENT_BYTES];

/// The project that an argument of FS_IOC_SETFLAGS or FS_IOC_FSSETXATTR names, as far as it does.
fn project_of(command: u32, argument: &Argument) -> (u32, bool) {
    /// What is made in the directory belongs to its project.
    const FS_PROJINHERIT_FL: u32 = 0x2000_0000;
    const FS_XFLAG_PROJINHERIT: u32 = 0x200;
    let word = |at: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&argument[at..at + 4]);
        u32::from_ne_bytes(word)
    };
    match command {
        SET_FLAGS => (0, word(0) & FS_PROJINHERIT_FL != 0),
        SET_FSXATTR => (word(12), word(0) & FS_XFLAG_PROJINHERIT != 0),
        _ => (0, false),
    }
}

/// Whether an argument of FS_IOC_SETFLAGS or FS_IOC_FSSETXATTR makes something immutable or
/// append-only.
fn fixes(command: u32, argument: &Argument) -> bool {
    const FS_FIXED_FL: u32 = 0x10 | 0x20;
    const FS_XFLAG_FIXED: u32 = 0x8 | 0x10;
    let [a, b, c, d, ..] = *argument;
    let flags = u32::from_ne_bytes([a, b, c, d]);
    match command {
        SET_FLAGS => flags & FS_FIXED_FL != 0,
        SET_FSXATTR => flags & FS_XFLAG_FIXED != 0,
        _ => false,
    }
}

/// A change of flags, a version or a project by one caller.
struct ToFlags {
    command: u32,
    argument: Argument,
    changer: Changer,
}

impl ToFlags {
    /// How it is now.
    fn before(&self, file: BorrowedFd<'_>) -> sys::Result<Argument> {
        let mut before = [0; ARGUMENT_BYTES];
        let question = question_of(self.command).ok_or(Errno::NOTTY)?;
        sys::fs_ioctl(file, question, &mut before)?;
        Ok(before)
    }

    /// Makes it on an open file. The kernel has checked most of it already, by what the pool
    /// shows; some of it on some kernels only.
    fn make_open(&self, file: BorrowedFd<'_>, mut argument: Argument) -> sys::Result<()> {
        if !self.changer.in_own_namespace {
            let project = |argument| project_of(self.command, argument);
            if project(&self.before(file)?) != project(&argument) {
                return Err(Errno::INVAL);
            }
        }
        let act = || sys::fs_ioctl(file, self.command, &mut argument);
        self.changer.act(act).map(drop)
    }
}

fn open_copy(fd: BorrowedFd<'_>) -> sys::Result<std::os::fd::OwnedFd> {
    reopen(fd, OFlags::RDONLY | OFlags::NONBLOCK)
}

impl Alteration for ToFlags {
    fn make(&self, fd: BorrowedFd<'_>, _role: Role) -> sys::Result<()> {
        self.make_open(open_copy(fd)?.as_fd(), self.argument)
    }

    /// A copy that is not fixed would take what the others refuse.
    fn may_pass_over(&self) -> bool {
        !fixes(self.command, &self.argument)
    }

    fn way_back(&self, now: Now<'_>) -> sys::Result<TakeBack<'_>> {
        let before = self.before(open_copy(now.fd)?.as_fd())?;
        Ok(Box::new(move |fd| {
            self.make_open(open_copy(fd)?.as_fd(), before)
        }))
    }
}

/// IOCTL. A question goes to the open file, or to the first branch's directory; a change to
/// the open file, or to the directories that the policy of chmod picks.
///
/// # Errors
/// ENOTTY for a command that may not reach a branch; EROFS for a change on a branch that may
/// not be changed; EPERM for one by somebody who may not make it.
pub(crate) fn ioctl(
    pool: &Health,
    cx: &Context<'_>,
    id: NodeId,
    args: &Ioctl<'_>,
    out: &mut [u8],
) -> Result<IoctlReply> {
    if args.command == BRANCH_FILE && !args.directory {
        return preload::tell_branch_file(pool, cx, args.handle, out);
    }
    let command = native(args.command, args.words_of_32_bits)?;
    let mut argument = [0u8; ARGUMENT_BYTES];
    let len = args.input.len().min(argument.len());
    argument[..len].copy_from_slice(args.input.get(..len).unwrap_or_default());
    let node = pool.node(id)?;
    if question_of(command).is_some() {
        return retry::changing(pool, cx, || {
            let changer = flag_changer(pool, cx, &node).or_else(|refusal| {
                // A branch without such a thing says so to everybody.
                let question = question_of(command).ok_or(Errno::NOTTY)?;
                ask_by_ioctl(pool, cx, &node, args, question, &mut [0; ARGUMENT_BYTES])?;
                Err(refusal)
            })?;
            let change = ToFlags {
                command,
                argument,
                changer,
            };
            change_by_ioctl(pool, cx, &node, args, &change)
        });
    }
    let result = ask_by_ioctl(pool, cx, &node, args, command, &mut argument)?;
    let wanted = (args.output_max_bytes as usize)
        .min(out.len())
        .min(argument.len());
    let filled = out.get_mut(..wanted).ok_or(Errno::INVAL)?;
    filled.copy_from_slice(argument.get(..wanted).unwrap_or_default());
    Ok(IoctlReply {
        result,
        output_bytes: wanted,
    })
}

/// Asks the open file, or the first branch's directory.
fn ask_by_ioctl(
    pool: &Directories,
    cx: &Context<'_>,
    node: &Arc<Node>,
    args: &Ioctl<'_>,
    command: u32,
    argument: &mut Argument,
) -> Result<i32> {
    if args.directory {
        let set = set::dir_set(pool, node)?;
        let first = set.entries.first().ok_or(Errno::NOENT)?;
        return Ok(sys::fs_ioctl(
            open_copy(first.fd.as_fd())?.as_fd(),
            command,
            argument,
        )?);
    }
    let opened = open::opened(pool, args.handle)?;
    let _held = opened.node.share_move_lock(cx);
    Ok(sys::fs_ioctl(opened.file()?.as_fd(), command, argument)?)
}

/// The caller, who must own what is shown, or act for who does.
///
/// # Errors
/// EPERM for others; EROFS where the pool may only be read.
fn flag_changer(pool: &Directories, cx: &Context<'_>, node: &Arc<Node>) -> Result<Changer> {
    let view = pool.view();
    if view.settings.mount.flags.read_only {
        return Err(Errno::ROFS.into());
    }
    let mut attr = attr::attr(pool, node)?;
    view.present(&mut attr);
    Changer::of(cx, attr.uid, view.settings.presentation.uid.is_some())
}

fn change_by_ioctl(
    pool: &Directories,
    cx: &Context<'_>,
    node: &Arc<Node>,
    args: &Ioctl<'_>,
    change: &ToFlags,
) -> Result<IoctlReply> {
    let view = pool.view();
    if args.directory {
        let _held = node.hold_attributes();
        let copies = change::picked_copies(
            pool,
            &view,
            node,
            view.policy(Function::Chmod),
            (cx, Power::Own),
        )?;
        change_each(&copies, change)?;
        remembered::attributes_changed(&*set::dir_set(pool, node)?);
    } else {
        let opened = open::opened(pool, args.handle)?;
        let _held = opened.node.share_move_lock(cx);
        let branch = opened.branch().ok_or(Errno::BADF)?;
        if view.branch(branch.id).unwrap_or(&branch).read_only() {
            return Err(Errno::ROFS.into());
        }
        change.make_open(opened.file()?.as_fd(), change.argument)?;
    }
    // The kernel does not expect a new change time from this.
    invalidate::drop_attributes(pool, node);
    Ok(IoctlReply::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_other_width_than_the_callers_are_unknown() {
        for (narrow, wide) in [
            (0x4004_6602, SET_FLAGS),
            (0x8004_6601, 0x8008_6601),
            (0x4004_7602, 0x4008_7602),
            (0x8004_7601, 0x8008_7601),
        ] {
            assert_eq!(native(narrow, false), Err(Errno::NOTTY.into()));
            assert_eq!(native(narrow, true), Ok(wide));
            assert_eq!(native(wide, false), Ok(wide));
            assert_eq!(native(wide, true), Err(Errno::NOTTY.into()));
        }
        assert_eq!(native(SET_FSXATTR, true), Ok(SET_FSXATTR));
    }
}

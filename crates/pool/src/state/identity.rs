//! What makes an inode of a branch that inode, whatever its names: filesystem, number,
//! generation and birth time; and how it is found again from its node id alone.
//!
//! A node id is derived from the identity, so that hard links meet in one node and a file handle
//! (`name_to_handle_at`, NFS) can be opened again long after the node was forgotten, without
//! keeping anything for it:
//!
//! ```text
//! bit 63   62       61..52        51..0
//!   1    presented  volume (10)   inode number (52)   generation: the filesystem's, 32 bits
//!   0      a counter: for the few that do not fit (huge numbers, a recycled number whose
//!          predecessor the kernel still holds); such handles end with the node
//! ```

mod absence;
mod export;
mod layout;
mod memory;
mod number_hash;
mod watching;

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, Statx};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{FileKind, NodeId};

use crate::base::branch::{BranchId, FilesystemId, Medium};
use crate::base::hash::mix;
use crate::base::magic;
use crate::base::sys::{self, btime_ns};
use crate::state::mounts::Mounts;
use layout::HandleLayout;
use memory::Generations;
pub use number_hash::NumberHash;

/// Index of a volume: one filesystem as seen from one branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VolumeId(pub u16);

const DERIVED: u64 = 1 << 63;
const OTHER_PRESENTED: u64 = 1 << 62;
const INO_BITS: u32 = 52;
const VOLUMES_MAX: usize = 1 << 10;

/// Whether an inode is shown as what it is. The two are different nodes, because the kernel
/// holds on to the type of a node for as long as it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Presented {
    /// As it is.
    Own,
    /// A file as a symlink to it (`symlinkify`), or a symlink as its target (`follow-symlinks`).
    Other,
}

/// One inode of one branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The branch it was found on.
    pub branch: BranchId,
    /// The filesystem there.
    pub volume: VolumeId,
    /// The filesystem's generation of the number, where handles reveal it; 0 otherwise.
    pub generation: u32,
    /// Inode number on that filesystem.
    pub ino: u64,
    /// Birth time in nanoseconds since the epoch; 0 where the filesystem does not tell.
    pub btime_ns: i64,
    /// How it is shown.
    pub presented: Presented,
}

impl Identity {
    /// Whether `stat`, found on the same volume, is of this inode and not of a successor that
    /// got the same number.
    pub fn matches(&self, volume: VolumeId, stat: &Statx) -> bool {
        self.volume == volume && self.ino == stat.stx_ino && self.btime_ns == btime_ns(stat)
    }

    /// The derived node id, if the identity fits into one.
    pub fn derived_id(&self) -> Option<NodeId> {
        derived_id(self.volume, self.ino, self.presented)
    }

    /// The same inode shown as something else.
    pub fn with_presented(self, presented: Presented) -> Identity {
        Identity { presented, ..self }
    }
}

/// The node id of an inode number on a volume, if it fits.
pub fn derived_id(volume: VolumeId, ino: u64, presented: Presented) -> Option<NodeId> {
    let mark = match presented {
        Presented::Own => DERIVED,
        Presented::Other => DERIVED | OTHER_PRESENTED,
    };
    (ino < 1 << INO_BITS && usize::from(volume.0) < VOLUMES_MAX)
        .then_some(NodeId(mark | u64::from(volume.0) << INO_BITS | ino))
}

/// The volume and inode number in the derived node id of an inode shown as what it is. How
/// another one is shown hangs on its name, which the id does not tell.
pub fn split_id(node: NodeId) -> Option<(VolumeId, u64)> {
    (node.0 & (DERIVED | OTHER_PRESENTED) == DERIVED).then(|| {
        let volume = (node.0 & !DERIVED) >> INO_BITS;
        (VolumeId(volume as u16), node.0 & ((1 << INO_BITS) - 1))
    })
}

/// The file type of a stat result.
pub fn kind_of(stat: &Statx) -> FileKind {
    kind_of_mode(u32::from(stat.stx_mode))
}

/// The file type in `st_mode` bits.
pub fn kind_of_mode(mode: u32) -> FileKind {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Symlink,
        libc::S_IFIFO => FileKind::Fifo,
        libc::S_IFSOCK => FileKind::Socket,
        libc::S_IFCHR => FileKind::CharDevice,
        libc::S_IFBLK => FileKind::BlockDevice,
        _ => FileKind::Regular,
    }
}

/// Whether the filesystem finds an inode only by number and generation together. ext4 and btrfs
/// take generation 0 for "any"; tmpfs and XFS do not.
fn insists_on_generation(layout: Option<HandleLayout>, mount: Option<BorrowedFd<'_>>) -> bool {
    match layout {
        None | Some(HandleLayout::Btrfs { .. }) => false,
        Some(HandleLayout::Shmem { .. } | HandleLayout::Ino64 { .. }) => true,
        Some(HandleLayout::Ino32 { .. }) => mount
            .and_then(|fd| rustix::fs::fstatfs(fd).ok())
            .is_some_and(|fs| fs.f_type as u64 == magic::XFS),
    }
}

/// One filesystem as seen from one branch.
struct Volume {
    branch: BranchId,
    device: (u32, u32),
    /// Devices share a number, one after the other.
    filesystem: Option<FilesystemId>,
    /// Tells its file handles from those of other filesystems.
    handle_mark: u32,
    layout: Option<HandleLayout>,
    /// A descriptor on the filesystem for `open_by_handle_at`, which refuses `O_PATH`.
    mount: Option<OwnedFd>,
    /// Handles are refused without the right generation.
    strict: bool,
    /// Mixed into the inode numbers shown to users; stable over remounts.
    seed: u64,
    /// All of the filesystem is beneath the branch, so that no handle leads out of it.
    whole: bool,
    /// Its branch left the pool: nothing is held open here until it comes back.
    closed: bool,
}

impl Volume {
    /// The filesystem of the inode of `stat`, which is `name` in `dir`, or `dir` itself. Its seed is not known yet.
    fn at(branch: BranchId, stat: &Statx, dir: BorrowedFd<'_>, name: &OsStr) -> Volume {
        let layout = handle_at(dir, name)
            .ok()
            .and_then(|handle| HandleLayout::learn(&handle, stat.stx_ino))
            .map(|(layout, _)| layout);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = match name.is_empty() {
            true => OsStr::new("."),
            false => name,
        };
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        // Another filesystem may be mounted there by now.
        let is_same = |fd: &OwnedFd| {
            let now = sys::statx_fd(fd.as_fd());
            now.is_ok_and(|now| (now.stx_dev_major, now.stx_dev_minor) == device)
        };
        let mount = rustix::fs::openat(dir, at, flags, Mode::empty());
        let mount = mount.ok().filter(is_same);
        let fd = mount.as_ref().map(AsFd::as_fd);
        let filesystem = fd.map(|fd| FilesystemId::of(fd, stat, &Medium::of(fd)));
        Volume {
            branch,
            device,
            handle_mark: filesystem.as_ref().map_or(0, FilesystemId::handle_mark),
            filesystem,
            layout,
            strict: insists_on_generation(layout, fd),
            whole: fd.is_some_and(|fd| export::shows_all(fd, layout)),
            mount,
            seed: 0,
            closed: false,
        }
    }
}

/// The file handle of `name` in `dir`, or of `dir` itself if the name is empty.
fn handle_at(dir: BorrowedFd<'_>, name: &OsStr) -> sys::Result<sys::RawHandle> {
    let ask = || match name.is_empty() {
        true => sys::name_to_handle_fd(dir),
        false => sys::name_to_handle(dir, name),
    };
    match ask() {
        // Whoever has just made something must not hear that it failed where a branch fails once.
        Err(Errno::IO | Errno::NOMEM | Errno::INTR) => ask(),
        told => told,
    }
}

/// All volumes met so far; grows by one for each filesystem nested in a branch.
#[derive(Default)]
pub struct Volumes {
    /// Read on every look-up, without a lock; replaced as a whole when one is added.
    list: ArcSwap<Vec<Arc<Volume>>>,
    adding: Mutex<()>,
    generations: Mutex<Generations>,
    /// The mounts that they are seen through.
    pub(crate) mounts: Mounts,
}

impl Volumes {
    /// The volume of `stat` on `branch`, noted on first sight. `at` is the inode itself
    /// (`O_PATH`), asked for its handle layout then.
    fn find(&self, branch: BranchId, stat: &Statx) -> Option<VolumeId> {
        self.of_device(branch, (stat.stx_dev_major, stat.stx_dev_minor))
    }

    /// Like `find`, but a volume not seen before is added.
    ///
    /// # Errors
    /// EMFILE after 65,535 volumes; as for [`Mounts::admit`].
    pub fn note(
        &self,
        branch: BranchId,
        branch_seed: u64,
        stat: &Statx,
        dir: BorrowedFd<'_>,
        name: &OsStr,
    ) -> sys::Result<VolumeId> {
        if let Some(volume) = self.find(branch, stat) {
            return Ok(volume);
        }
        self.mounts.admit(branch, stat, dir, name)?;
        self.note_admitted(branch, branch_seed, stat, dir, name)
    }

    /// The same where the mount may be crossed.
    ///
    /// # Errors
    /// EMFILE after 65,535 volumes.
    pub fn note_admitted(
        &self,
        branch: BranchId,
        branch_seed: u64,
        stat: &Statx,
        dir: BorrowedFd<'_>,
        name: &OsStr,
    ) -> sys::Result<VolumeId> {
        if let Some(volume) = self.find(branch, stat) {
            return Ok(volume);
        }
        let mut met = Volume::at(branch, stat, dir, name);
        let _adding = self.adding.lock();
        if let Some(known) = self.of_device(branch, met.device) {
            return Ok(known);
        }
        let mut list = Vec::clone(&self.list.load());
        let same = |known: &Arc<Volume>| {
            (known.branch, known.device, &known.filesystem) == (branch, met.device, &met.filesystem)
        };
        let at = list.iter().position(same);
        let index = match at.and_then(|at| Some((at, list.get_mut(at)?))) {
            Some((at, closed)) => {
                met.seed = closed.seed;
                *closed = Arc::new(met);
                at
            }
            None => {
                let nested = list.iter().filter(|v| v.branch == branch).count() as u64;
                met.seed = mix(branch_seed.wrapping_add(nested));
                list.push(Arc::new(met));
                list.len() - 1
            }
        };
        let index = u16::try_from(index).map_err(|_| Errno::MFILE)?;
        self.list.store(Arc::new(list));
        Ok(VolumeId(index))
    }

    /// The identity of `name` in `dir` (or of `dir` itself when the name is empty), whose
    /// attributes are `stat`. One `name_to_handle_at` where the filesystem has usable handles.
    ///
    /// # Errors
    /// ESTALE if the name changed hands between the two calls; the caller looks again. As for
    /// [`Mounts::admit`].
    pub fn identify(
        &self,
        branch: BranchId,
        branch_seed: u64,
        stat: &Statx,
        dir: BorrowedFd<'_>,
        name: &OsStr,
    ) -> sys::Result<Identity> {
        self.mounts.admit(branch, stat, dir, name)?;
        let volume = self.note_admitted(branch, branch_seed, stat, dir, name)?;
        let layout = self
            .list
            .load()
            .get(usize::from(volume.0))
            .and_then(|v| v.layout);
        let generation = match layout {
            None => 0,
            Some(layout) => match layout.read(&handle_at(dir, name)?) {
                Some((ino, generation)) if ino == stat.stx_ino => generation,
                Some(_) => return Err(Errno::STALE),
                None => 0,
            },
        };
        let btime_ns = btime_ns(stat);
        Ok(Identity {
            branch,
            volume,
            generation,
            ino: stat.stx_ino,
            btime_ns,
            presented: Presented::Own,
        })
    }

    /// Whether `stat` is of `identity`.
    pub fn same(&self, identity: &Identity, stat: &Statx) -> bool {
        self.find(identity.branch, stat)
            .is_some_and(|volume| identity.matches(volume, stat))
    }

    /// Which of a node's copies `stat`, found on the branch and shown as `presented`, is of, if that is
    /// certain without asking for its handle.
    pub fn recognise(
        &self,
        copies: &[Identity],
        (branch, presented): (BranchId, Presented),
        stat: &Statx,
    ) -> Option<Identity> {
        let same = |copy: &&Identity| {
            // Without a birth time the generation must tell old from new.
            copy.branch == branch
                && copy.btime_ns != 0
                && copy.presented == presented
                && self.same(copy, stat)
        };
        copies.iter().find(same).copied()
    }

    /// Opens the inode by its handle, whatever its name is now.
    ///
    /// # Errors
    /// ESTALE if it is gone, the filesystem has no usable handles, or the server lacks
    /// CAP_DAC_READ_SEARCH.
    pub fn open(
        &self,
        volume: VolumeId,
        ino: u64,
        generation: u32,
        flags: OFlags,
    ) -> sys::Result<OwnedFd> {
        let list = self.list.load();
        let found = list.get(usize::from(volume.0)).ok_or(Errno::STALE)?;
        let layout = found.layout.ok_or(Errno::STALE)?;
        let mount = found.mount.as_ref().ok_or(Errno::STALE)?;
        match sys::open_by_handle(mount.as_fd(), &layout.build(ino, generation), flags) {
            // Without CAP_DAC_READ_SEARCH there is no way back: as if the inode were gone.
            Err(Errno::PERM) => Err(Errno::STALE),
            other => other,
        }
    }

    /// Notes that a directory on several branches went by this copy's identity.
    pub fn remember_elder(&self, volume: VolumeId, ino: u64) {
        self.generations.lock().note_elder((volume, ino));
    }

    /// The copies of a directory with the one it goes by first: the oldest, so that clones made
    /// later, on whatever branch, change neither its inode number nor its file handles. Clocks
    /// of filesystems tick every few milliseconds; among copies of one tick the one that it went
    /// by before stays.
    pub fn eldest_first(&self, copies: &[Identity]) -> SmallVec<[Identity; 1]> {
        let mut sorted: SmallVec<[Identity; 1]> = SmallVec::from_slice(copies);
        if sorted.len() > 1 {
            let memory = self.generations.lock();
            sorted.sort_by_key(|copy| {
                (
                    copy.btime_ns,
                    !memory.elders.contains(&(copy.volume, copy.ino)),
                )
            });
        }
        sorted
    }

    /// The branch a volume belongs to.
    pub fn branch_of(&self, volume: VolumeId) -> Option<BranchId> {
        self.list
            .load()
            .get(usize::from(volume.0))
            .map(|v| v.branch)
    }

    /// What distinguishes the inode numbers of this volume from those of others.
    pub fn seed(&self, volume: VolumeId) -> u64 {
        self.list
            .load()
            .get(usize::from(volume.0))
            .map_or(0, |v| v.seed)
    }

    /// The volume of a device on a branch, if it was met before. Asks nothing.
    pub fn of_device(&self, branch: BranchId, device: (u32, u32)) -> Option<VolumeId> {
        let list = self.list.load();
        let index = list
            .iter()
            .position(|v| v.branch == branch && v.device == device && !v.closed)?;
        Some(VolumeId(index as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ids_hold_volume_and_number() {
        let id = derived_id(VolumeId(1023), (1 << 52) - 1, Presented::Own).unwrap();
        assert_eq!(split_id(id), Some((VolumeId(1023), (1 << 52) - 1)));
        assert_eq!(derived_id(VolumeId(0), 1 << 52, Presented::Own), None);
        assert_eq!(derived_id(VolumeId(1024), 1, Presented::Own), None);
        let other = derived_id(VolumeId(1023), (1 << 52) - 1, Presented::Other).unwrap();
        assert_ne!(other, id);
        assert_eq!(split_id(other), None);
        assert_eq!(split_id(NodeId(7)), None);
    }
}

//! A filesystem that an unprivileged user serves through `fusermount3`: it claims that its program
//! is root's and set-user-id, and that its device node is the machine's own.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, makedev};
use strandfs_fuse::{
    AttrReply, Context, DirSink, Entry, Errno, FileAttr, Filesystem, Handle, Ioctl, IoctlReply,
    MountOptions, NodeId, Open, OpenFlags, OpenReply, Read, Result, Session, SessionConfig,
    StatfsReply,
};

use crate::people::{MALLORY, act_as};
use crate::support::{mounts, run};

/// The preload library's question (`strandfs_preload_abi::BRANCH_FILE`).
const BRANCH_FILE: u32 = 0x8400_535f;
/// Node ids of what is in it.
const PROGRAM: u64 = 2;
const DEVICE: u64 = 3;

struct Evil {
    program: Vec<u8>,
    /// What it says that its files are, whoever asks for the branch file of a pool.
    instead: Option<PathBuf>,
}

/// A mounted one.
pub struct EvilFs {
    mountpoint: PathBuf,
}

impl EvilFs {
    /// Mounts it as `user` on a directory of theirs.
    pub fn mount(user: u32, mountpoint: &Path) -> EvilFs {
        EvilFs::lying(user, mountpoint, None)
    }

    /// The same, that calls its files another one.
    pub fn lying(user: u32, mountpoint: &Path, instead: Option<PathBuf>) -> EvilFs {
        let_others_in();
        let evil = Evil {
            program: fs::read("/usr/bin/id").unwrap(),
            instead,
        };
        let options = MountOptions {
            fsname: "evil".to_owned(),
            subtype: "strandfs".to_owned(),
            allow_other: true,
            default_permissions: false,
            ..MountOptions::default()
        };
        act_as(user, || {
            let config = SessionConfig::default();
            let session = Session::mount(Arc::new(evil), mountpoint, &options, config).unwrap();
            std::thread::spawn(move || session.serve());
        });
        EvilFs {
            mountpoint: mountpoint.to_path_buf(),
        }
    }
}

impl Drop for EvilFs {
    fn drop(&mut self) {
        mounts::detach(&self.mountpoint);
    }
}

/// `user_allow_other` and a device that every user may open, as distributions have it, in the test's
/// own mount namespace.
pub fn let_others_in() {
    if fs::read_to_string("/etc/passwd").is_ok_and(|text| text.contains("mallory")) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let bind = |file: &Path, over: &str| {
        fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
        run("mount", ["--bind", file.to_str().unwrap(), over]).ok();
    };
    let device = place.path().join("fuse");
    let (mode, number) = (Mode::from_raw_mode(0o666), makedev(10, 229));
    rustix::fs::mknodat(CWD, &device, FileType::CharacterDevice, mode, number).unwrap();
    bind(&device, "/dev/fuse");
    let conf = place.path().join("fuse.conf");
    fs::write(&conf, "user_allow_other\n").unwrap();
    bind(&conf, "/etc/fuse.conf");
    // fusermount3 wants to know the name of who asks.
    let accounts = place.path().join("passwd");
    let mut known = fs::read_to_string("/etc/passwd").unwrap();
    known.push_str(&format!("mallory:x:{MALLORY}:{MALLORY}::/:/bin/sh\n"));
    fs::write(&accounts, known).unwrap();
    bind(&accounts, "/etc/passwd");
}

impl Evil {
    fn attr(&self, node: NodeId) -> Result<FileAttr> {
        let (mode, size_bytes) = match node.0 {
            1 => (libc::S_IFDIR | 0o777, 0),
            PROGRAM => (libc::S_IFREG | 0o6755, self.program.len() as u64),
            DEVICE => (libc::S_IFCHR | 0o666, 0),
            _ => return Err(Errno::NOENT),
        };
        Ok(FileAttr {
            ino: node.0,
            mode,
            size_bytes,
            nlink: 1,
            // /dev/zero.
            rdev: 0x105,
            block_size_bytes: 4096,
            ..FileAttr::default()
        })
    }
}

impl Filesystem for Evil {
    fn lookup(&self, _: &Context<'_>, _: NodeId, name: &OsStr) -> Result<Entry> {
        let node = NodeId(match name.to_str() {
            Some("su") => PROGRAM,
            Some("zero") => DEVICE,
            _ => return Err(Errno::NOENT),
        });
        Ok(Entry {
            node,
            generation: 0,
            entry_valid: Duration::ZERO,
            attr_valid: Duration::ZERO,
            attr: self.attr(node)?,
        })
    }

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply {
            attr: self.attr(node)?,
            attr_valid: Duration::ZERO,
        })
    }

    fn open(&self, _: &Context<'_>, _: NodeId, _: &Open) -> Result<OpenReply> {
        Ok(opened())
    }

    fn ioctl(
        &self,
        _: &Context<'_>,
        _: NodeId,
        args: &Ioctl<'_>,
        out: &mut [u8],
    ) -> Result<IoctlReply> {
        let instead = self
            .instead
            .as_ref()
            .filter(|_| args.command == BRANCH_FILE);
        let instead = instead.ok_or(Errno::NOTTY)?;
        let found = rustix::fs::stat(instead)?;
        let path = instead.as_os_str().as_bytes();
        let (major, minor) = (
            rustix::fs::major(found.st_dev),
            rustix::fs::minor(found.st_dev),
        );
        let numbers = [2, path.len() as u32, major, minor].map(u32::to_ne_bytes);
        let answer = [
            numbers.as_flattened(),
            &found.st_ino.to_ne_bytes(),
            &[0; 8],
            path,
        ]
        .concat();
        out.fill(0);
        out[..answer.len()].copy_from_slice(&answer);
        Ok(IoctlReply {
            result: 0,
            output_bytes: out.len(),
        })
    }

    fn read(&self, _: &Context<'_>, _: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        let from = usize::try_from(args.offset_bytes)
            .unwrap()
            .min(self.program.len());
        let count = out.len().min(self.program.len() - from);
        out[..count].copy_from_slice(&self.program[from..from + count]);
        Ok(count)
    }

    fn opendir(&self, _: &Context<'_>, _: NodeId, _: i32) -> Result<OpenReply> {
        Ok(opened())
    }

    fn readdir(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Handle,
        _: u64,
        _: &mut DirSink<'_>,
    ) -> Result<()> {
        Ok(())
    }

    fn statfs(&self, _: &Context<'_>, _: NodeId) -> Result<StatfsReply> {
        Ok(StatfsReply::default())
    }
}

fn opened() -> OpenReply {
    OpenReply {
        handle: Handle(0),
        flags: OpenFlags::empty(),
        backing: None,
    }
}

//! A filesystem that answers anything: lengths beyond its buffers, odd errors, odd times. The
//! answer follows from the request's number, so a failure can be repeated.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use strandfs_fuse::*;

/// See the module.
pub struct Wild;

/// A number without pattern for each request.
fn roll(cx: &Context<'_>) -> u64 {
    let mixed = cx
        .unique
        .wrapping_add(0x9e37_79b9_7f4a_7c15)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}

fn errno(cx: &Context<'_>) -> Errno {
    Errno::from_raw_os_error(i32::try_from(roll(cx) % 4095).unwrap_or(0) + 1)
}

/// One of: an error, the answer.
fn maybe<T>(cx: &Context<'_>, value: T) -> Result<T> {
    if roll(cx) & 3 == 0 {
        Err(errno(cx))
    } else {
        Ok(value)
    }
}

/// A length that may be a lie.
fn len(cx: &Context<'_>, room: usize) -> Result<usize> {
    match roll(cx) % 5 {
        0 => Err(errno(cx)),
        1 => Ok(usize::MAX),
        2 => Ok(room.saturating_add(1)),
        3 => Ok(room / 2),
        _ => Ok(room),
    }
}

fn attr(cx: &Context<'_>) -> FileAttr {
    let value = roll(cx);
    let time = Timestamp {
        seconds: value.cast_signed(),
        nanoseconds: u32::MAX,
    };
    FileAttr {
        ino: value,
        size_bytes: u64::MAX,
        mtime: time,
        mode: u32::MAX,
        ..FileAttr::default()
    }
}

fn entry(cx: &Context<'_>) -> Entry {
    Entry {
        node: NodeId(roll(cx) % 3),
        generation: u64::MAX,
        entry_valid: Duration::MAX,
        attr_valid: Duration::new(u64::MAX, 999_999_999),
        attr: attr(cx),
    }
}

fn opened(cx: &Context<'_>) -> OpenReply {
    OpenReply {
        handle: Handle(roll(cx)),
        flags: OpenFlags::from_bits_retain(roll(cx) as u32),
        backing: (roll(cx) & 4 != 0).then_some(BackingId(u32::MAX)),
    }
}

fn attributes(cx: &Context<'_>) -> Result<AttrReply> {
    maybe(
        cx,
        AttrReply {
            attr: attr(cx),
            attr_valid: Duration::MAX,
        },
    )
}

/// A name of up to 300 bytes, longer than any filesystem allows.
fn name(value: u64) -> Vec<u8> {
    vec![b'n'; usize::try_from(value % 300).unwrap_or(0)]
}

impl Filesystem for Wild {
    fn lookup(&self, cx: &Context<'_>, _: NodeId, _: &OsStr) -> Result<Entry> {
        maybe(cx, entry(cx))
    }
    fn getattr(&self, cx: &Context<'_>, _: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        attributes(cx)
    }
    fn statx(
        &self,
        cx: &Context<'_>,
        _: NodeId,
        _: Option<Handle>,
        _: u32,
        _: u32,
    ) -> Result<StatxReply> {
        let extended = ExtendedAttr {
            attr: attr(cx),
            btime: (roll(cx) & 8 == 0).then_some(Timestamp::default()),
            ..ExtendedAttr::default()
        };
        maybe(
            cx,
            StatxReply {
                extended,
                attr_valid: Duration::MAX,
            },
        )
    }
    fn setattr(&self, cx: &Context<'_>, _: NodeId, _: &SetAttr) -> Result<AttrReply> {
        attributes(cx)
    }
    fn readlink(&self, cx: &Context<'_>, _: NodeId, out: &mut [u8]) -> Result<usize> {
        len(cx, out.len())
    }
    fn symlink(&self, cx: &Context<'_>, _: NodeId, _: &OsStr, _: &OsStr) -> Result<Entry> {
        maybe(cx, entry(cx))
    }
    fn mknod(&self, cx: &Context<'_>, _: NodeId, _: &MakeNode<'_>) -> Result<Entry> {
        maybe(cx, entry(cx))
    }
    fn mkdir(&self, cx: &Context<'_>, _: NodeId, _: &MakeNode<'_>) -> Result<Entry> {
        maybe(cx, entry(cx))
    }
    fn link(&self, cx: &Context<'_>, _: NodeId, _: NodeId, _: &OsStr) -> Result<Entry> {
        maybe(cx, entry(cx))
    }
    fn open(&self, cx: &Context<'_>, _: NodeId, _: &Open) -> Result<OpenReply> {
        maybe(cx, opened(cx))
    }
    fn create(&self, cx: &Context<'_>, _: NodeId, _: &Create<'_>) -> Result<(Entry, OpenReply)> {
        maybe(cx, (entry(cx), opened(cx)))
    }
    fn tmpfile(&self, cx: &Context<'_>, _: NodeId, _: &Create<'_>) -> Result<(Entry, OpenReply)> {
        maybe(cx, (entry(cx), opened(cx)))
    }
    fn read(&self, cx: &Context<'_>, _: NodeId, _: &Read, out: &mut [u8]) -> Result<usize> {
        len(cx, out.len())
    }
    fn write(&self, cx: &Context<'_>, _: NodeId, args: &Write<'_>) -> Result<usize> {
        len(cx, args.data.len())
    }
    fn opendir(&self, cx: &Context<'_>, _: NodeId, _: i32) -> Result<OpenReply> {
        maybe(cx, opened(cx))
    }
    fn readdir(
        &self,
        cx: &Context<'_>,
        _: NodeId,
        _: Handle,
        _: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        let mut value = roll(cx);
        while sink.push(
            value,
            1,
            Some(FileKind::Fifo),
            OsStr::from_bytes(&name(value)),
        ) {
            value = value.rotate_left(7) ^ 0x55;
        }
        maybe(cx, ())
    }
    fn readdirplus(
        &self,
        cx: &Context<'_>,
        _: NodeId,
        _: Handle,
        _: u64,
        sink: &mut DirPlusSink<'_>,
    ) -> Result<()> {
        let mut value = roll(cx);
        let (mut room, mut fits) = (true, true);
        while fits {
            assert_eq!(room, fits, "has_room and push agree");
            value = value.rotate_left(7) ^ 0x55;
            let name = name(value);
            room = sink.has_room(name.len());
            fits = sink.push(&entry(cx), value, 1, None, OsStr::from_bytes(&name));
        }
        assert!(!room, "has_room and push agree");
        maybe(cx, ())
    }
    fn statfs(&self, cx: &Context<'_>, _: NodeId) -> Result<StatfsReply> {
        maybe(
            cx,
            StatfsReply {
                blocks: u64::MAX,
                ..StatfsReply::default()
            },
        )
    }
    fn getxattr(
        &self,
        cx: &Context<'_>,
        _: NodeId,
        _: &OsStr,
        out: Option<&mut [u8]>,
    ) -> Result<usize> {
        len(cx, out.map_or(0, |out| out.len()))
    }
    fn listxattr(&self, cx: &Context<'_>, _: NodeId, out: Option<&mut [u8]>) -> Result<usize> {
        len(cx, out.map_or(0, |out| out.len()))
    }
    fn getlk(&self, cx: &Context<'_>, _: NodeId, args: &LockRequest) -> Result<Lock> {
        maybe(cx, args.lock)
    }
    fn ioctl(
        &self,
        cx: &Context<'_>,
        _: NodeId,
        args: &Ioctl<'_>,
        out: &mut [u8],
    ) -> Result<IoctlReply> {
        assert_eq!(
            out.len(),
            args.output_max_bytes as usize,
            "the room is as told"
        );
        Ok(IoctlReply {
            result: i32::MIN,
            output_bytes: len(cx, out.len())?,
        })
    }
    fn copy_file_range(&self, cx: &Context<'_>, _: NodeId, args: &CopyFileRange) -> Result<u64> {
        maybe(cx, args.len_bytes.saturating_add(roll(cx) & 1))
    }
    fn release(&self, cx: &Context<'_>, _: NodeId, _: &Release) -> Result<()> {
        maybe(cx, ())
    }
}

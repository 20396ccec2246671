//! Taking fanotify's event records apart.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::base::sys::RawHandle;

/// Fixed part of a record: length, version, reserved, length of this part, mask, fd, pid.
const METADATA_BYTES: usize = 24;
const VERSION: u8 = 3;
/// Of an information record: type, padding, length.
const INFO_HEADER_BYTES: usize = 4;

/// Which filesystem an event is of, as `statvfs` shows it.
pub(crate) type Fsid = u64;

/// An inode as an event names it.
#[derive(Clone, Copy)]
pub(crate) struct FileId {
    pub fsid: Fsid,
    pub handle: RawHandle,
}

/// One event.
pub(crate) struct Event<'a> {
    /// The whole record.
    pub record: &'a [u8],
    /// `FAN_*` bits; merged events have several.
    pub mask: u64,
    /// The process that made the change.
    pub pid: i32,
    /// The directory and the name in it.
    pub place: Option<(FileId, &'a OsStr)>,
    /// The inode changed, or the one behind the name.
    pub target: Option<FileId>,
}

/// The events in what a read of a group returned. Ends early at a record it cannot read.
pub(crate) struct Events<'a> {
    rest: &'a [u8],
}

impl<'a> Events<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Events { rest: bytes }
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        let record_bytes = number_at::<4>(self.rest, 0).map(u32::from_ne_bytes)? as usize;
        let record = self.rest.get(..record_bytes)?;
        if record_bytes < METADATA_BYTES || record.get(4) != Some(&VERSION) {
            return None;
        }
        self.rest = self.rest.get(record_bytes..)?;
        let info_at = number_at::<2>(record, 6).map(u16::from_ne_bytes)?;
        let mut event = Event {
            record,
            mask: number_at::<8>(record, 8).map(u64::from_ne_bytes)?,
            pid: number_at::<4>(record, 20).map(i32::from_ne_bytes)?,
            place: None,
            target: None,
        };
        let mut infos = record.get(usize::from(info_at)..)?;
        while let Some(info_bytes) = number_at::<2>(infos, 2).map(u16::from_ne_bytes) {
            let Some(info) = infos.get(..usize::from(info_bytes)) else {
                break;
            };
            if info.len() < INFO_HEADER_BYTES {
                break;
            }
            infos = infos.get(info.len()..)?;
            read_info(info, &mut event);
        }
        Some(event)
    }
}

fn read_info<'a>(info: &'a [u8], event: &mut Event<'a>) -> Option<()> {
    let (id, end) = file_id(info.get(INFO_HEADER_BYTES..)?)?;
    match *info.first()? {
        libc::FAN_EVENT_INFO_TYPE_FID => event.target = Some(id),
        libc::FAN_EVENT_INFO_TYPE_DFID_NAME => {
            let name = info.get(INFO_HEADER_BYTES + end..)?;
            let name = name.split(|byte| *byte == 0).next()?;
            event.place = Some((id, OsStr::from_bytes(name)));
        }
        _ => {}
    }
    Some(())
}

/// The identifier at the start of `bytes`, and its length.
fn file_id(bytes: &[u8]) -> Option<(FileId, usize)> {
    let word = |at| number_at::<4>(bytes, at).map(i32::from_ne_bytes);
    let half = |at| number_at::<4>(bytes, at).map(u32::from_ne_bytes);
    let fsid = u64::from(half(0)?) | u64::from(half(4)?) << 32;
    let handle_bytes = usize::try_from(word(8)?).ok()?;
    let end = 16usize.checked_add(handle_bytes)?;
    let handle = RawHandle::new(word(12)?, bytes.get(16..end)?);
    Some((FileId { fsid, handle }, end))
}

fn number_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(kind: u8, ino: u8, name: Option<&str>) -> Vec<u8> {
        let mut body = Vec::new();
        for word in [7i32, 8, 8, 1] {
            body.extend_from_slice(&word.to_ne_bytes());
        }
        body.extend_from_slice(&[ino, 0, 0, 0, 9, 0, 0, 0]);
        if let Some(name) = name {
            body.extend_from_slice(name.as_bytes());
            body.push(0);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let len = (body.len() + INFO_HEADER_BYTES) as u16;
        let mut record = vec![kind, 0];
        record.extend_from_slice(&len.to_ne_bytes());
        record.extend(body);
        record
    }

    fn record(mask: u64, infos: &[Vec<u8>]) -> Vec<u8> {
        let infos = infos.concat();
        let mut bytes = ((METADATA_BYTES + infos.len()) as u32)
            .to_ne_bytes()
            .to_vec();
        bytes.extend_from_slice(&[VERSION, 0]);
        bytes.extend_from_slice(&(METADATA_BYTES as u16).to_ne_bytes());
        bytes.extend_from_slice(&mask.to_ne_bytes());
        bytes.extend_from_slice(&(-1i32).to_ne_bytes());
        bytes.extend_from_slice(&42i32.to_ne_bytes());
        bytes.extend(infos);
        bytes
    }

    #[test]
    fn names_and_inodes_are_read() {
        let mut bytes = record(2, &[info(2, 5, Some("name")), info(1, 6, None)]);
        bytes.extend(record(4, &[info(1, 7, None)]));
        let events: Vec<_> = Events::new(&bytes).collect();
        let [first, second] = &events[..] else {
            panic!("{} events", events.len())
        };
        let (dir, name) = first.place.as_ref().unwrap();
        assert_eq!((first.mask, first.pid, *name), (2, 42, OsStr::new("name")));
        assert_eq!(dir.fsid, 7 | 8 << 32);
        assert_eq!(dir.handle.bytes()[0], 5);
        assert_eq!(first.target.unwrap().handle.bytes()[0], 6);
        assert!(second.place.is_none());
        assert_eq!(
            second.target.unwrap().handle.bytes(),
            [7, 0, 0, 0, 9, 0, 0, 0]
        );
    }

    #[test]
    fn cut_records_end_the_list_without_harm() {
        let whole = record(2, &[info(2, 5, Some("name")), info(1, 6, None)]);
        for len in 0..whole.len() {
            assert_eq!(Events::new(&whole[..len]).count(), 0);
        }
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] = 0xff;
            Events::new(&bad).for_each(drop);
        }
    }
}

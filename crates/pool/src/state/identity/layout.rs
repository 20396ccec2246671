//! File handles of the common filesystems: taken apart and rebuilt.

use crate::base::sys::RawHandle;

/// How a filesystem lays out its handles, learnt from one of them: enough to build the handle
/// of any inode from its number and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandleLayout {
    /// ext4, f2fs and most with 32-bit numbers: number, generation.
    Ino32 { kind: i32 },
    /// XFS with large inode numbers: 64-bit number, generation.
    Ino64 { kind: i32 },
    /// tmpfs: generation, number low, number high.
    Shmem { kind: i32 },
    /// btrfs: object id, subvolume, generation.
    Btrfs { kind: i32, root: u64 },
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl HandleLayout {
    /// The layout and generation of `handle`, known to be of inode `ino`.
    pub(super) fn learn(handle: &RawHandle, ino: u64) -> Option<(HandleLayout, u32)> {
        let (kind, bytes) = (handle.kind(), handle.bytes());
        let layout = match (bytes.len(), kind) {
            (8, 1) => HandleLayout::Ino32 { kind },
            (12, 0x81) => HandleLayout::Ino64 { kind },
            (12, 1) => HandleLayout::Shmem { kind },
            (20, 0x4d) => HandleLayout::Btrfs {
                kind,
                root: u64_at(bytes, 8)?,
            },
            _ => return None,
        };
        layout
            .read(handle)
            .filter(|(found, _)| *found == ino)
            .map(|(_, generation)| (layout, generation))
    }

    /// Number and generation in a handle of this layout.
    pub(super) fn read(&self, handle: &RawHandle) -> Option<(u64, u32)> {
        let bytes = handle.bytes();
        match *self {
            HandleLayout::Ino32 { kind } if kind == handle.kind() && bytes.len() == 8 => {
                Some((u64::from(u32_at(bytes, 0)?), u32_at(bytes, 4)?))
            }
            HandleLayout::Ino64 { kind } if kind == handle.kind() && bytes.len() == 12 => {
                Some((u64_at(bytes, 0)?, u32_at(bytes, 8)?))
            }
            HandleLayout::Shmem { kind } if kind == handle.kind() && bytes.len() == 12 => {
                let low = u64::from(u32_at(bytes, 4)?);
                Some((low | u64::from(u32_at(bytes, 8)?) << 32, u32_at(bytes, 0)?))
            }
            HandleLayout::Btrfs { kind, root } if kind == handle.kind() && bytes.len() == 20 => {
                (u64_at(bytes, 8)? == root).then_some((u64_at(bytes, 0)?, u32_at(bytes, 16)?))
            }
            _ => None,
        }
    }

    /// The handle of an inode.
    pub(super) fn build(&self, ino: u64, generation: u32) -> RawHandle {
        let generation = generation.to_ne_bytes();
        match *self {
            HandleLayout::Ino32 { kind } => {
                RawHandle::new(kind, &[(ino as u32).to_ne_bytes(), generation].concat())
            }
            HandleLayout::Ino64 { kind } => {
                RawHandle::new(kind, &[&ino.to_ne_bytes()[..], &generation].concat())
            }
            HandleLayout::Shmem { kind } => {
                let (low, high) = (ino as u32, (ino >> 32) as u32);
                RawHandle::new(
                    kind,
                    &[generation, low.to_ne_bytes(), high.to_ne_bytes()].concat(),
                )
            }
            HandleLayout::Btrfs { kind, root } => RawHandle::new(
                kind,
                &[&ino.to_ne_bytes()[..], &root.to_ne_bytes(), &generation].concat(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_rebuilt_as_they_were() {
        let shapes: [(i32, Vec<u8>, u64); 4] = [
            (1, [12u32.to_ne_bytes(), 77u32.to_ne_bytes()].concat(), 12),
            (
                0x81,
                [&(5u64 << 33).to_ne_bytes()[..], &77u32.to_ne_bytes()].concat(),
                5 << 33,
            ),
            (
                1,
                [77u32.to_ne_bytes(), 3u32.to_ne_bytes(), 1u32.to_ne_bytes()].concat(),
                3 | 1 << 32,
            ),
            (
                0x4d,
                [
                    &9u64.to_ne_bytes()[..],
                    &5u64.to_ne_bytes(),
                    &77u32.to_ne_bytes(),
                ]
                .concat(),
                9,
            ),
        ];
        for (kind, bytes, ino) in shapes {
            let handle = RawHandle::new(kind, &bytes);
            let (layout, generation) = HandleLayout::learn(&handle, ino).unwrap();
            assert_eq!(generation, 77);
            let again = layout.build(ino, generation);
            assert_eq!((again.kind(), again.bytes()), (kind, &bytes[..]));
            assert!(HandleLayout::learn(&handle, ino + 1).is_none());
        }
    }
}

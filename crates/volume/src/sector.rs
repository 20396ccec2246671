//! Which sectors the block device of a volume gets. Filesystems and partition tables are tied to
//! the sectors they were made for, so what is on the volume decides; a blank volume gets sectors
//! of 4096 bytes, which direct I/O can write on every disk.

/// How much of the volume's start [`choose`] wants to see.
pub const SAMPLE_BYTES: usize = 8192;

const SMALL: u32 = 512;
const LARGE: u32 = 4096;

/// The size of sectors, in bytes, for a volume that starts with `start`.
pub fn choose(start: &[u8]) -> u32 {
    if start.iter().all(|byte| *byte == 0) {
        return LARGE;
    }
    let at = |from: usize, bytes: &[u8]| start.get(from..from + bytes.len()) == Some(bytes);
    // sb_sectsize of the XFS superblock, big-endian.
    if at(0, b"XFSB") {
        let sector = start.get(102..104).map_or(0, |field| {
            u32::from(u16::from_be_bytes([field[0], field[1]]))
        });
        return if sector == LARGE { LARGE } else { SMALL };
    }
    // Magic and s_log_block_size of ext2 to ext4, little-endian, 1024 bytes into the volume.
    if at(1024 + 56, &[0x53, 0xef]) {
        let block_is_large = start.get(1024 + 24).is_some_and(|log| *log >= 2);
        return if block_is_large { LARGE } else { SMALL };
    }
    // The header of a GPT is in the second sector.
    if at(4096, b"EFI PART") {
        return LARGE;
    }
    SMALL
}

#[cfg(test)]
mod tests {
    use super::*;

    type Part = (usize, &'static [u8]);

    fn start(parts: &[Part]) -> Vec<u8> {
        let mut bytes = vec![0; SAMPLE_BYTES];
        for (at, part) in parts {
            bytes[*at..at + part.len()].copy_from_slice(part);
        }
        bytes
    }

    #[test]
    fn what_is_on_the_volume_decides() {
        let cases: [(u32, &[Part]); 8] = [
            (LARGE, &[]),
            (SMALL, &[(0, b"XFSB"), (102, &[2, 0])]),
            (LARGE, &[(0, b"XFSB"), (102, &[0x10, 0])]),
            (SMALL, &[(1080, &[0x53, 0xef]), (1048, &[0])]),
            (LARGE, &[(1080, &[0x53, 0xef]), (1048, &[2])]),
            (SMALL, &[(510, &[0x55, 0xaa]), (512, b"EFI PART")]),
            (LARGE, &[(510, &[0x55, 0xaa]), (4096, b"EFI PART")]),
            (SMALL, &[(0, b"LUKS\xba\xbe")]),
        ];
        for (expected, parts) in cases {
            assert_eq!(choose(&start(parts)), expected, "{parts:?}");
        }
        assert_eq!(choose(&[]), LARGE);
        assert_eq!(choose(b"XFSB"), SMALL);
    }
}

//! Hashes that are the same on every machine and in every run.

/// The finaliser of splitmix64: a bijection on 64 bits that looks random.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A 64-bit FNV-1a hash of `bytes`, stable over runs and machines.
pub fn stable_hash(bytes: &[u8]) -> u64 {
    stable_hash_more(0xcbf2_9ce4_8422_2325, bytes)
}

/// The hash of what was hashed before with `bytes` behind it.
pub fn stable_hash_more(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

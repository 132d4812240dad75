//! What the routines share: where the tail of a write begins, and checksums of bytes.

/// The size of the tail, which must become visible last: the naturally aligned word of the last
/// byte.
pub(crate) const TAIL: usize = 8;

/// How many bytes of a write to `dst` come before its tail.
pub(crate) fn bulk_length(dst: usize, len: usize) -> usize {
    if len < TAIL {
        return 0;
    }
    // Cannot underflow: the word of the last byte begins at most seven bytes before it, and
    // len >= 8.
    (dst.wrapping_add(len - 1) & !(TAIL - 1)).wrapping_sub(dst)
}

/// The CRC-32 `crc`, continued over `bytes`.
pub(super) fn crc32(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.is_empty() {
        return crc;
    }
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

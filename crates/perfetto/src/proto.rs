//! The wire format of protocol buffers, as far as a trace needs it.

/// Bytes of the length of a nested message. Its value is known only at the end, so the varint is
/// always as long as the longest, which the format allows.
pub(crate) const LENGTH: usize = 4;

/// The wire types.
pub(crate) const VARINT: u32 = 0;
pub(crate) const FIXED64: u32 = 1;
pub(crate) const BYTES: u32 = 2;

/// A number of seven bits a byte, the lowest first. Every byte but the last has its high bit set.
pub(crate) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        // CAST: seven bits.
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    // CAST: seven bits.
    out.push(value as u8);
}

/// A number as a varint of `N` bytes, which the format allows to be more than it needs. What is
/// beyond them is lost.
#[inline(always)]
pub(crate) fn wide<const N: usize>(value: u64) -> [u8; N] {
    let low = value & ((1 << 56) - 1);
    // All eight bytes at once: groups of 28, of 14, of 7 bits.
    let spread = low & 0x0fff_ffff | (low & 0x00ff_ffff_f000_0000) << 4;
    let spread = spread & 0x0000_3fff_0000_3fff | (spread & 0x0fff_c000_0fff_c000) << 2;
    let spread = spread & 0x007f_007f_007f_007f | (spread & 0x3f80_3f80_3f80_3f80) << 1;
    let eight = (spread | 0x8080_8080_8080_8080).to_le_bytes();
    // CAST: the bits behind those eight bytes, seven to a byte, and one.
    let rest = [(value >> 56) as u8 | 0x80, (value >> 63) as u8];
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = if at < 8 { eight[at] } else { rest[at - 8] };
    }
    bytes[N - 1] &= 0x7f;
    bytes
}

fn tag(out: &mut Vec<u8>, field: u32, wire_type: u32) {
    varint(out, u64::from(field << 3 | wire_type));
}

/// A number.
pub(crate) fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    tag(out, field, VARINT);
    varint(out, value);
}

/// A text.
pub(crate) fn text(out: &mut Vec<u8>, field: u32, value: &str) {
    tag(out, field, BYTES);
    varint(out, value.len() as u64);
    out.extend_from_slice(value.as_bytes());
}

/// Writes the length of a nested message whose content begins at `start`, and ends here.
#[inline]
pub(crate) fn end(out: &mut [u8], start: usize) {
    // CAST: a message is shorter than 2^28 bytes.
    let length = (out.len() - start) as u32;
    let spread = length & 0x7f
        | (length << 1) & 0x7f00
        | (length << 2) & 0x007f_0000
        | (length << 3) & 0x7f00_0000;
    out[start - LENGTH..start].copy_from_slice(&(spread | 0x0080_8080).to_le_bytes());
}

/// A nested message with what `fill` writes.
pub(crate) fn message(out: &mut Vec<u8>, field: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    tag(out, field, BYTES);
    out.extend_from_slice(&[0; LENGTH]);
    let start = out.len();
    fill(out);
    end(out, start);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_encoded_as_the_format_says() {
        let encoded = |field, value| {
            let mut out = Vec::new();
            number(&mut out, field, value);
            out
        };
        // The example of the format's own documentation.
        assert_eq!(encoded(1, 150), [0x08, 0x96, 0x01]);
        assert_eq!(encoded(60, 0), [0xe0, 0x03, 0]);
        assert_eq!(encoded(1, u64::MAX).len(), 11);
    }

    fn decoded(bytes: &[u8]) -> u64 {
        let (last, others) = bytes.split_last().expect("at least one byte");
        assert!(others.iter().all(|byte| byte & 0x80 != 0) && last & 0x80 == 0);
        bytes.iter().rev().fold(0, |sum, byte| sum << 7 | u64::from(byte & 0x7f))
    }

    #[test]
    fn numbers_of_every_length_are_those_that_were_written() {
        for bits in 0..=64 {
            for value in [0, 1, 0x5555_5555_5555_5555, u64::MAX] {
                let value = if bits == 0 { 0 } else { value >> (64 - bits) | 1 << (bits - 1) };
                let mut out = Vec::new();
                varint(&mut out, value);
                assert_eq!(decoded(&out), value);
                assert!(out.len() == 1 || out.last() != Some(&0), "no longer than it must be");
                let below = |bits: u32| value & 1_u64.checked_shl(bits).map_or(!0, |end| end - 1);
                assert_eq!(decoded(&wide::<10>(value)), value);
                assert_eq!(decoded(&wide::<9>(value)), below(63));
                assert_eq!(decoded(&wide::<6>(value)), below(42));
                assert_eq!(decoded(&wide::<5>(value)), below(35));
                assert_eq!(decoded(&wide::<2>(value)), below(14));
            }
        }
    }

    #[test]
    fn a_length_has_four_bytes_whatever_its_value() {
        for length in [0, 1, 127, 128, 300, 70_000] {
            let mut out = Vec::new();
            message(&mut out, 2, |out| out.resize(out.len() + length, 7));
            let decoded = (0..4)
                .fold(0, |sum, index| sum | usize::from(out[1 + index] & 0x7f) << (7 * index));
            assert_eq!((out[0], decoded, out.len()), (0x12, length, 5 + length));
            assert!(out[1..4].iter().all(|byte| byte & 0x80 != 0) && out[4] & 0x80 == 0);
        }
    }
}

//! The wire format of protocol buffers, as far as a trace needs it.

/// Bytes of the length of a nested message. Its value is known only at the end, so the varint is
/// always as long as the longest, which the format allows.
const LENGTH: usize = 4;

/// The wire types.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;

/// A number of seven bits a byte, the lowest first. Every byte but the last has its high bit set.
#[inline]
pub(crate) fn varint(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        // CAST: seven bits.
        return out.push(value as u8);
    }
    let low = value & ((1 << 56) - 1);
    // All eight bytes at once, as a trace is made of such numbers: groups of 28, of 14, of 7 bits.
    let spread = low & 0x0fff_ffff | (low & 0x00ff_ffff_f000_0000) << 4;
    let spread = spread & 0x0000_3fff_0000_3fff | (spread & 0x0fff_c000_0fff_c000) << 2;
    let spread = spread & 0x007f_007f_007f_007f | (spread & 0x3f80_3f80_3f80_3f80) << 1;
    out.extend_from_slice(&(spread | 0x8080_8080_8080_8080).to_le_bytes());
    if low == value {
        let bytes = (63 - value.leading_zeros() as usize) / 7 + 1;
        out.truncate(out.len() - (8 - bytes));
        if let Some(last) = out.last_mut() {
            *last &= 0x7f;
        }
    } else {
        varint(out, value >> 56);
    }
}

#[inline]
fn tag(out: &mut Vec<u8>, field: u32, wire_type: u32) {
    varint(out, u64::from(field << 3 | wire_type));
}

/// A number.
#[inline]
pub(crate) fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    tag(out, field, VARINT);
    varint(out, value);
}

/// A number of eight bytes.
#[inline]
pub(crate) fn fixed(out: &mut Vec<u8>, field: u32, value: u64) {
    tag(out, field, FIXED64);
    out.extend_from_slice(&value.to_le_bytes());
}

/// A text.
pub(crate) fn text(out: &mut Vec<u8>, field: u32, value: &str) {
    tag(out, field, BYTES);
    varint(out, value.len() as u64);
    out.extend_from_slice(value.as_bytes());
}

/// Begins a nested message, and returns where its content begins: for [`end`].
#[inline]
pub(crate) fn begin(out: &mut Vec<u8>, field: u32) -> usize {
    tag(out, field, BYTES);
    out.extend_from_slice(&[0; LENGTH]);
    out.len()
}

/// Ends a nested message.
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

/// A nested message of less than 128 bytes, with what `fill` writes.
#[inline]
pub(crate) fn short_message(out: &mut Vec<u8>, field: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    tag(out, field, BYTES);
    let start = out.len();
    out.push(0);
    fill(out);
    let length = out.len() - start - 1;
    debug_assert!(length < 0x80, "a short message");
    // CAST: it is short.
    out[start] = length as u8;
}

/// A nested message with what `fill` writes.
pub(crate) fn message(out: &mut Vec<u8>, field: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = begin(out, field);
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

    #[test]
    fn numbers_of_every_length_are_those_that_were_written() {
        for bits in 0..=64 {
            for value in [0, 1, 0x5555_5555_5555_5555, u64::MAX] {
                let value = if bits == 0 { 0 } else { value >> (64 - bits) | 1 << (bits - 1) };
                let mut out = vec![7];
                varint(&mut out, value);
                let decoded = out[1..]
                    .iter()
                    .rev()
                    .fold(0, |sum: u64, byte| sum << 7 | u64::from(byte & 0x7f));
                assert_eq!(decoded, value);
                let (last, others) = out[1..].split_last().expect("at least one byte");
                assert!(others.iter().all(|byte| byte & 0x80 != 0) && last & 0x80 == 0);
                assert!(others.is_empty() || *last != 0, "no longer than it must be");
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

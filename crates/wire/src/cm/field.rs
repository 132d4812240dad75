//! Fields of messages whose layout the standard gives in bits.

use iba::{Gid, Guid, PKey, Psn, QKey, Qpn};

/// A value in the `width` bits that begin at bit `at`; bit 0 is the highest of the first byte, as
/// IBA counts.
///
/// The bits must be within the message: the tables in this crate ensure that, and its tests check
/// them.
pub(crate) trait Field {
    /// Reads it.
    fn get(bytes: &[u8], at: usize, width: usize) -> Self;
    /// Writes it. If a number is too large, its low bits are written.
    fn put(&self, bytes: &mut [u8], at: usize, width: usize);
}

fn get_bits(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut value = 0;
    let mut bit = at;
    let end = at + width;
    while bit < end {
        // Up to the end of the byte, or of the field.
        let take = (8 - bit % 8).min(end - bit);
        let byte = u64::from(bytes[bit / 8]);
        let piece = byte >> (8 - bit % 8 - take) & ((1 << take) - 1);
        value = value << take | piece;
        bit += take;
    }
    value
}

fn put_bits(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    let mut bit = at;
    let end = at + width;
    while bit < end {
        let take = (8 - bit % 8).min(end - bit);
        let shift = 8 - bit % 8 - take;
        let mask = ((1u16 << take) - 1) as u8;
        let piece = (value >> (end - bit - take)) as u8 & mask;
        let byte = &mut bytes[bit / 8];
        *byte = *byte & !(mask << shift) | piece << shift;
        bit += take;
    }
}

macro_rules! numbers {
    ($($int:ty)*) => {$(
        impl Field for $int {
            fn get(bytes: &[u8], at: usize, width: usize) -> Self {
                get_bits(bytes, at, width) as Self
            }

            fn put(&self, bytes: &mut [u8], at: usize, width: usize) {
                put_bits(bytes, at, width, u64::from(*self));
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 }

impl Field for bool {
    fn get(bytes: &[u8], at: usize, width: usize) -> Self {
        get_bits(bytes, at, width) != 0
    }

    fn put(&self, bytes: &mut [u8], at: usize, width: usize) {
        put_bits(bytes, at, width, u64::from(*self));
    }
}

macro_rules! wrapped {
    ($($name:ident($int:ty): $wrap:expr, $unwrap:expr;)*) => {$(
        impl Field for $name {
            fn get(bytes: &[u8], at: usize, width: usize) -> Self {
                $wrap(<$int>::get(bytes, at, width))
            }

            fn put(&self, bytes: &mut [u8], at: usize, width: usize) {
                let value: $int = $unwrap(*self);
                value.put(bytes, at, width);
            }
        }
    )*};
}

wrapped! {
    Qpn(u32): Qpn::new, Qpn::value;
    Psn(u32): Psn::new, Psn::value;
    QKey(u32): QKey, |key: QKey| key.0;
    PKey(u16): PKey, |key: PKey| key.0;
    Guid(u64): Guid, |guid: Guid| guid.0;
}

impl<const N: usize> Field for [u8; N] {
    fn get(bytes: &[u8], at: usize, _width: usize) -> Self {
        let mut value = [0; N];
        value.copy_from_slice(&bytes[at / 8..at / 8 + N]);
        value
    }

    fn put(&self, bytes: &mut [u8], at: usize, _width: usize) {
        bytes[at / 8..at / 8 + N].copy_from_slice(self);
    }
}

impl Field for Gid {
    fn get(bytes: &[u8], at: usize, width: usize) -> Self {
        Self(Field::get(bytes, at, width))
    }

    fn put(&self, bytes: &mut [u8], at: usize, width: usize) {
        self.0.put(bytes, at, width);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bits_are_counted_from_the_top() {
        let bytes = [0b1010_0000, 0x12, 0x34, 0x56];
        assert_eq!(get_bits(&bytes, 0, 3), 0b101);
        assert_eq!(get_bits(&bytes, 8, 24), 0x12_3456);
        assert_eq!(get_bits(&bytes, 4, 12), 0x012);
    }

    proptest! {
        #[test]
        fn a_field_keeps_its_neighbours(bytes: [u8; 12], at in 0..32_usize, width in 1..=64_usize, value: u64) {
            let mut written = bytes;
            put_bits(&mut written, at, width, value);
            let mask = u64::MAX >> (64 - width);
            prop_assert_eq!(get_bits(&written, at, width), value & mask);
            put_bits(&mut written, at, width, get_bits(&bytes, at, width));
            prop_assert_eq!(written, bytes);
        }
    }
}

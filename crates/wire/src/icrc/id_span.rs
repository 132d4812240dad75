//! What the identification of an IPv4 header adds to an ICRC.
//!
//! CRC-32 treats a message as a polynomial over GF(2), first bit first, and takes the remainder of
//! `message * x^32` by the generator P. Setting a bit that `k` bits follow adds `x^(k + 32) mod P`.
//! The 16 bits of the identification are adjacent, so together they add `D * x^(8n + 32) mod P`,
//! where `n` is the number of bytes after them and D is the identification as a polynomial of
//! degree below 16. `x` has an inverse modulo P: multiplying a difference by `x^-(8n + 32)` gives D
//! back if its degree is below 16, and otherwise no identification explains the difference. The
//! same would follow from Gaussian elimination over the 16 values of the single bits, which the
//! tests do.

use crate::ip::{IPV4_LEN, UDP_LEN};

/// The generator polynomial without its highest term. As in every reflected CRC, the top bit of a
/// word is the coefficient of `x^0` and the bottom bit that of `x^31`.
const P: u32 = 0xedb8_8320;

/// 1, as a polynomial.
const ONE: u32 = 1 << 31;

/// `x^(2^i)` and `x^-(2^i)`.
const POWERS: [u32; 32] = squares(multiply_by_x(ONE));
const INVERSE_POWERS: [u32; 32] = squares(divide_by_x(ONE));

/// Bytes between the identification and the BTH.
const AFTER_ID: usize = IPV4_LEN - 6 + UDP_LEN;

/// The 65,536 differences between ICRCs of one packet with different identifications. They depend
/// on its length alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSpan {
    packet_len: usize,
    shift: u32,
    inverse_shift: u32,
}

impl IdSpan {
    /// The span of packets of `packet_len` bytes from the BTH to the end of the padding.
    pub const fn new(packet_len: usize) -> Self {
        // No UDP datagram is long enough for the multiplication to overflow.
        let exponent = ((AFTER_ID + packet_len) as u32).wrapping_mul(8).wrapping_add(32);
        Self {
            packet_len,
            shift: power(&POWERS, exponent),
            inverse_shift: power(&INVERSE_POWERS, exponent),
        }
    }

    /// The length this span is for.
    pub const fn packet_len(&self) -> usize {
        self.packet_len
    }

    /// How the ICRC for identification `id` differs from that for 0: this value is the exclusive-or
    /// of the two.
    pub const fn delta(&self, id: u16) -> u32 {
        multiply((id.swap_bytes() as u32) << 16, self.shift)
    }

    /// The identification whose [`IdSpan::delta`] is `delta`, if there is one.
    pub const fn solve(&self, delta: u32) -> Option<u16> {
        let id = multiply(delta, self.inverse_shift);
        if id & 0xffff == 0 { Some(((id >> 16) as u16).swap_bytes()) } else { None }
    }
}

/// `a * b mod P`. Without branches on the operands, which are effectively random.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = multiply_by_x(b);
    }
    product
}

const fn multiply_by_x(a: u32) -> u32 {
    a >> 1 ^ P & (a & 1).wrapping_neg()
}

/// The inverse of [`multiply_by_x`]: P has a constant term, so an element with one is made
/// divisible by adding P.
const fn divide_by_x(a: u32) -> u32 {
    if a & ONE != 0 { (a ^ P) << 1 | 1 } else { a << 1 }
}

/// The element that gives `a` when it is multiplied by `x` this many times.
pub(super) const fn before(mut a: u32, mut steps: u32) -> u32 {
    while steps > 0 {
        a = divide_by_x(a);
        steps -= 1;
    }
    a
}

/// What the last four bytes of a message, which are `word` in big-endian order, add to its CRC.
pub(super) const fn of_last_word(word: u32) -> u32 {
    multiply(word.swap_bytes(), power(&POWERS, 32))
}

/// `a`, `a^2`, `a^4`, ...
const fn squares(a: u32) -> [u32; 32] {
    let mut squares = [a; 32];
    let mut i = 1;
    while i < squares.len() {
        squares[i] = multiply(squares[i - 1], squares[i - 1]);
        i += 1;
    }
    squares
}

/// The element with these [`squares`], to the power of `exponent`.
const fn power(squares: &[u32; 32], mut exponent: u32) -> u32 {
    let mut result = ONE;
    while exponent != 0 {
        result = multiply(result, squares[exponent.trailing_zeros() as usize]);
        exponent &= exponent - 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn x_and_its_inverse_cancel() {
        for i in 0..32 {
            assert_eq!(multiply(POWERS[i], INVERSE_POWERS[i]), ONE);
        }
        assert_eq!(divide_by_x(multiply_by_x(P)), P);
    }

    /// The basis of the span by computing CRCs, and a solution by Gaussian elimination: slow, and
    /// without polynomial algebra.
    struct Basis {
        /// Reduced differences with the identification bits that produce them, each with a
        /// different highest bit.
        rows: Vec<(u32, u16)>,
    }

    impl Basis {
        fn new(packet_len: usize) -> Self {
            let mut message = vec![0; 2 + AFTER_ID + packet_len];
            let zero = crc32fast::hash(&message);
            let mut rows: Vec<(u32, u16)> = Vec::new();
            for bit in 0..16 {
                let id = 1_u16 << bit;
                message[..2].copy_from_slice(&id.to_be_bytes());
                let (value, id) = Self::reduce(&rows, crc32fast::hash(&message) ^ zero, id);
                assert_ne!(value, 0, "the differences are independent");
                rows.push((value, id));
            }
            Self { rows }
        }

        fn reduce(rows: &[(u32, u16)], mut value: u32, mut id: u16) -> (u32, u16) {
            loop {
                let same_top = |row: &&(u32, u16)| row.0.leading_zeros() == value.leading_zeros();
                match rows.iter().find(same_top) {
                    Some(row) if value != 0 => (value, id) = (value ^ row.0, id ^ row.1),
                    _ => return (value, id),
                }
            }
        }

        fn solve(&self, delta: u32) -> Option<u16> {
            let (rest, id) = Self::reduce(&self.rows, delta, 0);
            (rest == 0).then_some(id)
        }
    }

    proptest! {
        #[test]
        fn algebra_agrees_with_elimination(len in 0..4200_usize, id: u16, random: u32) {
            let (span, basis) = (IdSpan::new(len), Basis::new(len));
            let delta = span.delta(id);
            prop_assert_eq!(basis.solve(delta), Some(id));
            prop_assert_eq!(span.solve(delta), Some(id));
            prop_assert_eq!(span.solve(random), basis.solve(random));
        }
    }

    #[test]
    fn every_identification_has_a_difference_of_its_own() {
        let span = IdSpan::new(1040);
        for id in 0..=u16::MAX {
            assert_eq!(span.solve(span.delta(id)), Some(id));
        }
    }
}

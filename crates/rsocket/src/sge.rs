//! Entries that one side writes into the other's memory: where the other may write next.

/// Byte order of entries that are written into a peer's memory: the peer's own, since it reads them
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The same as ours.
    Same,
    /// The opposite.
    Swapped,
}

impl Order {
    const fn u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Same => value.to_ne_bytes(),
            Self::Swapped => value.swap_bytes().to_ne_bytes(),
        }
    }

    const fn u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Same => value.to_ne_bytes(),
            Self::Swapped => value.swap_bytes().to_ne_bytes(),
        }
    }
}

/// A range of memory that may be written.
#[doc(alias = "rs_sge")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// The address of its first byte.
    pub addr: u64,
    /// The key that permits the access.
    #[doc(alias = "rkey")]
    pub key: u32,
    /// The length in bytes; of a list, in entries.
    pub length: u32,
}

impl Sge {
    /// The size of an entry, in bytes.
    pub const SIZE: usize = 16;

    /// Encodes it for a peer's memory.
    pub fn to_bytes(self, order: Order) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&order.u64(self.addr));
        bytes[8..12].copy_from_slice(&order.u32(self.key));
        bytes[12..].copy_from_slice(&order.u32(self.length));
        bytes
    }

    /// Decodes an entry that a peer wrote into our memory.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let word = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
        let addr = bytes[..8].try_into().map_or(0, u64::from_ne_bytes);
        Self { addr, key: word(8), length: word(12) }
    }
}

/// An entry of the table of mappings.
#[doc(alias = "rs_iomap")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The offset that the program uses for the beginning of the memory.
    pub offset: u64,
    /// The memory.
    pub sge: Sge,
}

impl Mapping {
    /// The size of an entry, in bytes.
    pub const SIZE: usize = 8 + Sge::SIZE;

    /// Encodes it for a peer's memory.
    pub fn to_bytes(self, order: Order) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&order.u64(self.offset));
        bytes[8..].copy_from_slice(&self.sge.to_bytes(order));
        bytes
    }

    /// Decodes an entry that a peer wrote into our memory.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let offset = bytes[..8].try_into().map_or(0, u64::from_ne_bytes);
        let sge = bytes[8..].try_into().map_or_else(|_| Sge::default(), Sge::from_bytes);
        Self { offset, sge }
    }

    /// The address of `offset` in the peer's memory, and the number of bytes from there on; `None`
    /// if the mapping does not contain it.
    pub fn find(&self, offset: u64) -> Option<(u64, u32)> {
        let into = u32::try_from(offset.checked_sub(self.offset)?).ok()?;
        let left = self.sge.length.checked_sub(into).filter(|left| *left > 0)?;
        Some((self.sge.addr.wrapping_add(into.into()), left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SGE: Sge = Sge { addr: 0x0102_0304_0506_0708, key: 0x1112_1314, length: 0x2122_2324 };

    #[test]
    fn entries_survive_both_byte_orders() {
        assert_eq!(Sge::from_bytes(&SGE.to_bytes(Order::Same)), SGE);
        let mapping = Mapping { offset: 7, sge: SGE };
        assert_eq!(Mapping::from_bytes(&mapping.to_bytes(Order::Same)), mapping);
    }

    #[test]
    fn a_peer_of_the_opposite_order_reads_its_own_order() {
        let swapped = Sge::from_bytes(&SGE.to_bytes(Order::Swapped));
        assert_eq!(swapped.addr, SGE.addr.swap_bytes());
        assert_eq!(swapped.key, SGE.key.swap_bytes());
        assert_eq!(swapped.length, SGE.length.swap_bytes());
    }

    #[test]
    fn offsets_are_found_inside_a_mapping_only() {
        let sge = Sge { addr: 1000, key: 1, length: 10 };
        let mapping = Mapping { offset: 100, sge };
        assert_eq!(mapping.find(99), None);
        assert_eq!(mapping.find(100), Some((1000, 10)));
        assert_eq!(mapping.find(109), Some((1009, 1)));
        assert_eq!(mapping.find(110), None);
        assert_eq!(mapping.find(u64::MAX), None);
        assert_eq!(Mapping::default().find(0), None, "an entry that was never written");
    }
}

//! The five path MTUs.

/// How many payload bytes a packet carries, with the values of `enum ibv_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "ibv_mtu")]
#[repr(u8)]
#[expect(clippy::exhaustive_enums, reason = "IBA defines exactly five")]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1,024 bytes.
    Mtu1024 = 3,
    /// 2,048 bytes.
    Mtu2048 = 4,
    /// 4,096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// Every MTU, smallest first.
    pub const ALL: [Self; 5] =
        [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// The MTU that `value` encodes, if any.
    pub fn from_code(value: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u32 == value)
    }

    /// Payload bytes in a full packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The largest MTU whose packets fit a netdev of `link_mtu` bytes with `overhead` bytes of
    /// headers around the payload, as a RoCE port derives its active MTU; the smallest one if none
    /// fits.
    pub fn largest_within(link_mtu: u32, overhead: u32) -> Self {
        let room = link_mtu.saturating_sub(overhead);
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room).unwrap_or(Self::Mtu256)
    }

    /// How many packets a message of `length` bytes takes: at least one.
    pub const fn packets(self, length: u32) -> u32 {
        let count = length.div_ceil(self.bytes());
        if count == 0 { 1 } else { count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_stands_for_its_number_of_bytes() {
        assert_eq!(Mtu::ALL.map(Mtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!(Mtu::from_code(3), Some(Mtu::Mtu1024));
        assert_eq!(Mtu::from_code(0), None);
        assert_eq!(Mtu::from_code(6), None);
    }

    #[test]
    fn an_empty_message_is_one_packet() {
        assert_eq!(Mtu::Mtu256.packets(0), 1);
        assert_eq!(Mtu::Mtu256.packets(256), 1);
        assert_eq!(Mtu::Mtu256.packets(257), 2);
        assert_eq!(Mtu::Mtu4096.packets(u32::MAX), 1 << 20);
    }

    #[test]
    fn ethernet_carries_1024() {
        assert_eq!(Mtu::largest_within(1500, 80), Mtu::Mtu1024);
        assert_eq!(Mtu::largest_within(9000, 80), Mtu::Mtu4096);
        assert_eq!(Mtu::largest_within(100, 80), Mtu::Mtu256);
    }
}

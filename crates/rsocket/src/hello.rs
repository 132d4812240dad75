//! The private data that both sides exchange when they connect.

use crate::sge::{Order, Sge};
use crate::sizes::{scale, unscale};

/// The private data of request and response (`struct rs_conn_data`), in network order.
#[doc(alias = "rs_conn_data")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Byte order of the sender, relative to ours.
    pub order: Order,
    /// Messages that the sender can receive.
    pub credits: u16,
    /// Mappings that the sender has room for; `None` if it does not support them.
    pub mappings: Option<u32>,
    /// The sender's target list; the length is in entries. Its table of mappings follows in memory.
    pub target_list: Sge,
    /// The first range of the sender's receive buffer.
    pub data: Sge,
}

/// Why private data is not a [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Too short.
    #[error("{0} bytes of private data, where rsockets have {size}", size = Hello::SIZE)]
    Short(usize),
    /// Another version of the protocol.
    #[error("version {0} of the protocol, where 1 is known")]
    Version(u8),
    /// A target list without entries.
    #[error("a target list without entries")]
    NoTargets,
}

const VERSION: u8 = 1;
/// Set by hosts of big-endian byte order.
const FLAG_NET: u8 = 1;
const FLAG_IOMAP: u8 = 1 << 1;

impl Hello {
    /// Its size in bytes.
    pub const SIZE: usize = 40;

    /// Encodes it as private data.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let is_net = cfg!(target_endian = "big") == (self.order == Order::Same);
        bytes[0] = VERSION;
        bytes[1] = if self.mappings.is_some() { FLAG_IOMAP } else { 0 };
        bytes[1] |= if is_net { FLAG_NET } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = self.mappings.map_or(0, scale);
        for (sge, at) in [(self.target_list, 8), (self.data, 24)] {
            bytes[at..at + 8].copy_from_slice(&sge.addr.to_be_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&sge.key.to_be_bytes());
            bytes[at + 12..at + 16].copy_from_slice(&sge.length.to_be_bytes());
        }
        bytes
    }

    /// Decodes the private data of a peer, which may be longer.
    ///
    /// # Errors
    ///
    /// [`Unreadable`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Unreadable> {
        let Some(bytes) = bytes.first_chunk::<{ Self::SIZE }>() else {
            return Err(Unreadable::Short(bytes.len()));
        };
        if bytes[0] != VERSION {
            return Err(Unreadable::Version(bytes[0]));
        }
        let word = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_be_bytes);
        let sge = |at: usize| {
            let addr = bytes[at..at + 8].try_into().map_or(0, u64::from_be_bytes);
            Sge { addr, key: word(at + 8), length: word(at + 12) }
        };
        let target_list = sge(8);
        if target_list.length == 0 {
            return Err(Unreadable::NoTargets);
        }
        let is_net = bytes[1] & FLAG_NET != 0;
        Ok(Self {
            order: if is_net == cfg!(target_endian = "big") { Order::Same } else { Order::Swapped },
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            mappings: (bytes[1] & FLAG_IOMAP != 0).then(|| unscale(bytes[7])),
            target_list,
            data: sge(24),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            order: Order::Same,
            credits: 384,
            mappings: Some(5),
            target_list: Sge { addr: 0x1122_3344_5566_7788, key: 9, length: 2 },
            data: Sge { addr: 0x8877_6655_4433_2211, key: 10, length: 65536 },
        }
    }

    #[test]
    fn it_has_the_bytes_of_rdma_core() {
        let bytes = hello().to_bytes();
        #[cfg(target_endian = "little")]
        assert_eq!(bytes[..8], [1, 2, 1, 128, 0, 0, 0, 5]);
        assert_eq!(
            bytes[8..24],
            [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0, 0, 9, 0, 0, 0, 2]
        );
        assert_eq!(Hello::from_bytes(&bytes), Ok(hello()));
        // The private data of a request is padded.
        assert_eq!(Hello::from_bytes(&[&bytes[..], &[0; 16]].concat()), Ok(hello()));
        let other = Hello { order: Order::Swapped, mappings: None, ..hello() };
        assert_eq!(Hello::from_bytes(&other.to_bytes()), Ok(other));
    }

    #[test]
    fn other_private_data_is_refused() {
        let good = hello().to_bytes();
        assert_eq!(Hello::from_bytes(&good[..39]), Err(Unreadable::Short(39)));
        let mut bad = good;
        bad[0] = 2;
        assert_eq!(Hello::from_bytes(&bad), Err(Unreadable::Version(2)));
        let mut bad = good;
        bad[23] = 0;
        assert_eq!(Hello::from_bytes(&bad), Err(Unreadable::NoTargets));
    }
}

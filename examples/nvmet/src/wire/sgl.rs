//! Where the data of a command are (NVMe 1.4, 4.4; NVMe over Fabrics 1.1, 2.3).

use super::Status;

/// Where a command's data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// In the capsule, after the command.
    InCapsule {
        /// From the end of the command on.
        offset: u64,
        /// How many bytes.
        len: u32,
    },
    /// In the host's memory.
    Keyed {
        /// The address.
        addr: u64,
        /// How many bytes: 24 bits.
        len: u32,
        /// The key of the memory.
        key: u32,
        /// Whether the response invalidates the key.
        invalidate: bool,
    },
}

/// Data block, at an offset into the capsule.
const IN_CAPSULE: u8 = 0x01;
/// Keyed data block.
const KEYED: u8 = 0x40;
/// Keyed data block, whose key the response invalidates.
const KEYED_INVALIDATE: u8 = 0x4f;

impl Descriptor {
    /// No data.
    pub const NONE: Self = Self::Keyed { addr: 0, len: 0, key: 0, invalidate: false };

    /// Reads a descriptor.
    ///
    /// # Errors
    ///
    /// SGL Descriptor Type Invalid: a controller over RDMA accepts only these two types, and one
    /// descriptor in a command.
    pub fn from_bytes(bytes: &[u8; 16]) -> Result<Self, Status> {
        let [a0, a1, a2, a3, a4, a5, a6, a7, rest @ ..] = *bytes;
        let addr = u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        let [l0, l1, l2, k0, k1, k2, k3, kind] = rest;
        match kind {
            IN_CAPSULE => {
                Ok(Self::InCapsule { offset: addr, len: u32::from_le_bytes([l0, l1, l2, k0]) })
            }
            KEYED | KEYED_INVALIDATE => Ok(Self::Keyed {
                addr,
                len: u32::from_le_bytes([l0, l1, l2, 0]),
                key: u32::from_le_bytes([k0, k1, k2, k3]),
                invalidate: kind == KEYED_INVALIDATE,
            }),
            _ => Err(Status::SGL_TYPE_INVALID.dnr()),
        }
    }

    /// The descriptor's bytes in a command. A keyed length has 24 bits.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        match self {
            Self::InCapsule { offset, len } => {
                bytes[..8].copy_from_slice(&offset.to_le_bytes());
                bytes[8..12].copy_from_slice(&len.to_le_bytes());
                bytes[15] = IN_CAPSULE;
            }
            Self::Keyed { addr, len, key, invalidate } => {
                bytes[..8].copy_from_slice(&addr.to_le_bytes());
                bytes[8..11].copy_from_slice(&len.to_le_bytes()[..3]);
                bytes[11..15].copy_from_slice(&key.to_le_bytes());
                bytes[15] = if invalidate { KEYED_INVALIDATE } else { KEYED };
            }
        }
        bytes
    }

    /// How many bytes it names.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub const fn len(self) -> u32 {
        match self {
            Self::InCapsule { len, .. } | Self::Keyed { len, .. } => len,
        }
    }

    /// The key that the response is to invalidate.
    pub const fn invalidates(self) -> Option<u32> {
        match self {
            Self::Keyed { key, invalidate: true, .. } => Some(key),
            _ => None,
        }
    }

    /// Where the data are in a capsule that brought `there` bytes after its command.
    ///
    /// # Errors
    ///
    /// SGL Offset Invalid, Data SGL Length Invalid; SGL Descriptor Type Invalid if they are not in
    /// the capsule at all.
    pub fn in_capsule(self, there: u32) -> Result<u32, Status> {
        let Self::InCapsule { offset, len } = self else {
            return Err(Status::SGL_TYPE_INVALID.dnr());
        };
        let offset = u32::try_from(offset).ok().filter(|offset| *offset <= there);
        let offset = offset.ok_or(Status::SGL_OFFSET_INVALID.dnr())?;
        if len > there - offset {
            return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
        }
        Ok(offset)
    }

    /// Checks the length against what the command moves.
    ///
    /// # Errors
    ///
    /// Data SGL Length Invalid.
    pub fn expect_len(self, expected: u64) -> Result<(), Status> {
        if u64::from(self.len()) == expected {
            return Ok(());
        }
        Err(Status::DATA_SGL_LENGTH_INVALID.dnr())
    }
}

//! What a work request asks for.

use bitflags::bitflags;

/// The operation of a send work request, with the values of `enum ibv_wr_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_wr_opcode")]
#[non_exhaustive]
#[repr(u8)]
pub enum WrOpcode {
    /// Write to the peer's memory.
    RdmaWrite = 0,
    /// Write, and consume a receive at the peer.
    RdmaWriteWithImm = 1,
    /// Send to a receive of the peer.
    Send = 2,
    /// Send with four bytes of immediate data.
    SendWithImm = 3,
    /// Read from the peer's memory.
    RdmaRead = 4,
    /// Replace eight bytes if they equal a value.
    AtomicCmpAndSwp = 5,
    /// Add to eight bytes.
    AtomicFetchAndAdd = 6,
    /// Invalidate a local key.
    LocalInv = 7,
    /// Bind a memory window.
    BindMw = 8,
    /// Send, and invalidate a key at the peer.
    SendWithInv = 9,
    /// Wait until earlier writes to the peer's memory are visible or persistent, as requested.
    Flush = 14,
    /// Write eight bytes atomically.
    AtomicWrite = 15,
}

impl WrOpcode {
    /// The operation that `value` encodes, if any.
    pub fn from_code(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::RdmaWrite,
            1 => Self::RdmaWriteWithImm,
            2 => Self::Send,
            3 => Self::SendWithImm,
            4 => Self::RdmaRead,
            5 => Self::AtomicCmpAndSwp,
            6 => Self::AtomicFetchAndAdd,
            7 => Self::LocalInv,
            8 => Self::BindMw,
            9 => Self::SendWithInv,
            14 => Self::Flush,
            15 => Self::AtomicWrite,
            _ => return None,
        })
    }

    /// Whether the operation is an atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicCmpAndSwp | Self::AtomicFetchAndAdd)
    }

    /// Whether the peer returns data for it, and not just an acknowledgement: the number of such
    /// requests is limited (IBA 9.4.1.2 and annex A19).
    pub const fn is_answered(self) -> bool {
        self.is_read_like() || matches!(self, Self::Flush | Self::AtomicWrite)
    }

    /// Whether it names memory of the peer.
    pub const fn names_remote(self) -> bool {
        self.is_answered() || matches!(self, Self::RdmaWrite | Self::RdmaWriteWithImm)
    }

    /// Its name, as the standard writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RdmaWrite => "RDMA WRITE",
            Self::RdmaWriteWithImm => "RDMA WRITE with immediate",
            Self::Send => "SEND",
            Self::SendWithImm => "SEND with immediate",
            Self::RdmaRead => "RDMA READ",
            Self::AtomicCmpAndSwp => "CMP_SWAP",
            Self::AtomicFetchAndAdd => "FETCH_ADD",
            Self::LocalInv => "local invalidate",
            Self::BindMw => "bind",
            Self::SendWithInv => "SEND with invalidate",
            Self::Flush => "FLUSH",
            Self::AtomicWrite => "ATOMIC WRITE",
        }
    }

    /// Whether the operation returns bytes, so that its local buffers are written.
    pub const fn is_read_like(self) -> bool {
        self.is_atomic() || matches!(self, Self::RdmaRead)
    }
}

bitflags! {
    /// Flags of a send work request, with the values of `enum ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_send_flags")]
    pub struct SendFlags: u32 {
        /// Wait for earlier READs and atomics.
        const FENCE = 1;
        /// Produce a completion.
        const SIGNALED = 1 << 1;
        /// Ask the peer for a completion event.
        const SOLICITED = 1 << 2;
        /// Take the bytes now; the buffers need no key and may be reused at once.
        const INLINE = 1 << 3;
        /// Offload of IP checksums, for raw packets.
        const IP_CSUM = 1 << 4;
    }
}

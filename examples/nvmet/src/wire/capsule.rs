//! Submission and completion queue entries, which are the capsules of a fabric (NVMe 1.4, 4.2 and
//! 4.6).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Descriptor, Status};

/// Opcodes of the admin queue, of I/O queues, and of fabrics commands.
pub mod opcode {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0a;
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    pub const KEEP_ALIVE: u8 = 0x18;

    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    pub const RESERVATION_REPORT: u8 = 0x0e;
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    pub const RESERVATION_RELEASE: u8 = 0x15;

    pub const FABRICS: u8 = 0x7f;
}

/// Bytes of a command.
pub const COMMAND_LEN: usize = 64;
/// Bytes of a completion.
pub const COMPLETION_LEN: usize = 16;

/// The flags of a command whose data a descriptor names.
#[doc(alias = "NVME_CMD_SGL_METABUF")]
pub const FLAGS_SGL: u8 = 0x40;

/// A command.
#[doc(alias = "nvme_command")]
#[derive(
    Clone,
    Copy,
    Default,
    Debug,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Command {
    /// What is asked for.
    pub opcode: u8,
    /// How the command names its data; whether it is fused.
    pub flags: u8,
    /// The command identifier, which the host chooses.
    pub cid: U16,
    /// The namespace; of a fabrics command, its type in the low byte.
    pub nsid: U32,
    /// Not used here.
    pub cdw2: U32,
    /// Not used here.
    pub cdw3: U32,
    /// The metadata pointer; namespaces here have no metadata.
    pub mptr: U64,
    /// Where the data are.
    pub dptr: [u8; 16],
    /// What the command defines.
    pub cdw10: U32,
    /// What the command defines.
    pub cdw11: U32,
    /// What the command defines.
    pub cdw12: U32,
    /// What the command defines.
    pub cdw13: U32,
    /// What the command defines.
    pub cdw14: U32,
    /// What the command defines.
    pub cdw15: U32,
}

impl Command {
    /// A command without data.
    pub fn new(opcode: u8, nsid: u32) -> Self {
        let dptr = Descriptor::NONE.to_bytes();
        Self { opcode, flags: FLAGS_SGL, nsid: nsid.into(), dptr, ..Self::default() }
    }

    /// What a capsule begins with. `None` if it is too short for a command.
    pub fn from_capsule(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(command, _)| command)
    }

    /// Where the data are.
    ///
    /// # Errors
    ///
    /// Invalid Field if the command is fused or names data by pages; otherwise as
    /// [`Descriptor::from_bytes`].
    pub fn data(&self) -> Result<Descriptor, Status> {
        if self.flags != FLAGS_SGL {
            return Err(Status::INVALID_FIELD.dnr());
        }
        Descriptor::from_bytes(&self.dptr)
    }

    /// The command's first block.
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw10.get()) | u64::from(self.cdw11.get()) << 32
    }

    /// How many blocks, at least one.
    pub fn blocks(&self) -> u64 {
        u64::from(self.cdw12.get() & 0xffff) + 1
    }

    /// A command for blocks of a namespace.
    pub fn io(opcode: u8, nsid: u32, slba: u64, blocks: u16) -> Self {
        let mut command = Self::new(opcode, nsid);
        // CAST: the two halves.
        (command.cdw10, command.cdw11) = ((slba as u32).into(), ((slba >> 32) as u32).into());
        command.cdw12 = u32::from(blocks.wrapping_sub(1)).into();
        command
    }
}

/// How a command ended.
#[doc(alias = "nvme_completion")]
#[derive(
    Clone,
    Copy,
    Default,
    Debug,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Completion {
    /// What the command defines.
    pub result: U64,
    /// The head of the submission queue; `0xffff` without flow control.
    pub sq_head: U16,
    /// The queue.
    pub sq_id: U16,
    /// The command identifier.
    pub cid: U16,
    /// The status, above a bit that fabrics do not use.
    status: U16,
}

impl Completion {
    /// The completion of a command. The head is filled in when it is sent.
    pub fn new(cid: u16, status: Status, result: u64) -> Self {
        let status = (status.bits() << 1).into();
        Self { result: result.into(), cid: cid.into(), status, ..Self::default() }
    }

    /// How it ended.
    pub fn status(&self) -> Status {
        Status::from_bits(self.status.get() >> 1)
    }
}

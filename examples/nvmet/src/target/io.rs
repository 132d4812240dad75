//! What a command of an I/O queue asks for, checked before anything moves.

use crate::target::reservations::Access;
use crate::target::reserve;
use crate::target::subsystem::Geometry;
use crate::wire::capsule::opcode;
use crate::wire::{Command, Descriptor, Status};

/// Most bytes of a command, as a power of two of pages of 4 KiB.
pub const MDTS: u8 = 5;
/// The same in bytes.
pub const MAX_DATA: u32 = 4096 << MDTS;
/// Bytes that a capsule may have after the command.
pub const IN_CAPSULE: u32 = 16 << 10;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the commands of ONCS, and those that are mandatory")]
pub enum Op {
    /// From the namespace to the host.
    Read,
    /// From the host to the namespace.
    Write,
    /// Zeros to the namespace.
    WriteZeroes,
    /// Makes earlier writes durable.
    Flush,
    /// Gives back the blocks of ranges, which then read as zeros; only advice if `discards` is
    /// false.
    #[doc(alias = "NVME_DSMGMT_AD")]
    Deallocate {
        /// How many ranges.
        ranges: u16,
        /// Whether the host asks for it.
        discards: bool,
    },
    /// Changes who has reserved the namespace.
    Reserve {
        /// Bytes of the keys.
        keys: u16,
    },
    /// Tells who has reserved it.
    Report,
}

impl Op {
    /// Bytes of the ranges or keys that come with it, for the CPU to read.
    pub fn list_len(self) -> usize {
        match self {
            Self::Deallocate { ranges, .. } => usize::from(ranges) * RANGE_LEN,
            Self::Reserve { keys } => keys.into(),
            _ => 0,
        }
    }

    /// What it does to the blocks. `None`: nothing, and so no reservation matters.
    pub fn access(self) -> Option<Access> {
        match self {
            Self::Read => Some(Access::Read),
            Self::Write | Self::WriteZeroes | Self::Flush => Some(Access::Write),
            Self::Deallocate { .. } => Some(Access::Write),
            Self::Reserve { .. } | Self::Report => None,
        }
    }
}

/// A command that can be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The operation.
    pub op: Op,
    /// The namespace.
    pub nsid: u32,
    /// Where in it, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Where the host's data are.
    pub data: Descriptor,
    /// Whether the data must be durable before the command is answered.
    #[doc(alias = "NVME_RW_FUA")]
    pub fua: bool,
}

/// Metadata and protection information, which namespaces here have none of.
const PRINFO: u32 = 0xf << 26;
/// Directives, of which a write may name one: there are none.
const DTYPE: u32 = 0xf << 20;
const FUA: u32 = 1 << 30;
/// Attribute Deallocate.
const AD: u32 = 1 << 2;

/// Checks a command that came with `there` bytes after it. `find` knows the namespaces.
///
/// # Errors
///
/// The status for the host.
pub fn plan(
    command: &Command,
    there: u32,
    find: impl Fn(u32) -> Option<Geometry>,
) -> Result<Plan, Status> {
    let op = match command.opcode {
        opcode::READ => Op::Read,
        opcode::WRITE => Op::Write,
        opcode::WRITE_ZEROES => Op::WriteZeroes,
        opcode::FLUSH => Op::Flush,
        opcode::DATASET_MANAGEMENT => Op::Deallocate {
            // CAST: 1 to 256.
            ranges: (command.cdw10.get() & 0xff) as u16 + 1,
            discards: command.cdw11.get() & AD != 0,
        },
        opcode::RESERVATION_REGISTER
        | opcode::RESERVATION_ACQUIRE
        | opcode::RESERVATION_RELEASE => {
            // CAST: at most 16.
            Op::Reserve { keys: reserve::keys_len(command.opcode) as u16 }
        }
        opcode::RESERVATION_REPORT => Op::Report,
        _ => return Err(Status::INVALID_OPCODE.dnr()),
    };
    let data = command.data()?;
    let nsid = command.nsid.get();
    let geometry = find(nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
    if op == Op::Flush {
        return Ok(Plan { op, nsid, offset: 0, len: 0, data, fua: true });
    }
    let of_no_blocks = Plan { op, nsid, offset: 0, len: 0, data, fua: false };
    if op == Op::Report {
        let len = reserve::report_len(command)?;
        return match data {
            Descriptor::InCapsule { .. } => Err(Status::INVALID_FIELD.dnr()),
            _ if len > MAX_DATA.into() => Err(Status::INVALID_FIELD.dnr()),
            _ => data.expect_len(len).map(|()| of_no_blocks),
        };
    }
    if op.list_len() > 0 {
        // A host may send more than the ranges that it means.
        let brings = data.len();
        if op.list_len() > brings as usize || brings > MAX_DATA {
            return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
        }
        if let Descriptor::InCapsule { .. } = data {
            data.in_capsule(there)?;
        }
        return Ok(of_no_blocks);
    }
    let (cdw12, refused) = match op {
        Op::Write => (command.cdw12.get(), PRINFO | DTYPE),
        _ => (command.cdw12.get(), PRINFO),
    };
    if cdw12 & refused != 0 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let place = geometry.bytes(command.slba(), command.blocks());
    let (offset, len) = place.ok_or(Status::LBA_OUT_OF_RANGE.dnr())?;
    if matches!(op, Op::Read | Op::Write) {
        if len > MAX_DATA.into() {
            return Err(Status::INVALID_FIELD.dnr());
        }
        data.expect_len(len)?;
        match (op, data) {
            (Op::Write, Descriptor::InCapsule { .. }) => data.in_capsule(there).map(drop)?,
            (_, Descriptor::InCapsule { .. }) => return Err(Status::INVALID_FIELD.dnr()),
            _ => {}
        }
    }
    Ok(Plan { op, nsid, offset, len, data, fua: cdw12 & FUA != 0 })
}

/// Bytes of a range of Dataset Management.
#[doc(alias = "nvme_dsm_range")]
pub const RANGE_LEN: usize = 16;

/// The ranges of Dataset Management, in bytes: where each begins, and its length.
///
/// # Errors
///
/// LBA Out of Range if one of them ends beyond the namespace.
pub fn ranges(list: &[u8], geometry: Geometry) -> Result<Vec<(u64, u64)>, Status> {
    let range = |entry: &[u8; RANGE_LEN]| {
        let [_, _, _, _, n0, n1, n2, n3, s0, s1, s2, s3, s4, s5, s6, s7] = *entry;
        let blocks = u32::from_le_bytes([n0, n1, n2, n3]);
        let slba = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        geometry.bytes(slba, blocks.into()).ok_or(Status::LBA_OUT_OF_RANGE.dnr())
    };
    list.as_chunks().0.iter().map(range).collect()
}

/// The status for an error of the storage client.
pub fn status_of(error: &storage::Error, op: Op) -> Status {
    use rustix::io::Errno;
    use storage::Error as E;
    match error {
        E::Io { errno: Errno::NOSPC | Errno::DQUOT | Errno::FBIG, .. } => {
            Status::CAPACITY_EXCEEDED.dnr()
        }
        E::Io { .. } if op == Op::Read => Status::UNRECOVERED_READ_ERROR,
        E::Io { .. } => Status::WRITE_FAULT,
        E::ReadOnly { what: "the file", .. } => Status::NAMESPACE_WRITE_PROTECTED.dnr(),
        // The memory went away, and the host's data or the disk's with it.
        E::Gone { .. } | E::Moving { .. } | E::Memory { .. } | E::Attach { .. } => {
            Status::DATA_TRANSFER_ERROR
        }
        _ => Status::INTERNAL_ERROR,
    }
}

//! What a command of an I/O queue asks for, checked before anything moves.

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
        _ => return Err(Status::INVALID_OPCODE.dnr()),
    };
    let data = command.data()?;
    let nsid = command.nsid.get();
    let geometry = find(nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
    if op == Op::Flush {
        return Ok(Plan { op, nsid, offset: 0, len: 0, data, fua: true });
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

//! The commands of reservations, as a host sends them (NVMe 1.4, 6.10 to 6.13).

use crate::target::reservations::{Action, Kind};
use crate::wire::capsule::opcode;
use crate::wire::{Command, Status};

/// Ignore Existing Key.
const IEKEY: u32 = 1 << 3;
/// Change Persist Through Power Loss State, to 1: what is reserved here ends with the target.
const CPTPL_SET: u32 = 3 << 30;
/// Extended Data Structure: identifiers of hosts have 16 bytes.
const EDS: u32 = 1;

/// Bytes of keys that come with a command.
pub(super) fn keys_len(opcode: u8) -> usize {
    match opcode {
        opcode::RESERVATION_REGISTER | opcode::RESERVATION_ACQUIRE => 16,
        opcode::RESERVATION_RELEASE => 8,
        _ => 0,
    }
}

/// What a command asks for, with the keys that came with it.
///
/// # Errors
///
/// Invalid Field.
pub fn action(command: &Command, keys: &[u8]) -> Result<Action, Status> {
    let invalid = Status::INVALID_FIELD.dnr();
    let key = |at: usize| {
        let bytes = keys.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_le_bytes).ok_or(invalid)
    };
    let cdw10 = command.cdw10.get();
    let ignores_key = cdw10 & IEKEY != 0;
    // CAST: a byte.
    let kind = Kind::from_number((cdw10 >> 8) as u8);
    let current = key(0)?;
    let known = (!ignores_key).then_some(current);
    match (command.opcode, cdw10 & 7) {
        (opcode::RESERVATION_REGISTER, _) if cdw10 & CPTPL_SET == CPTPL_SET => Err(invalid),
        (opcode::RESERVATION_REGISTER, 0) => Ok(Action::Register { new: key(8)? }),
        (opcode::RESERVATION_REGISTER, 1) => Ok(Action::Unregister { current: known }),
        (opcode::RESERVATION_REGISTER, 2) => Ok(Action::Replace { current: known, new: key(8)? }),
        _ if ignores_key => Err(invalid),
        (opcode::RESERVATION_ACQUIRE, 0) => {
            Ok(Action::Acquire { current, kind: kind.ok_or(invalid)? })
        }
        (opcode::RESERVATION_ACQUIRE, 1) => {
            Ok(Action::Preempt { current, of: key(8)?, kind: kind.ok_or(invalid)? })
        }
        (opcode::RESERVATION_RELEASE, 0) => {
            Ok(Action::Release { current, kind: kind.ok_or(invalid)? })
        }
        (opcode::RESERVATION_RELEASE, 1) => Ok(Action::Clear { current }),
        _ => Err(invalid),
    }
}

/// How many bytes of the report a host asks for.
///
/// # Errors
///
/// Host Identifier Inconsistent Format unless it asks for long identifiers, which hosts of fabrics
/// have.
pub fn report_len(command: &Command) -> Result<u64, Status> {
    if command.cdw11.get() & EDS == 0 {
        return Err(Status::HOST_ID_INCONSISTENT.dnr());
    }
    Ok((u64::from(command.cdw10.get()) + 1) * 4)
}

//! Stream memory operations: streams write values in memory, and wait for them.

use std::ffi::c_int;

use crate::boundary::calls;
use crate::c::In;
use crate::process::{self, Process};
use crate::status::{Refusal, Result, Status, invalid};
use crate::stream::{Progress, When};
use umd::copy::{At, user};

/// The comparison of a wait: greater or equal, equal, AND, NOR.
#[derive(Clone, Copy)]
enum Condition {
    AtLeast,
    Equal,
    And,
    Nor,
}

/// Flush the writes of NICs before the stream continues. They are always in memory already.
const FLUSH: u32 = 1 << 30;

/// A write without a barrier before it.
const NO_BARRIER: u32 = 1;

fn condition(flags: u32) -> Result<Condition> {
    Ok(match flags & !FLUSH {
        0 => Condition::AtLeast,
        1 => Condition::Equal,
        2 => Condition::And,
        3 => Condition::Nor,
        _ => return Err(invalid(format!("flags {flags:#x} of a wait are unknown"))),
    })
}

impl Condition {
    fn holds(self, there: u64, value: u64, is_wide: bool) -> bool {
        match self {
            // Compare the signed difference, since counters may wrap.
            Self::AtLeast if is_wide => there.wrapping_sub(value).cast_signed() >= 0,
            // CAST: both have four bytes.
            Self::AtLeast => (there as u32).wrapping_sub(value as u32).cast_signed() >= 0,
            Self::Equal => there == value,
            Self::And => there & value != 0,
            Self::Nor if is_wide => !(there | value) != 0,
            // CAST: both have four bytes.
            Self::Nor => !(there as u32 | value as u32) != 0,
        }
    }
}

/// The memory of a value, checked when the work is queued.
fn place(process: &Process, addr: u64, is_wide: bool) -> Result<At> {
    let size = if is_wide { 8 } else { 4 };
    if !addr.is_multiple_of(size) {
        return Err(invalid(format!("{addr:#x} is not a multiple of {size}")));
    }
    let known = process.space.find(addr);
    known.ok_or_else(|| invalid(format!("{addr:#x} is neither allocated nor registered")))?;
    let mut pieces = process.pieces(addr, size)?;
    Ok(pieces.swap_remove(0).at)
}

fn load(at: &At, is_wide: bool) -> Result<u64> {
    let mut bytes = [0; 8];
    let size = if is_wide { 8 } else { 4 };
    let part = &mut bytes[..size];
    match at {
        At::Device(memory, offset) => memory.read(*offset, part)?,
        At::Host(addr) => user(*addr, size as u64).read(0, part).map_err(lost)?,
    }
    Ok(u64::from_le_bytes(bytes))
}

fn store(at: &At, value: u64, is_wide: bool) -> Result<()> {
    let bytes = value.to_le_bytes();
    let part = if is_wide { &bytes[..] } else { &bytes[..4] };
    match at {
        At::Device(memory, offset) => Ok(memory.write(*offset, part)?),
        At::Host(addr) => user(*addr, part.len() as u64).write(0, part).map_err(lost),
    }
}

fn lost(fault: umem::Fault) -> Refusal {
    Refusal::new(Status::IllegalAddress, fault.to_string())
}

fn wait(stream: u64, addr: u64, value: u64, flags: u32, is_wide: bool) -> Result<()> {
    let process = process::get()?;
    let (condition, at) = (condition(flags)?, place(process, addr, is_wide)?);
    process.submit(&process.stream(stream)?, When::Now, move || {
        let holds = condition.holds(load(&at, is_wide)?, value, is_wide);
        Ok(if holds { Progress::Done } else { Progress::Waiting })
    })
}

fn write(stream: u64, addr: u64, value: u64, flags: u32, is_wide: bool) -> Result<()> {
    let process = process::get()?;
    if flags & !NO_BARRIER != 0 {
        return Err(invalid(format!("flags {flags:#x} of a write")));
    }
    let at = place(process, addr, is_wide)?;
    process.submit(&process.stream(stream)?, When::Now, move || {
        store(&at, value, is_wide).map(|()| Progress::Done)
    })
}

/// One operation of a batch: opcode, address, value, flags. The header's union is larger.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MemOp {
    what: c_int,
    addr: u64,
    value: u64,
    flags: u32,
    alias: u64,
    room: [u64; 1],
}

const _: () = assert!(size_of::<MemOp>() == 48);

fn batch(stream: u64, count: u32, list: In<MemOp>, flags: u32) -> Result<()> {
    if flags != 0 || count > 256 {
        return Err(invalid(format!("{count} operations, flags {flags:#x}")));
    }
    for op in list.list(count as usize)? {
        // CAST: the program set only this half of the union.
        let narrow = u64::from(op.value as u32);
        match op.what {
            1 => wait(stream, op.addr, narrow, op.flags, false)?,
            2 => write(stream, op.addr, narrow, op.flags, false)?,
            4 => wait(stream, op.addr, op.value, op.flags, true)?,
            5 => write(stream, op.addr, op.value, op.flags, true)?,
            // A flush of remote writes, and a barrier: everything is in order anyway.
            3 | 6 => {}
            _ => return Err(invalid(format!("operation {} on memory", op.what))),
        }
    }
    Ok(())
}

calls! { CALLS:
    fn cuStreamWaitValue32(stream: u64, addr: u64, value: u32, flags: u32) {
        wait(stream, addr, value.into(), flags, false)
    }

    fn cuStreamWaitValue32_v2(stream: u64, addr: u64, value: u32, flags: u32) {
        wait(stream, addr, value.into(), flags, false)
    }

    fn cuStreamWaitValue64(stream: u64, addr: u64, value: u64, flags: u32) {
        wait(stream, addr, value, flags, true)
    }

    fn cuStreamWaitValue64_v2(stream: u64, addr: u64, value: u64, flags: u32) {
        wait(stream, addr, value, flags, true)
    }

    fn cuStreamWriteValue32(stream: u64, addr: u64, value: u32, flags: u32) {
        write(stream, addr, value.into(), flags, false)
    }

    fn cuStreamWriteValue32_v2(stream: u64, addr: u64, value: u32, flags: u32) {
        write(stream, addr, value.into(), flags, false)
    }

    fn cuStreamWriteValue64(stream: u64, addr: u64, value: u64, flags: u32) {
        write(stream, addr, value, flags, true)
    }

    fn cuStreamWriteValue64_v2(stream: u64, addr: u64, value: u64, flags: u32) {
        write(stream, addr, value, flags, true)
    }

    fn cuStreamBatchMemOp(stream: u64, count: u32, list: In<MemOp>, flags: u32) {
        batch(stream, count, list, flags)
    }

    fn cuStreamBatchMemOp_v2(stream: u64, count: u32, list: In<MemOp>, flags: u32) {
        batch(stream, count, list, flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_compare_as_the_header_says() {
        let holds = |condition: Condition, there, value| condition.holds(there, value, false);
        assert!(holds(Condition::AtLeast, 5, 5) && holds(Condition::AtLeast, 1, 0xffff_fff0));
        assert!(!holds(Condition::AtLeast, 4, 5));
        assert!(holds(Condition::Equal, 7, 7) && !holds(Condition::Equal, 7, 8));
        assert!(holds(Condition::And, 6, 2) && !holds(Condition::And, 4, 2));
        assert!(holds(Condition::Nor, 0, 1) && !holds(Condition::Nor, 0xffff_fffe, 1));
    }
}

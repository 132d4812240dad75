//! Functions that append commands to a list.

use std::sync::Arc;

use super::device::PATTERN;
use crate::boundary::calls;
use crate::c::In;
use crate::command::{Act, Command};
use crate::list::List;
use crate::process::{self, Process};
use crate::region::{Bounds, End, Region};
use crate::status::{Refusal, Result, Status, enumeration, invalid};

/// The last value of memory advice.
const LAST_ADVICE: u32 = 13;

/// Appends a command that waits for events, and signals one.
fn append(list: u64, signal: u64, count: u32, waits: In<u64>, act: Act) -> Result<()> {
    let process = process::get()?;
    let list = process.list(list)?;
    let waits = process.events(list.context, count, waits)?;
    let signal = match signal {
        0 => None,
        event => Some(process.event_of(list.context, event)?),
    };
    list.append(Command { waits, act, signal })
}

fn not_null(addr: u64) -> Result<()> {
    if addr != 0 {
        return Ok(());
    }
    Err(Refusal::new(Status::InvalidNullPointer, "no address"))
}

/// The list, and one of its events.
fn with_event(list: u64, event: u64) -> Result<(Arc<List>, Arc<crate::event::Event>)> {
    let process: &Process = process::get()?;
    let list = process.list(list)?;
    let event = process.event_of(list.context, event)?;
    Ok((list, event))
}

calls! { CALLS:
    fn zeCommandListAppendBarrier(list: u64, signal: u64, count: u32, waits: In<u64>) {
        append(list, signal, count, waits, Act::Barrier)
    }

    fn zeCommandListAppendMemoryRangesBarrier(
        list: u64,
        ranges: u32,
        sizes: In<usize>,
        starts: In<u64>,
        signal: u64,
        count: u32,
        waits: In<u64>,
    ) {
        sizes.list(ranges as usize)?;
        starts.list(ranges as usize)?;
        append(list, signal, count, waits, Act::Barrier)
    }

    fn zeCommandListAppendMemoryCopy(
        list: u64,
        dst: u64,
        src: u64,
        len: usize,
        signal: u64,
        count: u32,
        waits: In<u64>,
    ) {
        not_null(dst)?;
        not_null(src)?;
        append(list, signal, count, waits, Act::Copy { dst, src, len: len as u64 })
    }

    fn zeCommandListAppendMemoryCopyFromContext(
        list: u64,
        dst: u64,
        context: u64,
        src: u64,
        len: usize,
        signal: u64,
        count: u32,
        waits: In<u64>,
    ) {
        process::get()?.context(context)?;
        not_null(dst)?;
        not_null(src)?;
        append(list, signal, count, waits, Act::Copy { dst, src, len: len as u64 })
    }

    fn zeCommandListAppendMemoryFill(
        list: u64,
        dst: u64,
        pattern: In<u8>,
        pattern_len: usize,
        len: usize,
        signal: u64,
        count: u32,
        waits: In<u64>,
    ) {
        not_null(dst)?;
        if pattern.is_null() {
            return Err(Refusal::new(Status::InvalidNullPointer, "no pattern"));
        }
        if !pattern_len.is_power_of_two() || pattern_len > PATTERN {
            let what = format!("a pattern of {pattern_len} bytes: it must be a power of two up to {PATTERN}");
            return Err(Refusal::new(Status::InvalidSize, what));
        }
        let pattern = pattern.list(pattern_len)?;
        append(list, signal, count, waits, Act::Fill { dst, pattern, len: len as u64 })
    }

    fn zeCommandListAppendMemoryCopyRegion(
        list: u64,
        dst: u64,
        dst_bounds: In<Bounds>,
        dst_pitch: u32,
        dst_slice: u32,
        src: u64,
        src_bounds: In<Bounds>,
        src_pitch: u32,
        src_slice: u32,
        signal: u64,
        count: u32,
        waits: In<u64>,
    ) {
        not_null(dst)?;
        not_null(src)?;
        let dst = End { at: dst, bounds: dst_bounds.get()?, pitch: dst_pitch, slice: dst_slice };
        let src = End { at: src, bounds: src_bounds.get()?, pitch: src_pitch, slice: src_slice };
        append(list, signal, count, waits, Act::Region(Region::new(dst, src)?))
    }

    fn zeCommandListAppendMemoryPrefetch(list: u64, addr: u64, len: usize) {
        let process = process::get()?;
        process.list(list)?;
        not_null(addr)?;
        process.space.pieces(addr, len as u64)?;
        Ok(())
    }

    fn zeCommandListAppendMemAdvise(list: u64, device: u64, addr: u64, len: usize, advice: u32) {
        let process = process::get()?;
        process.list(list)?;
        process.device(device)?;
        not_null(addr)?;
        enumeration(advice, LAST_ADVICE)?;
        process.space.pieces(addr, len as u64)?;
        Ok(())
    }

    fn zeCommandListAppendSignalEvent(list: u64, event: u64) {
        let (list, event) = with_event(list, event)?;
        list.append(Command { waits: Vec::new(), act: Act::Barrier, signal: Some(event) })
    }

    fn zeCommandListAppendWaitOnEvents(list: u64, count: u32, events: In<u64>) {
        if events.is_null() {
            return Err(Refusal::new(Status::InvalidNullPointer, "no events"));
        }
        append(list, 0, count, events, Act::Barrier)
    }

    fn zeCommandListAppendEventReset(list: u64, event: u64) {
        let (list, event) = with_event(list, event)?;
        list.append(Command { waits: Vec::new(), act: Act::Reset(event), signal: None })
    }

    fn zeCommandListAppendWriteGlobalTimestamp(
        list: u64,
        dst: u64,
        signal: u64,
        count: u32,
        waits: In<u64>,
    ) {
        not_null(dst)?;
        append(list, signal, count, waits, Act::Timestamp(dst))
    }

    fn zeCommandListAppendQueryKernelTimestamps(
        list: u64,
        events: u32,
        handles: In<u64>,
        dst: u64,
        offsets: In<usize>,
        signal: u64,
        count: u32,
        waits: In<u64>,
    ) {
        let process = process::get()?;
        not_null(dst)?;
        if handles.is_null() {
            return Err(Refusal::new(Status::InvalidNullPointer, "no events"));
        }
        let events = process.events(process.list(list)?.context, events, handles)?;
        let offsets = if offsets.is_null() {
            None
        } else {
            let offsets = offsets.list(events.len())?;
            Some(offsets.into_iter().map(|offset| offset as u64).collect())
        };
        append(list, signal, count, waits, Act::Times { events, dst, offsets })
    }

    // Runs the commands of closed lists in the order of an immediate list.
    fn zeCommandListImmediateAppendCommandListsExp(
        list: u64,
        lists: u32,
        handles: In<u64>,
        signal: u64,
        count: u32,
        waits: In<u64>,
    ) {
        let process = process::get()?;
        let own = process.list(list)?;
        let queue = own.immediate.as_ref().ok_or_else(|| {
            Refusal::new(Status::InvalidCommandListType, "the list is not an immediate one")
        })?;
        let barrier = |waits, signal| Command { waits, act: Act::Barrier, signal };
        let mut commands = vec![barrier(process.events(own.context, count, waits)?, None)];
        for handle in handles.list(lists as usize)? {
            let list = process.list(handle)?;
            if list.context != own.context {
                return Err(invalid(format!("list {handle:#x} belongs to another context")));
            }
            commands.extend_from_slice(&list.closed()?);
        }
        if signal != 0 {
            commands.push(barrier(Vec::new(), Some(process.event_of(own.context, signal)?)));
        }
        queue.execute(commands.into(), None)
    }
}

//! Events.

use crate::boundary::calls;
use crate::c::Out;
use crate::context;
use crate::event::{DISABLE_TIMING, Event, INTERPROCESS};
use crate::process;
use crate::status::{Refusal, Result, Status, invalid};

/// Blocking synchronisation, no timing, interprocess.
const FLAGS: u32 = 7;

fn record(event: u64, stream: u64) -> Result<()> {
    let process = process::get()?;
    let (event, stream) = (process.event(event)?, process.stream(stream)?);
    if event.context != stream.context {
        return Err(Refusal::new(
            Status::InvalidHandle,
            "event and stream belong to different contexts",
        ));
    }
    process.record(&event, &stream)
}

fn elapsed(milliseconds: Out<f32>, start: u64, end: u64) -> Result<()> {
    milliseconds.check()?;
    let process = process::get()?;
    let time = process.event(end)?.since(&*process.event(start)?)?;
    milliseconds.put(time)
}

calls! { CALLS:
    fn cuEventCreate(out: Out<u64>, flags: u32) {
        out.check()?;
        let process = process::get()?;
        let context = context::current()?;
        let is_shared = flags & INTERPROCESS != 0;
        if flags & !FLAGS != 0 || is_shared && flags & DISABLE_TIMING == 0 {
            return Err(invalid(format!("flags {flags:#x} of an event")));
        }
        let event = Event::new(flags)?;
        let new = process.events.add(|handle| event.at(handle, context.handle));
        out.put(new.handle)
    }

    // Work that waits for the event still continues when the event is reached.
    fn cuEventDestroy_v2(event: u64) {
        let process = process::get()?;
        process.event(event)?;
        process.events.remove(event);
        Ok(())
    }

    fn cuEventRecord(event: u64, stream: u64) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: u64, stream: u64, flags: u32) {
        if flags & !1 != 0 {
            return Err(invalid(format!("flags {flags:#x}")));
        }
        record(event, stream)
    }

    fn cuEventQuery(event: u64) {
        if process::get()?.event(event)?.is_reached() {
            Ok(())
        } else {
            Err(Refusal::new(Status::NotReady, "the event is not reached"))
        }
    }

    fn cuEventSynchronize(event: u64) {
        process::get()?.event(event)?.synchronize();
        Ok(())
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        elapsed(milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) {
        elapsed(milliseconds, start, end)
    }
}

//! Copies and fills.

use std::sync::Arc;

use umd::queue::{Progress, Queue, When};

use crate::boundary::calls;
use crate::c::{In, Out};
use crate::process::{self, Process};
use crate::signal::Signal;
use crate::status::{Refusal, Result, invalid};

/// A copy that waits for signals, and decrements one when it is done.
#[derive(Clone, Copy)]
struct Copy {
    dst: u64,
    src: u64,
    len: usize,
}

fn submit(
    process: &'static Process,
    copy: Copy,
    agents: [u64; 2],
    waits_for: (u32, In<u64>),
    done: u64,
) -> Result<()> {
    let Copy { dst, src, len } = copy;
    if dst == 0 || src == 0 {
        return Err(invalid("a copy from null, or to it"));
    }
    let (count, handles) = waits_for;
    if (count == 0) != handles.is_null() {
        return Err(invalid(
            "signals to wait for: a count without a list, or a list without a count",
        ));
    }
    for agent in agents {
        process.agent(agent)?;
    }
    let signals = handles.list(count as usize)?;
    let signals =
        signals.into_iter().map(|one| process.signal(one)).collect::<Result<Vec<Arc<Signal>>>>()?;
    let done = process.signal(done)?;
    if len == 0 {
        return Ok(());
    }
    let len = len as u64;
    if signals.iter().all(|signal| signal.load() == 0) {
        process.space.copy(dst, src, len)?;
        done.count_down();
        return Ok(());
    }
    // A caller that waits for its own copies does not wait for other callers' copies.
    Arc::new(Queue::<Refusal>::default()).submit(When::Now, move || {
        if signals.iter().any(|signal| signal.load() != 0) {
            return Ok(Progress::Waiting);
        }
        match process.space.copy(dst, src, len) {
            Ok(()) => done.count_down(),
            Err(refusal) => {
                // This tells waiters of the failure.
                done.store(-1);
                return Err(refusal.into());
            }
        }
        Ok(Progress::Done)
    })
}

calls! { CALLS:
    fn hsa_memory_copy(dst: u64, src: u64, len: usize) {
        let process = process::get()?;
        if dst == 0 || src == 0 {
            return Err(invalid("a copy from null, or to it"));
        }
        Ok(process.space.copy(dst, src, len as u64)?)
    }

    fn hsa_amd_memory_async_copy(
        dst: u64,
        dst_agent: u64,
        src: u64,
        src_agent: u64,
        len: usize,
        count: u32,
        signals: In<u64>,
        done: u64,
    ) {
        let copy = Copy { dst, src, len };
        submit(process::get()?, copy, [dst_agent, src_agent], (count, signals), done)
    }

    // All engines are the same.
    fn hsa_amd_memory_async_copy_on_engine(
        dst: u64,
        dst_agent: u64,
        src: u64,
        src_agent: u64,
        len: usize,
        count: u32,
        signals: In<u64>,
        done: u64,
        _engine: u32,
        _is_forced: bool,
    ) {
        let copy = Copy { dst, src, len };
        submit(process::get()?, copy, [dst_agent, src_agent], (count, signals), done)
    }

    fn hsa_amd_memory_copy_engine_status(dst_agent: u64, src_agent: u64, engines: Out<u32>) {
        let process = process::get()?;
        for agent in [dst_agent, src_agent] {
            process.agent(agent)?;
        }
        engines.put(1)
    }

    fn hsa_amd_memory_fill(dst: u64, value: u32, count: usize) {
        let process = process::get()?;
        if dst == 0 || !dst.is_multiple_of(4) {
            return Err(invalid(format!("{dst:#x} is not an address of 32-bit words")));
        }
        let len = (count as u64).checked_mul(4);
        let len = len.ok_or_else(|| invalid("more words than there are addresses"))?;
        Ok(process.space.fill(dst, &value.to_ne_bytes(), len)?)
    }
}

//! The other ends of the bare measurements.

use std::fs::OpenOptions;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{PTracer, Pid, set_ptracer};
use umem::{Foreign, HostBuf};

use super::{hear, say};
use crate::Outcome;
use crate::bare::process_vm_writev;
use crate::benches::latency::{CELLS, WARM_UP, wait_for};

/// Memory that the parent writes. Reports its address.
pub(super) fn memory(length: usize) -> Outcome<()> {
    let buffer = HostBuf::anonymous(length)?;
    buffer.fill(0, 1, length)?;
    say(&buffer.as_ptr().addr().to_string())?;
    while hear()?.is_some() {}
    Ok(())
}

/// Echoes in one cache line what appears in the other.
pub(super) fn cells(path: &str, rounds: u64) -> Outcome<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let buffer = HostBuf::received(std::os::fd::OwnedFd::from(file), 4096)?;
    let [ping, pong] = cell_pair(buffer.foreign())?;
    say("")?;
    for round in 1..=rounds + WARM_UP {
        wait_for(ping, round)?;
        pong.store(round, Ordering::Release);
    }
    while hear()?.is_some() {}
    Ok(())
}

/// The two words that two processes bounce, far enough apart that no prefetcher fetches both.
pub(crate) fn cell_pair(memory: Foreign<'_>) -> Outcome<[&AtomicU64; 2]> {
    Ok([memory.atomic_u64(CELLS[0])?, memory.atomic_u64(CELLS[1])?])
}

/// Echoes by `process_vm_writev` what appears in its memory by the same call.
pub(super) fn pages() -> Outcome<()> {
    // Where Yama restricts ptrace, a parent may reach its child, but not the other way round; this
    // permits only the parent. Elsewhere the call does not exist and is not needed.
    let _ = set_ptracer(PTracer::Any);
    let buffer = HostBuf::anonymous(4096)?;
    let word = buffer.foreign().atomic_u64(CELLS[0])?;
    let from = HostBuf::anonymous(4096)?;
    say(&(buffer.as_ptr().addr() + CELLS[0]).to_string())?;
    while let Some(words) = hear()? {
        let [pid, there, rounds] = words.as_slice() else {
            return Err("pid, address, rounds".into());
        };
        let pid = Pid::from_raw(pid.parse()?).ok_or("no such pid")?;
        let (there, rounds): (u64, u64) = (there.parse()?, rounds.parse()?);
        say("")?;
        for round in 1..=rounds + WARM_UP {
            wait_for(word, round)?;
            from.store_u64(0, round, Ordering::Relaxed)?;
            process_vm_writev(pid, &from, 8, there)?;
        }
        say("")?;
    }
    Ok(())
}

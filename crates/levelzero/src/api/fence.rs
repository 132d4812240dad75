//! Fences.

use std::sync::Arc;
use std::time::Instant;

use crate::boundary::calls;
use crate::c::{Head, In, Out};
use crate::event::end_of;
use crate::fence::Fence;
use crate::process;
use crate::status::flags;

/// The fence is signalled from the start.
const SIGNALLED: u32 = 1;

#[derive(Clone, Copy)]
#[repr(C)]
struct FenceDesc {
    head: Head,
    flags: u32,
}

calls! { CALLS:
    fn zeFenceCreate(queue: u64, desc: In<FenceDesc>, out: Out<u64>) {
        let process = process::get()?;
        let queue = process.queue(queue)?;
        let desc = desc.get()?;
        out.check()?;
        flags(desc.flags, SIGNALLED)?;
        let is_signalled = desc.flags & SIGNALLED != 0;
        let new = |handle| Fence::new(handle, Arc::clone(&queue), is_signalled);
        out.put(process.fences.add(new).handle)
    }

    fn zeFenceDestroy(fence: u64) {
        let process = process::get()?;
        process.fence(fence)?;
        process.fences.remove(fence);
        Ok(())
    }

    fn zeFenceHostSynchronize(fence: u64, timeout: u64) {
        process::get()?.fence(fence)?.wait(end_of(timeout))
    }

    fn zeFenceQueryStatus(fence: u64) {
        process::get()?.fence(fence)?.wait(Some(Instant::now()))
    }

    fn zeFenceReset(fence: u64) {
        process::get()?.fence(fence)?.set(false);
        Ok(())
    }
}

//! Fences of which one side pays for both (`membarrier(2)`).
//!
//! Two threads that each store a word and then load the other's word both need a fence in between,
//! or both loads may miss both stores. On the data path that fence costs more than all else, as it
//! waits until a peer has let go of each line that was written before. Where one side seldom comes
//! to this point, the other leaves its fence to it: the data path has a `light` fence, which only
//! the compiler sees, and the rare side has a heavy one (`here`, `everywhere`), with which the
//! kernel makes every thread concerned execute a fence, wherever it is.
//!
//! What the data path stored before its light fence is then seen after the heavy one, or else what
//! was stored before the heavy fence is seen after the light one. A thread may rely on that while
//! `is_ready`: its process has asked the kernel to be one of those concerned.

use core::sync::atomic::{AtomicU8, Ordering};
#[cfg(not(loom))]
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

use crate::spawn;

/// Nobody asked yet.
const UNASKED: u8 = 0;
/// A thread is asking.
const ASKING: u8 = 1;
/// This process takes part in heavy fences.
const READY: u8 = 2;
/// The kernel has none, or a sandbox forbids them.
const REFUSED: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNASKED);

/// Longer than any processor keeps a store to itself.
#[cfg(not(loom))]
const SETTLED: Duration = Duration::from_millis(10);

/// Asks the kernel to let this process take part in heavy fences, from a thread of its own, as a
/// process with several threads is answered after tens of milliseconds only. Until then, and if the
/// answer is no, all fences are full ones.
pub fn prepare() {
    // ORDERING: the exchange alone settles which thread asks.
    let first = STATE.compare_exchange(UNASKED, ASKING, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_ok() && spawn("peerdma-fence", ask).is_err() {
        STATE.store(REFUSED, Ordering::Relaxed);
    }
}

fn ask() {
    let answer = membarrier(MembarrierCommand::RegisterPrivateExpedited)
        .and_then(|()| membarrier(MembarrierCommand::RegisterGlobalExpedited));
    if let Err(error) = answer {
        tracing::info!(target: "peerdma::progress", "membarrier: {error}; every fence is a full one{}",
            sandbox::hint(error.raw_os_error()));
    }
    STATE.store(if answer.is_ok() { READY } else { REFUSED }, Ordering::Release);
}

/// In the child of a fork: the thread that asked did not come along, or its answer may be younger
/// than what the kernel copied. A process that opens a device there asks anew.
pub fn forget_in_child() {
    if STATE.load(Ordering::Relaxed) != REFUSED {
        STATE.store(UNASKED, Ordering::Relaxed);
    }
}

/// Whether this process takes part in heavy fences, so that its threads may have light ones.
#[inline]
pub fn is_ready() -> bool {
    cfg!(loom) || STATE.load(Ordering::Acquire) == READY
}

/// The fence of the data path: between a store and a load after it that a heavy fence is to keep in
/// order.
#[inline]
pub fn light() {
    #[cfg(not(loom))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    // A model knows no fence that others pay for.
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// A fence in every thread of this process, the calling one included.
pub fn here() {
    heavy(MembarrierCommand::PrivateExpedited);
}

/// A fence in every thread of every process that takes part, and in the calling one.
pub fn everywhere() {
    heavy(MembarrierCommand::GlobalExpedited);
}

/// Waits until the kernel is done with what it had begun, in every processor: what has been looked
/// up without a lock by then is used no more. (A grace period of RCU, which is what
/// `MEMBARRIER_CMD_GLOBAL` waits for: 8 to 30 ms.)
pub fn grace() {
    #[cfg(not(loom))]
    if membarrier(MembarrierCommand::Global).is_err() {
        std::thread::sleep(SETTLED);
    }
}

#[cfg_attr(loom, expect(unused_variables, reason = "a model has threads of its own"))]
fn heavy(command: MembarrierCommand) {
    #[cfg(not(loom))]
    if membarrier(command).is_err() {
        // A sandbox that came later forbids it. Time does the same, and from now on nobody relies
        // on it.
        STATE.store(REFUSED, Ordering::Relaxed);
        std::thread::sleep(SETTLED);
        core::sync::atomic::fence(Ordering::SeqCst);
    }
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_asked_is_answered() {
        prepare();
        let began = std::time::Instant::now();
        while STATE.load(Ordering::Relaxed) == ASKING {
            assert!(began.elapsed() < Duration::from_secs(60), "no answer");
            std::thread::yield_now();
        }
        let has_them =
            rustix::thread::membarrier_query().contains_command(MembarrierCommand::GlobalExpedited);
        assert_eq!(is_ready(), has_them);
        here();
        everywhere();
    }
}

//! Waiting for what causes no wake-up: a value in memory that another thread, another process or a
//! NIC writes.

use std::time::{Duration, Instant};

/// How long a wait spins, and how long it then sleeps before it checks again.
const SPIN: Duration = Duration::from_micros(20);
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

/// The devices' clock: nanoseconds.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// When a wait of this many nanoseconds ends; never for the largest number, and for those that no
/// clock reaches.
pub fn end_of(timeout: u64) -> Option<Instant> {
    if timeout == u64::MAX {
        return None;
    }
    Instant::now().checked_add(Duration::from_nanos(timeout))
}

/// Waits until `is_done`, or `end`. Returns whether it is done.
pub fn wait_until(mut is_done: impl FnMut() -> bool, end: Option<Instant>) -> bool {
    let begun = Instant::now();
    let mut pause = SHORTEST;
    loop {
        if is_done() {
            return true;
        }
        let now = Instant::now();
        let left = end.map(|end| end.saturating_duration_since(now));
        if left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        if now.duration_since(begun) < SPIN {
            std::hint::spin_loop();
            continue;
        }
        std::thread::sleep(left.map_or(pause, |left| left.min(pause)));
        pause = (pause * 2).min(LONGEST);
    }
}

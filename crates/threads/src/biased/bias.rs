//! Who may do without the mutex, and whether it is inside.
//!
//! ```text
//!   bias owner                                  anybody else, with the mutex
//!   inside = 1                                  owner = none
//!   light fence                                 heavy fence
//!   am I the owner? in; else out again          wait while inside
//! ```
//!
//! One of the two sees the other ([`barrier`]).
//!
//! Only one thread can ever be the bias owner of a lock. Were there a second, the first could have
//! stopped long ago right before its `inside = 1`, and would undo that of the second when it goes
//! on.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::barrier;

/// So many times in a row, with nobody else in between, a thread takes the mutex before it is the
/// bias owner.
#[cfg(not(loom))]
pub(super) const HABIT: u32 = 1024;
/// The same where others come so seldom that what their coming costs does not matter...
#[cfg(not(loom))]
const SOON: u32 = 64;
/// ...which is at most once in so many microseconds.
#[cfg(not(loom))]
const SELDOM: u64 = 1000;
/// How often somebody looks whether the bias owner left before sleeping on it.
#[cfg(not(loom))]
const LOOKS: u32 = 100;
/// No thread.
const NONE: usize = 0;

/// What a lock knows of its bias owner. Threads are told apart by numbers other than 0, which a
/// later thread may have again.
#[derive(Debug)]
// In a model the habit is 0: the first time is enough.
#[cfg_attr(loom, derive(Default))]
pub(super) struct Bias {
    /// The bias owner, while it is one. Written with the mutex held.
    owner: AtomicUsize,
    /// Whether the bias owner is inside, or tries to. Written by that thread only.
    inside: AtomicU32,
    /// The thread that may become the bias owner, once there was one. Written once, with the mutex
    /// held.
    chosen: AtomicUsize,
    /// Who unlocked the mutex last, and how often in a row. Used with the mutex held.
    last: AtomicUsize,
    in_a_row: AtomicU32,
    /// How often it takes, and when the bias was revoked last, in microseconds. Used with the mutex
    /// held.
    habit: AtomicU32,
    #[cfg(not(loom))]
    ended: AtomicU64,
}

impl Bias {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Self {
            owner: AtomicUsize::new(NONE),
            inside: AtomicU32::new(0),
            chosen: AtomicUsize::new(NONE),
            last: AtomicUsize::new(NONE),
            in_a_row: AtomicU32::new(0),
            habit: AtomicU32::new(HABIT),
            ended: AtomicU64::new(0),
        }
    }

    /// Lets thread `me` in if it is the bias owner. If so, the lock is held until
    /// [`leave`](Self::leave).
    #[inline]
    pub(super) fn enter(&self, me: usize) -> bool {
        // A thread that is inside already must wait for itself, as with any mutex.
        if self.owner.load(Ordering::Relaxed) != me || self.inside.load(Ordering::Relaxed) != 0 {
            return false;
        }
        self.inside.store(1, Ordering::Relaxed);
        // ORDERING: the store above before the load below; pairs with the heavy fence in
        // `take_over`. What the holders of the mutex did before the bias was given is seen, as it
        // was given to this thread by itself, with the mutex held.
        barrier::light();
        if self.owner.load(Ordering::Relaxed) == me {
            return true;
        }
        self.step_out();
        false
    }

    /// If thread `me`, which holds the lock, holds it by [`enter`](Self::enter), it leaves, and the
    /// lock is free.
    #[inline]
    pub(super) fn leave(&self, me: usize) -> bool {
        // Another thread's `inside` is never this one's.
        if self.chosen.load(Ordering::Relaxed) != me || self.inside.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.step_out();
        true
    }

    /// Whether thread `me` is inside as the bias owner, or tries to be.
    #[cfg(not(loom))]
    pub(super) fn is_inside(&self, me: usize) -> bool {
        self.chosen.load(Ordering::Relaxed) == me && self.inside.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn step_out(&self) {
        // ORDERING: Release pairs with the Acquire in `take_over`: what the bias owner did is over.
        self.inside.store(0, Ordering::Release);
        // ORDERING: the store above before the load below; pairs with the heavy fence in
        // `take_over`. The thread that revoked the bias before may sleep.
        barrier::light();
        if self.owner.load(Ordering::Relaxed) == NONE {
            self.wake();
        }
    }

    /// With the mutex held: revokes the bias, and waits until the bias owner is not inside. False
    /// if it still is at the deadline; the bias is revoked all the same.
    pub(super) fn take_over(&self, me: usize, deadline: Option<Instant>) -> bool {
        if self.owner.load(Ordering::Relaxed) != NONE {
            self.owner.store(NONE, Ordering::Relaxed);
            // ORDERING: the store above before the loads of `inside`; pairs with the light fences.
            barrier::here();
            self.consider_habit();
        }
        if self.last.load(Ordering::Relaxed) != me {
            self.last.store(me, Ordering::Relaxed);
            self.in_a_row.store(0, Ordering::Relaxed);
        }
        self.wait(deadline)
    }

    /// In a process that has no thread but `me`, which holds the lock: nobody else tries to enter
    /// any more.
    #[cfg(not(loom))]
    pub(super) fn forget_others(&self, me: usize) {
        if self.chosen.load(Ordering::Relaxed) != me {
            self.inside.store(0, Ordering::Relaxed);
        }
    }

    /// With the mutex held, right before it is unlocked: gives the bias to a thread that does
    /// little else.
    #[inline]
    pub(super) fn consider(&self, me: usize) {
        let in_a_row = self.in_a_row.load(Ordering::Relaxed) + 1;
        self.in_a_row.store(in_a_row, Ordering::Relaxed);
        if in_a_row >= self.habit.load(Ordering::Relaxed) {
            self.bias_to(me);
        }
    }

    #[cold]
    fn bias_to(&self, me: usize) {
        self.in_a_row.store(0, Ordering::Relaxed);
        let chosen = self.chosen.load(Ordering::Relaxed);
        if barrier::is_ready() && (chosen == NONE || chosen == me) {
            self.chosen.store(me, Ordering::Relaxed);
            self.owner.store(me, Ordering::Relaxed);
        }
    }

    /// The bias was revoked: says how soon it comes back.
    #[cfg(not(loom))]
    fn consider_habit(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
        let is_seldom = now - self.ended.load(Ordering::Relaxed) >= SELDOM;
        self.ended.store(now, Ordering::Relaxed);
        self.habit.store(if is_seldom { SOON } else { HABIT }, Ordering::Relaxed);
    }

    #[cfg(loom)]
    fn consider_habit(&self) {
        // A model has no time.
    }

    #[cfg(not(loom))]
    fn wait(&self, deadline: Option<Instant>) -> bool {
        use rustix::thread::futex;
        use rustix::time::Timespec;

        let mut looks = 0;
        // ORDERING: Acquire pairs with the Release in `step_out`.
        while self.inside.load(Ordering::Acquire) != 0 {
            let mut patience = None;
            if let Some(deadline) = deadline {
                let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                    return false;
                };
                patience = Some(Timespec::try_from(left).unwrap_or_default());
            }
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
            } else {
                // Whatever ends it, `inside` is looked at again.
                let _ = futex::wait(&self.inside, futex::Flags::PRIVATE, 1, patience.as_ref());
            }
        }
        true
    }

    #[cfg(loom)]
    fn wait(&self, _: Option<Instant>) -> bool {
        while self.inside.load(Ordering::Acquire) != 0 {
            loom::thread::yield_now();
        }
        true
    }

    #[cold]
    fn wake(&self) {
        // The only one who can sleep there holds the mutex.
        #[cfg(not(loom))]
        let _ = rustix::thread::futex::wake(&self.inside, rustix::thread::futex::Flags::PRIVATE, 1);
    }
}

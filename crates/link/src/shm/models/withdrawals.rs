//! Loom models: an exporter that revokes a buffer against a program that deregisters its region,
//! while a peer copies into it.
//!
//! A peer's copy passes two locks: the guard slot of its ring, with which the owner withdraws the
//! region, and the gate of the buffer, with which the exporter withdraws the memory. Neither knows
//! of the other, and either may come first. The gate's protocol is in a lower crate; this model
//! includes its file.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use crate::shm::guard;
use crate::shm::layout::SLOT;
use crate::sync::{Ordering, Words};

#[path = "../../../../dmabuf/src/gate/protocol.rs"]
#[allow(dead_code, reason = "the models need a part of it")]
mod gate;

/// What the peer and the owner of the region share, and the memory.
struct Shared {
    /// The key in the table.
    entry: AtomicU64,
    slot: AtomicU64,
    state: AtomicU64,
    inside: AtomicU64,
    /// The buffer's pages, which the exporter may give to another user. Loom reports any unordered
    /// access.
    pages: UnsafeCell<u64>,
    /// What the peer looks up of the region, which the owner may change once the region is gone.
    region: UnsafeCell<u64>,
}

impl Words for Shared {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        assert_eq!(at, SLOT);
        self.slot.load(order)
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        assert_eq!(at, SLOT);
        self.slot.store(value, order);
    }

    fn swap(&self, _at: usize, _value: u64) -> u64 {
        unreachable!("a slot is only stored to and loaded");
    }

    fn update(&self, _at: usize, _f: impl Fn(u64) -> u64) {
        unreachable!("a slot is only stored to and loaded");
    }
}

impl gate::Words for Shared {
    fn load(&self, index: usize, order: Ordering) -> u64 {
        self.gate_word(index).load(order)
    }

    fn store(&self, index: usize, value: u64, order: Ordering) {
        self.gate_word(index).store(value, order);
    }

    fn add(&self, index: usize, order: Ordering) {
        self.gate_word(index).fetch_add(1, order);
    }

    fn sub(&self, index: usize, order: Ordering) {
        self.gate_word(index).fetch_sub(1, order);
    }
}

const KEY: u32 = 7;
/// The contents of a revoked buffer's pages: the bytes of another user.
const ELSEWHERE: u64 = u64::MAX;

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            entry: AtomicU64::new(u64::from(KEY)),
            slot: AtomicU64::new(0),
            state: AtomicU64::new(gate::FIRST),
            inside: AtomicU64::new(0),
            pages: UnsafeCell::new(0),
            region: UnsafeCell::new(gate::FIRST),
        })
    }

    fn gate_word(&self, index: usize) -> &AtomicU64 {
        if index == 0 { &self.state } else { &self.inside }
    }

    /// A peer's WRITE: whether it happened.
    fn copy(&self, number: u32) -> bool {
        guard::hold(self, KEY, number);
        let mut is_done = false;
        if self.entry.load(Ordering::Relaxed) == u64::from(KEY) {
            // SAFETY: what this model proves; loom checks it.
            let epoch = self.region.with(|region| unsafe { *region });
            if gate::enter(self, 0, epoch).is_ok() {
                // SAFETY: as above.
                self.pages.with_mut(|pages| unsafe { *pages = u64::from(number) });
                gate::leave(self, 0);
                is_done = true;
            }
        }
        guard::free(self);
        is_done
    }

    /// The exporter withdraws the memory for good.
    fn revoke(&self) {
        gate::shut(self, gate::REVOKED);
        while !gate::is_idle(self, 0) {
            thread::yield_now();
        }
        // SAFETY: what this model proves; loom checks it.
        self.pages.with_mut(|pages| unsafe { *pages = ELSEWHERE });
    }

    /// The owner deregisters the region.
    fn dereg(&self) {
        self.entry.store(0, Ordering::Relaxed);
        let held = guard::look(self);
        if held.is_for(KEY) {
            while guard::look(self) == held {
                thread::yield_now();
            }
        }
        // SAFETY: what this model proves; loom checks it.
        self.region.with_mut(|region| unsafe { *region = 0 });
    }
}

/// In whatever order they come, and wherever the copy is: the exporter's pages are untouched once
/// it has waited, the region's words once the owner has, and both terminate.
#[test]
fn a_revocation_against_a_deregistration() {
    let mut model = loom::model::Builder::new();
    // Three threads at four words have too many interleavings for all of them: only those with two
    // preemptions are explored.
    model.preemption_bound = Some(2);
    // Two threads that wait for the third take turns.
    model.max_branches = 20_000;
    model.check(|| {
        let shared = Shared::new();
        let peer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let first = shared.copy(1);
                let second = shared.copy(2);
                assert!(first || !second, "what was taken away does not come back");
            })
        };
        let owner = {
            let shared = shared.clone();
            thread::spawn(move || shared.dereg())
        };
        shared.revoke();
        peer.join().expect("no assertion fails");
        owner.join().expect("no assertion fails");
        // SAFETY: the other threads have ended.
        assert_eq!(
            shared.pages.with(|pages| unsafe { *pages }),
            ELSEWHERE,
            "written after the revocation"
        );
        assert!(!shared.copy(3), "nothing is left to write to");
    });
}

/// A revocation leaves the region's entry in place: a later peer is refused until the entry goes
/// too.
#[test]
fn a_revoked_region_is_there_until_it_is_deregistered() {
    loom::model(|| {
        let shared = Shared::new();
        let peer = {
            let shared = shared.clone();
            thread::spawn(move || shared.copy(1))
        };
        shared.revoke();
        shared.dereg();
        peer.join().expect("no assertion fails");
        // SAFETY: the other thread has ended.
        assert_eq!(shared.pages.with(|pages| unsafe { *pages }), ELSEWHERE);
        assert!(!shared.copy(2));
    });
}

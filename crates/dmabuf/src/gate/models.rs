//! Loom models: every interleaving, and every value a load may return, of enter against close.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p peerdma-dmabuf --lib --release models`

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::protocol::{FIRST, Ordering, REVOKED, Words, enter, is_idle, leave, open, shut};

/// The words of a gate with two slots, and a buffer of one word, accessed without any ordering of
/// its own: a load may return any value that nothing else rules out.
struct Shared {
    state: AtomicU64,
    counts: [AtomicU64; 2],
    buffer: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU64::new(FIRST),
            counts: [AtomicU64::new(0), AtomicU64::new(0)],
            buffer: AtomicU64::new(FIRST),
        })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        match index / 8 {
            0 => &self.state,
            slot => &self.counts[slot - 1],
        }
    }

    fn wait(&self) {
        for slot in 0..2 {
            while !is_idle(self, slot) {
                thread::yield_now();
            }
        }
    }
}

impl Words for Shared {
    fn load(&self, index: usize, order: Ordering) -> u64 {
        self.word(index).load(order)
    }

    fn store(&self, index: usize, value: u64, order: Ordering) {
        self.word(index).store(value, order);
    }

    fn add(&self, index: usize, order: Ordering) {
        self.word(index).fetch_add(1, order);
    }

    fn sub(&self, index: usize, order: Ordering) {
        self.word(index).fetch_sub(1, order);
    }
}

/// An access sees the buffer of its epoch until it leaves, whenever the mover comes.
fn access(shared: &Shared, slot: usize, epoch: u64) -> bool {
    if enter(shared, slot, epoch).is_err() {
        return false;
    }
    assert_eq!(shared.buffer.load(Ordering::Relaxed), epoch, "the buffer of this epoch");
    leave(shared, slot);
    true
}

#[test]
fn a_move_against_two_processes() {
    loom::model(|| {
        let shared = Shared::new();
        let accessors: Vec<_> = (0..2)
            .map(|slot| {
                let shared = shared.clone();
                thread::spawn(move || access(&shared, slot, FIRST))
            })
            .collect();
        shut(&*shared, FIRST + 1);
        shared.wait();
        shared.buffer.store(FIRST + 2, Ordering::Relaxed);
        open(&*shared, FIRST + 2);
        for accessor in accessors {
            accessor.join().expect("no assertion fails");
        }
        assert!(!access(&shared, 0, FIRST), "the old epoch is over");
        assert!(access(&shared, 1, FIRST + 2), "the new one is open");
    });
}

/// Three threads at one counter have too many interleavings to check all of them; this checks those
/// with at most two preemptions.
#[test]
fn a_move_against_two_threads_of_one_process() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let shared = Shared::new();
        let accessors: Vec<_> = [FIRST, FIRST + 2]
            .map(|epoch| {
                let shared = shared.clone();
                thread::spawn(move || access(&shared, 0, epoch))
            })
            .into();
        shut(&*shared, FIRST + 1);
        shared.wait();
        shared.buffer.store(FIRST + 2, Ordering::Relaxed);
        open(&*shared, FIRST + 2);
        for accessor in accessors {
            accessor.join().expect("no assertion fails");
        }
    });
}

#[test]
fn a_revocation_is_the_end() {
    loom::model(|| {
        let shared = Shared::new();
        let accessor = {
            let shared = shared.clone();
            thread::spawn(move || {
                let first = access(&shared, 0, FIRST);
                let second = access(&shared, 0, FIRST);
                assert!(first || !second, "what is revoked does not come back");
            })
        };
        shut(&*shared, REVOKED);
        shared.wait();
        shared.buffer.store(0, Ordering::Relaxed);
        accessor.join().expect("no assertion fails");
        assert!(!access(&shared, 0, REVOKED));
    });
}

//! Loom models: every interleaving, and every value a load may return, of the protocols of shared
//! memory.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p peerdma-link --lib --release models`
#![allow(unsafe_code, reason = "loom's cells, which check that no access is in conflict")]

mod withdrawals;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::bell::{Watcher, fall_asleep, promise, wake_up};
use super::cursor::{NoRoom, Rx, Tx};
use super::guard;
use super::layout::{DATA, HEADER, LINE, PROMISE, SLEEP, SLOT};
use crate::sync::{Ordering, Words};

/// Three control words and a ring of four lines.
struct Memory {
    control: [AtomicU64; 3],
    ring: Vec<Line>,
}

/// A word that is a header, or payload inside a long record; and one that is only ever payload,
/// for which loom reports any access that is not ordered.
#[derive(Default)]
struct Line {
    word: AtomicU64,
    payload: UnsafeCell<u64>,
}

const CAPACITY: usize = 4 * LINE;

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            control: Default::default(),
            ring: (0..CAPACITY / LINE).map(|_| Line::default()).collect(),
        })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        match at.checked_sub(DATA) {
            None => &self.control[if at == PROMISE { 2 } else { at / 128 }],
            Some(at) => &self.ring[at / LINE].word,
        }
    }

    fn payload(&self, at: usize) -> &UnsafeCell<u64> {
        &self.ring[(at - DATA) / LINE].payload
    }
}

impl Words for Memory {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.word(at).store(value, order);
    }

    fn swap(&self, at: usize, value: u64) -> u64 {
        self.word(at).swap(value, Ordering::AcqRel)
    }

    fn update(&self, at: usize, f: impl Fn(u64) -> u64) {
        let word = self.word(at);
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |v| Some(f(v)));
    }
}

/// Pushes `value` as the payload word of a record of `len` bytes.
fn push(tx: &mut Tx, memory: &Memory, len: usize, value: u64) -> Result<(), NoRoom> {
    let slot = tx.reserve(memory, len)?;
    // SAFETY: what this model proves; loom checks it.
    memory.payload(slot.payload).with_mut(|p| unsafe { *p = value });
    if len > LINE - HEADER {
        // A payload that is no valid header.
        memory.store(slot.payload + LINE - HEADER, value, Ordering::Relaxed);
    }
    tx.publish(memory, slot);
    Ok(())
}

/// Pops one record, and returns whether the producer must be woken.
fn pop(rx: &mut Rx, memory: &Memory) -> (Option<u64>, bool) {
    let Some(record) = rx.next(memory).expect("an honest producer") else {
        return (None, rx.release(memory));
    };
    // SAFETY: what this model proves; loom checks it.
    let value = memory.payload(record.payload).with(|p| unsafe { *p });
    (Some(value), rx.consume(memory, record))
}

fn full(result: &Result<(), NoRoom>) -> bool {
    match result {
        Ok(()) => false,
        Err(NoRoom::Full) => true,
        Err(e) => panic!("an honest consumer: {e:?}"),
    }
}

/// The consumer pops what was pushed, in order, over the wrap of the ring: it never sees payload of
/// the previous lap, nor half of a record.
#[test]
fn publication() {
    loom::model(|| {
        let memory = Memory::new();
        // Almost a lap of history, so that the wrap and its gap are part of the race, and old
        // payload is where headers will be.
        let (mut tx, mut rx) = (Tx::new(CAPACITY), Rx::new(CAPACITY));
        for (len, value) in [(64, 1), (8, 2)] {
            push(&mut tx, &memory, len, value).expect("room for both");
            assert_eq!(pop(&mut rx, &memory).0, Some(value));
        }
        let producer = {
            let memory = memory.clone();
            thread::spawn(move || {
                // Two lines: does not fit before the end, and leaves a gap. The second does not
                // fit before the first is read.
                push(&mut tx, &memory, 64, 10).expect("room for two lines and a gap");
                !full(&push(&mut tx, &memory, 8, 11))
            })
        };
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.extend(pop(&mut rx, &memory).0);
        }
        let pushed_second = producer.join().expect("no panic");
        while let (Some(value), _) = pop(&mut rx, &memory) {
            seen.push(value);
        }
        assert_eq!(seen, if pushed_second { vec![10, 11] } else { vec![10] });
    });
}

/// Nothing is overwritten while it is read.
#[test]
fn freeing() {
    loom::model(|| {
        let memory = Memory::new();
        let (mut tx, mut rx) = (Tx::new(CAPACITY), Rx::new(CAPACITY));
        for value in 0..3 {
            push(&mut tx, &memory, 8, value).expect("room for three");
        }
        let producer = {
            let memory = memory.clone();
            thread::spawn(move || {
                // The fifth record lies where the first was.
                (3..5).take_while(|value| !full(&push(&mut tx, &memory, 8, *value))).count()
            })
        };
        for value in 0..2 {
            assert_eq!(pop(&mut rx, &memory).0, Some(value));
        }
        let pushed = producer.join().expect("no panic") as u64;
        for value in 2..3 + pushed {
            assert_eq!(pop(&mut rx, &memory).0, Some(value));
        }
        assert_eq!(pop(&mut rx, &memory).0, None);
    });
}

/// A consumer that polls once more after saying that it sleeps never sleeps on a record, unless
/// the producer rings.
#[test]
fn sleeping_consumer() {
    sleep_beside_a_push(false);
}

/// The same for one that promised a heavy fence before it sleeps.
#[test]
fn promising_consumer() {
    sleep_beside_a_push(true);
}

fn sleep_beside_a_push(promised: bool) {
    loom::model(move || {
        let memory = Memory::new();
        let page = Memory::new();
        if promised {
            promise(&*page);
        }
        let producer = {
            let (memory, page) = (memory.clone(), page.clone());
            thread::spawn(move || {
                let mut tx = Tx::new(CAPACITY);
                push(&mut tx, &memory, 8, 1).expect("an empty ring");
                Watcher::default().must_ring(&*page)
            })
        };
        let mut rx = Rx::new(CAPACITY);
        fall_asleep(&*page);
        let seen = pop(&mut rx, &memory).0.is_some();
        if seen {
            wake_up(&*page);
        }
        let rung = producer.join().expect("no panic");
        assert!(seen || rung, "the consumer sleeps beside a record");
        assert_eq!(page.load(SLEEP, Ordering::Relaxed) % 2, u64::from(!seen));
    });
}

/// A waker rings once for each sleep.
#[test]
fn second_sleep() {
    loom::model(|| {
        let memory = Memory::new();
        let page = Memory::new();
        let bells = Arc::new(AtomicU64::new(0));
        let producer = {
            let (memory, page, bells) = (memory.clone(), page.clone(), bells.clone());
            thread::spawn(move || {
                let (mut tx, mut watcher) = (Tx::new(CAPACITY), Watcher::default());
                for value in 0..2 {
                    push(&mut tx, &memory, 8, value).expect("room for two");
                    if watcher.must_ring(&*page) {
                        bells.fetch_add(1, Ordering::Release);
                    }
                }
            })
        };
        let mut rx = Rx::new(CAPACITY);
        let mut seen = 0;
        // First sleep: whether woken or not, it drains its bell and polls.
        fall_asleep(&*page);
        seen += u32::from(pop(&mut rx, &memory).0.is_some());
        bells.swap(0, Ordering::Acquire);
        // Second sleep, without having announced that it is awake.
        fall_asleep(&*page);
        while pop(&mut rx, &memory).0.is_some() {
            seen += 1;
        }
        producer.join().expect("no panic");
        let rung = bells.load(Ordering::Acquire);
        assert!(seen == 2 || rung > 0, "slept with {seen} of 2 records and no bell");
    });
}

/// A producer that found the ring full, asked to be woken, announced that it sleeps and tried once
/// more, never sleeps while there is free space, unless the consumer rings.
#[test]
fn producer_waits_for_space() {
    wait_for_space(false);
}

/// The same for one that promised a heavy fence before it sleeps, and asked before it knew that it
/// would sleep.
#[test]
fn promising_producer_waits_for_space() {
    wait_for_space(true);
}

fn wait_for_space(promised: bool) {
    let mut model = loom::model::Builder::new();
    // All interleavings of the two long sequences take minutes.
    model.preemption_bound = promised.then_some(3);
    model.check(move || {
        let memory = Memory::new();
        // The producer's page: here it is the producer that sleeps.
        let page = Memory::new();
        if promised {
            promise(&*page);
        }
        let mut tx = Tx::new(CAPACITY);
        for value in 0..3 {
            push(&mut tx, &memory, 8, value).expect("room for three");
        }
        let consumer = {
            let (memory, page) = (memory.clone(), page.clone());
            thread::spawn(move || {
                let (mut rx, mut watcher) = (Rx::new(CAPACITY), Watcher::default());
                let mut rung = false;
                // Each record is an eighth of the ring or more, so that each pop frees.
                let (first, wake) = pop(&mut rx, &memory);
                assert_eq!(first, Some(0));
                if wake {
                    rung |= watcher.must_ring(&*page);
                }
                // The consumer falls asleep too: its fence, and one more poll.
                let own_page = Memory::new();
                fall_asleep(&*own_page);
                while let (Some(_), wake) | (None, wake @ true) = pop(&mut rx, &memory) {
                    if wake {
                        rung |= watcher.must_ring(&*page);
                    }
                }
                rung
            })
        };
        let mut pushed = tx.reserve(&*memory, 8).is_ok();
        if !pushed && promised {
            pushed = tx.want_space(&*memory, 8).expect("an honest consumer");
        }
        if !pushed {
            fall_asleep(&*page);
            pushed = tx.want_space(&*memory, 8).expect("an honest consumer");
        }
        if pushed {
            push(&mut tx, &memory, 8, 3).expect("space was promised");
        }
        let rung = consumer.join().expect("no panic");
        assert!(pushed || rung, "the producer sleeps beside free space");
    });
}

/// A page with a guard slot, a table with one entry, and the memory of the entry.
#[derive(Default)]
struct Guarded {
    slot: AtomicU64,
    entry: AtomicU64,
    memory: UnsafeCell<u64>,
}

impl Words for Guarded {
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

/// A key and another one.
const KEY: u32 = 7;
const OTHER: u32 = 8;

/// Copies to the memory if its entry allows it.
fn copy(guarded: &Guarded, number: u32) {
    guard::hold(guarded, KEY, number);
    if guarded.entry.load(Ordering::Relaxed) == u64::from(KEY) {
        // SAFETY: what this model proves; loom checks it.
        guarded.memory.with_mut(|p| unsafe { *p = u64::from(number) });
    }
    guard::free(guarded);
}

/// Once a withdrawal has waited for the holder of the slot, nothing copies any more: neither the
/// copy that raced with it nor the next one. It does not wait for a peer that has moved on to
/// something else.
#[test]
fn withdrawal() {
    loom::model(|| {
        let guarded = Arc::new(Guarded::default());
        guarded.entry.store(u64::from(KEY), Ordering::Relaxed);
        let peer = {
            let guarded = guarded.clone();
            thread::spawn(move || {
                copy(&guarded, 1);
                copy(&guarded, 2);
                guard::hold(&*guarded, OTHER, 3);
            })
        };
        guarded.entry.store(0, Ordering::Relaxed);
        let held = guard::look(&*guarded);
        if held.is_for(KEY) {
            while guard::look(&*guarded) == held {
                thread::yield_now();
            }
        }
        // SAFETY: what this model proves; loom checks it.
        guarded.memory.with_mut(|p| unsafe { *p = u64::MAX });
        peer.join().expect("no panic");
        // SAFETY: the peer's thread has ended.
        assert_eq!(
            guarded.memory.with(|p| unsafe { *p }),
            u64::MAX,
            "written after the withdrawal"
        );
        assert!(guard::look(&*guarded).is_for(OTHER));
    });
}

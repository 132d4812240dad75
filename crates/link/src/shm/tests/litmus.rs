//! The protocols of shared memory on the processor at hand, many times: what the models go through
//! in loom (`shm::models`), where a compiler, a processor and its emulation have their say.
//!
//! Two threads meet at the start of each round and then race. A round proves nothing; a fence that
//! is missing shows within some thousand of them on a processor of two cores
//! (`the_race_is_one`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::shm::bell::{Watcher, fall_asleep, promise, wake_up};
use crate::shm::cursor::{NoRoom, Rx, Tx};
use crate::shm::guard;
use crate::shm::layout::{DATA, HEADER, LINE};
use crate::sync::Words;

/// Rounds of a race of two threads.
const ROUNDS: usize = 100_000;
/// How long they may take, on an emulated processor or on one core.
const LONGEST: Duration = Duration::from_secs(5);
const CAPACITY: usize = 16 * LINE;

/// Words that two threads share.
struct Memory(Vec<AtomicU64>);

impl Memory {
    fn new() -> Self {
        Self((0..(DATA + CAPACITY) / 8).map(|_| AtomicU64::new(0)).collect())
    }

    /// Only control words.
    fn new_page() -> Self {
        Self((0..DATA / 8).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Words for Memory {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.0[at / 8].load(order)
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.0[at / 8].store(value, order);
    }

    fn swap(&self, at: usize, value: u64) -> u64 {
        self.0[at / 8].swap(value, Ordering::AcqRel)
    }

    fn update(&self, at: usize, f: impl Fn(u64) -> u64) {
        let _ = self.0[at / 8].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |v| Some(f(v)));
    }
}

/// Where two threads meet, without sleep.
#[derive(Default)]
struct Meeting(AtomicUsize);

impl Meeting {
    /// The `time`th meeting, from 1.
    fn meet(&self, time: usize) {
        self.0.fetch_add(1, Ordering::AcqRel);
        let mut looks = 0_u32;
        while self.0.load(Ordering::Acquire) < 2 * time {
            looks += 1;
            // The other one may need this core.
            if looks.is_multiple_of(1 << 10) {
                thread::yield_now();
            }
        }
    }
}

/// Runs two sides of a race over and over, each round on something new, and gives what both found
/// to `judge`. Returns the number of rounds.
fn race<S: Send + Sync, A: Send, B: Send>(
    make: impl Fn() -> S,
    one: impl Fn(&S) -> A + Sync,
    other: impl Fn(&S) -> B + Send + Sync,
    mut judge: impl FnMut(&S, A, B),
) -> usize {
    const BATCH: usize = 1000;
    let began = Instant::now();
    let mut rounds = 0;
    while rounds < ROUNDS && began.elapsed() < LONGEST {
        let scenes: Vec<S> = (0..BATCH).map(|_| make()).collect();
        let meeting = Meeting::default();
        let run = |side: &dyn Fn(usize)| {
            for round in 0..BATCH {
                meeting.meet(round + 1);
                side(round);
            }
        };
        let (mut ones, mut others) = (Vec::new(), Vec::new());
        thread::scope(|scope| {
            let others = &mut others;
            let (run, scenes, other) = (&run, &scenes, &other);
            scope.spawn(move || {
                let found = std::cell::RefCell::new(others);
                run(&|round| found.borrow_mut().push(other(&scenes[round])));
            });
            let found = std::cell::RefCell::new(&mut ones);
            run(&|round| found.borrow_mut().push(one(&scenes[round])));
        });
        for ((scene, one), other) in scenes.iter().zip(ones).zip(others) {
            judge(scene, one, other);
        }
        rounds += BATCH;
    }
    rounds
}

/// Store buffering, without fences: the threads do race. On a machine with one core they hardly do,
/// so this is printed and not demanded.
#[test]
fn the_race_is_one() {
    let mut both_missed = 0;
    let rounds = race(
        || [AtomicU64::new(0), AtomicU64::new(0)],
        |[a, b]| {
            a.store(1, Ordering::Relaxed);
            b.load(Ordering::Relaxed)
        },
        |[a, b]| {
            b.store(1, Ordering::Relaxed);
            a.load(Ordering::Relaxed)
        },
        |_, one, other| both_missed += usize::from((one, other) == (0, 0)),
    );
    println!("store buffering without fences: {both_missed} of {rounds} rounds");
    assert!(rounds > 0);
}

/// A key.
const KEY: u32 = 7;

/// A copy and a withdrawal that coincide: at least one sees the other.
#[test]
fn a_copy_and_a_withdrawal_do_not_miss_each_other() {
    race(
        || (Memory::new_page(), AtomicU64::new(u64::from(KEY))),
        |(page, entry)| {
            guard::hold(page, KEY, 1);
            entry.load(Ordering::SeqCst) == u64::from(KEY)
        },
        |(page, entry)| {
            entry.store(0, Ordering::SeqCst);
            guard::look(page).is_for(KEY)
        },
        |_, copies, is_seen| assert!(!copies || is_seen, "a copy that nobody waits for"),
    );
}

/// What was copied before the slot was freed is there for one that saw it free.
#[test]
fn a_copy_is_over_when_its_slot_is_free() {
    race(
        || {
            let page = Memory::new_page();
            guard::hold(&page, KEY, 1);
            (page, AtomicU64::new(0))
        },
        |(page, memory)| {
            memory.store(1, Ordering::Relaxed);
            guard::free(page);
        },
        |(page, memory)| guard::look(page).is_free().then(|| memory.load(Ordering::Relaxed)),
        |_, (), seen| assert_ne!(seen, Some(0), "the copy goes on"),
    );
}

/// A record that is published while its reader falls asleep: it is seen, or the bell is rung.
#[test]
fn nobody_sleeps_beside_a_record() {
    for promised in [false, true] {
        if promised && !threads::barrier::is_ready() {
            continue;
        }
        race(
            || {
                let page = Memory::new_page();
                if promised {
                    promise(&page);
                }
                (page, Memory::new())
            },
            |(page, ring)| {
                push(&mut Tx::new(CAPACITY), ring, &[1]).expect("an empty ring");
                Watcher::default().must_ring(page)
            },
            |(page, ring)| {
                fall_asleep(page);
                let seen = pop(&mut Rx::new(CAPACITY), ring).is_some();
                if seen {
                    wake_up(page);
                }
                seen
            },
            |_, is_rung, is_seen| assert!(is_seen || is_rung, "it sleeps beside a record"),
        );
    }
}

/// Message passing over many laps: what a record holds is what was put into it.
#[test]
fn records_arrive_whole_and_in_order() {
    let ring = Arc::new(Memory::new());
    let began = Instant::now();
    let producer = {
        let ring = Arc::clone(&ring);
        thread::spawn(move || {
            let mut tx = Tx::new(CAPACITY);
            let mut count = 0;
            while count < 10 * ROUNDS as u64 && began.elapsed() < LONGEST {
                // One line or two, so that a record ends at every place of the ring.
                let words = vec![count; 1 + (count % 10) as usize];
                while push(&mut tx, &ring, &words).is_err() {
                    thread::yield_now();
                }
                count += 1;
            }
            count
        })
    };
    let (mut rx, mut next) = (Rx::new(CAPACITY), 0);
    let mut take_all = || {
        while let Some(words) = pop(&mut rx, &ring) {
            assert_eq!(words, vec![next; 1 + (next % 10) as usize]);
            next += 1;
        }
        next
    };
    while !producer.is_finished() {
        take_all();
        thread::yield_now();
    }
    assert_eq!(take_all(), producer.join().expect("no panic"));
}

/// Pushes words as one record.
fn push(tx: &mut Tx, ring: &Memory, words: &[u64]) -> Result<(), NoRoom> {
    let slot = tx.reserve(ring, words.len() * 8)?;
    for (index, word) in words.iter().enumerate() {
        ring.store(slot.payload + index * 8, *word, Ordering::Relaxed);
    }
    tx.publish(ring, slot);
    Ok(())
}

/// Pops a record. Its first word tells how many it has.
fn pop(rx: &mut Rx, ring: &Memory) -> Option<Vec<u64>> {
    let Some(record) = rx.next(ring).expect("an honest producer") else {
        rx.release(ring);
        return None;
    };
    let words =
        (0..record.len / 8).map(|index| ring.load(record.payload + index * 8, Ordering::Relaxed));
    let words = words.collect();
    rx.consume(ring, record);
    Some(words)
}

const _: () = assert!(HEADER == 8, "payload consists of whole words");

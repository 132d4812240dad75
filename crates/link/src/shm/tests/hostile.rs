//! A peer that writes anything, wherever it can, while we read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::shm::layout::{DATA, HEAD, WAITING, ring_file_len};
use crate::shm::memfd::{Mapping, SEALS};
use crate::sync::Words;

/// A small generator with a seed, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // Marsaglia's xorshift64.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Both ends of a ring, and a mapping of it for the hostile peer.
fn ring_and_intruder() -> (Producer, Consumer, Mapping) {
    let (producer, fd) = Producer::create(MIN_CAPACITY).expect("memory files exist");
    let consumer = Consumer::open(fd.as_fd(), MIN_CAPACITY).expect("a good ring");
    let intruder = Mapping::open(fd.as_fd(), ring_file_len(MIN_CAPACITY), SEALS).expect("good");
    (producer, consumer, intruder)
}

fn header(position: u64, len: u32) -> u64 {
    (1 << 63) | ((position / 64) << 32) | u64::from(len)
}

#[test]
fn an_invalid_header_is_named() {
    let (_producer, mut consumer, intruder) = ring_and_intruder();
    intruder.store(DATA, 5, Ordering::Relaxed);
    let e = consumer.pop(|_| ()).expect_err("no producer writes this");
    assert_eq!(e, RingCorrupt::Header { word: 5, position: 0 });

    intruder.store(DATA, header(64, 5), Ordering::Relaxed);
    assert!(matches!(consumer.pop(|_| ()), Err(RingCorrupt::Header { .. })), "of another place");

    for len in [max_payload(MIN_CAPACITY) as u32 + 1, u32::MAX - 1, 1 << 31] {
        intruder.store(DATA, header(0, len), Ordering::Relaxed);
        assert_eq!(consumer.pop(|_| ()), Err(RingCorrupt::Length { len, position: 0 }));
    }

    intruder.store(DATA, header(0, u32::MAX), Ordering::Relaxed);
    assert_eq!(consumer.pop(|_| ()), Err(RingCorrupt::Gap { position: 0 }));
}

#[test]
fn the_header_of_the_previous_lap_is_no_record_and_stays() {
    let (mut producer, mut consumer, intruder) = ring_and_intruder();
    let lines = MIN_CAPACITY as u64 / 64;
    for at in (0..2 * lines).map(|line| line * 64) {
        let place = DATA + at as usize % MIN_CAPACITY;
        let before = at.checked_sub(MIN_CAPACITY as u64).map_or(0, |before| header(before, 1));
        assert_eq!(intruder.load(place, Ordering::Relaxed), before);
        assert!(consumer.is_idle());
        assert_eq!(pop(&mut consumer), None);
        push(&mut producer, b"x").expect("room");
        assert_eq!(intruder.load(place, Ordering::Relaxed), header(at, 1));
        pop(&mut consumer).expect("pushed");
    }

    intruder.store(DATA, header(0, 1), Ordering::Relaxed);
    let word = header(0, 1);
    let refused = Err(RingCorrupt::Header { word, position: 2 * MIN_CAPACITY as u64 });
    assert_eq!(consumer.pop(|_| ()), refused, "of an earlier lap");
}

#[test]
fn a_record_over_the_end_of_the_ring_is_refused() {
    let (mut producer, mut consumer, intruder) = ring_and_intruder();
    for _ in 0..MIN_CAPACITY / 64 - 1 {
        push(&mut producer, b"x").expect("room");
        pop(&mut consumer).expect("pushed");
        assert_eq!(pop(&mut consumer), None);
    }
    let last = MIN_CAPACITY as u64 - 64;
    intruder.store(DATA + last as usize, header(last, 57), Ordering::Relaxed);
    let refused = Err(RingCorrupt::Length { len: 57, position: last });
    assert_eq!(consumer.pop(|_| ()), refused);
    intruder.store(DATA + last as usize, header(last, 56), Ordering::Relaxed);
    assert_eq!(consumer.pop(|r| r.len()), Ok(Some(56)));
}

#[test]
fn an_invalid_head_stops_the_producer() {
    for head in [1, 64 * 1024, u64::MAX, u64::MAX - 63] {
        let (mut producer, _consumer, intruder) = ring_and_intruder();
        intruder.store(HEAD, head, Ordering::Relaxed);
        assert_eq!(producer.consumed_up_to(), 0, "not believed");
        let e = loop {
            if let Err(e) = push(&mut producer, &[0; 56]) {
                break e;
            }
        };
        assert!(matches!(e, PushError::Corrupt(RingCorrupt::Head { head: h, .. }) if h == head));
    }
}

#[test]
fn a_head_that_moves_back_is_not_trusted() {
    let (mut producer, mut consumer, intruder) = ring_and_intruder();
    push(&mut producer, b"x").expect("room");
    pop(&mut consumer).expect("pushed");
    assert_eq!(pop(&mut consumer), None);
    assert_eq!(producer.consumed_up_to(), 64);
    intruder.store(HEAD, 0, Ordering::Relaxed);
    assert_eq!(producer.consumed_up_to(), 64);
}

/// We can read anything that a hostile producer writes: the result is an error, or some bytes,
/// never a panic or an address outside the ring. The intruder writes whole words all over the ring
/// and the control page while both ends work; half of its words are almost right.
#[test]
fn scribbling_gives_errors_and_nothing_else() {
    const ROUNDS: u64 = 3000;
    for seed in 1..=4 {
        let (mut producer, mut consumer, intruder) = ring_and_intruder();
        let stop = AtomicBool::new(false);
        let position = AtomicU64::new(0);
        let (mut records, mut errors) = (0_u64, 0_u64);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(seed);
                while !stop.load(Ordering::Relaxed) {
                    let (a, b) = (random.next(), random.next());
                    let at = (a % (MIN_CAPACITY as u64 / 8)) as usize * 8;
                    match b % 8 {
                        0 => intruder.store(HEAD, a >> (b % 61), Ordering::Relaxed),
                        1 => intruder.store(WAITING, a, Ordering::Relaxed),
                        2 => intruder.store(DATA + at, a, Ordering::Relaxed),
                        3 => intruder.store(DATA + at, 0, Ordering::Relaxed),
                        _ => {
                            // Right where the consumer is: a valid stamp and a doubtful length.
                            let p = position.load(Ordering::Relaxed);
                            let len = if b & 8 == 0 { a as u32 % 5000 } else { a as u32 };
                            let at = DATA + p as usize % MIN_CAPACITY;
                            intruder.store(at, header(p, len), Ordering::Relaxed);
                        }
                    }
                }
            });
            for round in 0..ROUNDS {
                let _ = push(&mut producer, &[round as u8; 100]);
                let _ = producer.want_space(100);
                let seen = consumer.pop(|record| {
                    let mut bytes = vec![0; record.len()];
                    record.copy_to(&mut bytes).expect("there");
                    bytes.len()
                });
                match seen {
                    Ok(Some(len)) => {
                        assert!(len <= max_payload(MIN_CAPACITY));
                        records += 1;
                    }
                    Ok(None) => thread::yield_now(),
                    Err(_) => errors += 1,
                }
                position.store(consumer.position(), Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(records + errors > 0, "the intruder never hit");
    }
}

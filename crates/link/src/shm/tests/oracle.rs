//! Random pushes and pops, against a queue.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::shm::layout::{HEADER, LINE};

#[derive(Clone, Debug)]
enum Op {
    Push(usize),
    Pop,
    Release,
    Drain,
}

/// `small`: how many records fit in a line for each that does not.
fn op(small: u32) -> impl Strategy<Value = Op> {
    let long = prop_oneof![2 => 0..600_usize, 1 => 0..=max_payload(MIN_CAPACITY)];
    let len = prop_oneof![small => 0..=LINE - HEADER, 1 => long];
    prop_oneof![
        6 => len.prop_map(Op::Push),
        4 => Just(Op::Pop),
        1 => Just(Op::Release),
        1 => Just(Op::Drain),
    ]
}

/// Bytes that look like headers wherever a header may be, to mislead the consumer.
fn tempting(len: usize, seed: u64) -> Vec<u8> {
    let words = (0..).map(|i: u64| (1 << 63) | ((seed + i) << 32) | (i % 64));
    words.flat_map(u64::to_ne_bytes).take(len).collect()
}

proptest! {
    // Where nearly all are small, whole laps have no long record.
    #[test]
    fn the_ring_is_a_queue(
        ops in prop_oneof![Just(1), Just(200)]
            .prop_flat_map(|small| proptest::collection::vec(op(small), 0..600)),
    ) {
        let (mut producer, mut consumer) = ring(MIN_CAPACITY);
        let mut queue = VecDeque::new();
        for (seed, op) in ops.into_iter().enumerate() {
            match op {
                Op::Push(len) => {
                    let bytes = tempting(len, seed as u64);
                    match push(&mut producer, &bytes) {
                        Ok(()) => queue.push_back(bytes),
                        Err(PushError::Full) if queue.is_empty() => {
                            // All read, but not released: a poll of the empty ring does it.
                            prop_assert_eq!(pop(&mut consumer), None);
                            prop_assert_eq!(push(&mut producer, &bytes), Ok(()));
                            queue.push_back(bytes);
                        }
                        Err(PushError::Full) => {}
                        Err(e) => prop_assert!(false, "{e:?}"),
                    }
                }
                Op::Pop => prop_assert_eq!(pop(&mut consumer), queue.pop_front()),
                Op::Release => consumer.release(),
                Op::Drain => {
                    while let Some(bytes) = pop(&mut consumer) {
                        prop_assert_eq!(Some(bytes), queue.pop_front());
                    }
                    prop_assert!(queue.is_empty());
                    prop_assert_eq!(producer.consumed_up_to(), producer.position());
                }
            }
            prop_assert!(producer.consumed_up_to() <= consumer.position());
            prop_assert!(consumer.position() <= producer.position());
        }
    }
}

//! A peer that writes arbitrary bytes into the shared ring, between our own pushes and pops; and a
//! peer that sends an arbitrary first message.
#![no_main]

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use libfuzzer_sys::fuzz_target;
use link::shm::{Consumer, MIN_CAPACITY, Producer, max_payload};

/// Length of the control part of the ring's memory file, and of the whole.
const CONTROL: u64 = 8192;
const WHOLE: u64 = CONTROL + MIN_CAPACITY as u64;

fuzz_target!(|bytes: &[u8]| {
    link::registry::fuzzing::message(bytes);
    let (mut producer, fd) = Producer::create(MIN_CAPACITY).expect("memory files exist");
    let mut consumer = Consumer::open(fd.as_fd(), MIN_CAPACITY).expect("our own ring");
    let intruder = std::fs::File::from(fd);
    for op in bytes.chunks(16) {
        let Some((&kind, rest)) = op.split_first() else { continue };
        let (at, value) = rest.split_at(rest.len().min(2));
        let at = at.iter().fold(0, |at, byte| at << 8 | u64::from(*byte));
        match kind % 8 {
            0 => {
                let _ = producer.push(at as usize % (MIN_CAPACITY + 1), |record| {
                    let _ = record.fill(kind);
                    Ok::<_, ()>(())
                });
            }
            1 => {
                let _ = producer.want_space(at as usize % MIN_CAPACITY);
            }
            2 => drop(producer.consumed_up_to()),
            3 => consumer.release(),
            // Control words, then the ring, then a header where the consumer is.
            4 => intruder.write_all_at(value, at % 256).expect("inside the file"),
            5 => {
                let at = CONTROL + at % (MIN_CAPACITY as u64 - 16);
                intruder.write_all_at(value, at).expect("inside the file");
            }
            6 => {
                let position = consumer.position();
                let word = 1 << 63 | (position / 64) << 32 | at;
                let at = CONTROL + position % MIN_CAPACITY as u64;
                intruder.write_all_at(&word.to_ne_bytes(), at).expect("inside the file");
            }
            _ => {
                let popped = consumer.pop(|record| {
                    let mut copy = vec![0; record.len()];
                    let _ = record.copy_to(&mut copy);
                    copy.len()
                });
                if let Ok(Some(len)) = popped {
                    assert!(len <= max_payload(MIN_CAPACITY));
                }
            }
        }
    }
    assert_eq!(intruder.metadata().expect("a file").len(), WHOLE, "sealed");
});

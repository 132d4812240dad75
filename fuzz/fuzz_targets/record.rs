//! A peer that puts arbitrary bytes into a record of a ring that is otherwise valid.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| device::fuzzing::record(bytes));

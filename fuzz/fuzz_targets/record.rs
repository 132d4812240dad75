//! A peer that puts what it likes into a record of a ring that is otherwise in order.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| device::fuzzing::record(bytes));

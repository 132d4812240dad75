//! Messages between a process that exports a buffer and one that imports it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| dmabuf::share::fuzzing::message(bytes));

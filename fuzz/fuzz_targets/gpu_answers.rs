//! The answers of a process that shares a GPU to `peerdma gpu`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| gpu::fuzzing::answer(bytes));

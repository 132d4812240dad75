//! What a process answers about its objects.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    view::fuzzing::process(bytes);
});

//! Arbitrary bytes as packets: the printer reads every field there is.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    wire::pretty::exercise(bytes);
});

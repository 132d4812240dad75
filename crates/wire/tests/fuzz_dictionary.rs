//! The dictionary that `fuzz/` gives to the fuzzer has exactly the opcodes of the table.

use std::fmt::Write;

use wire::Opcode;

/// The contents of `fuzz/packet.dict`: a line per opcode, with the first two bytes of a BTH of that
/// opcode.
fn dictionary() -> String {
    let mut text = String::from(
        "# The start of a BTH of each opcode; see crates/wire/tests/fuzz_dictionary.rs.\n",
    );
    for opcode in Opcode::ALL {
        let name = opcode.name().to_ascii_lowercase();
        writeln!(text, "{name}=\"\\x{:02x}\\x40\"", opcode.code())
            .expect("strings take everything");
    }
    text
}

#[test]
fn fuzz_dictionary_lists_every_opcode() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/packet.dict");
    let text = std::fs::read_to_string(path).expect("the dictionary is part of the repository");
    let expected = dictionary();
    assert!(text == expected, "fuzz/packet.dict should be:\n{expected}");
}

//! Gives `libpeerdma-ze.so` the functions by which a loader of Level Zero asks a driver for its
//! tables.
//!
//! From the list in `crates/levelzero/names` this writes `tables.rs`: one function for each table.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

fn main() -> io::Result<()> {
    let list = Path::new("../levelzero/names/tables.txt");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", list.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let text = fs::read_to_string(list)?;
    let mut rust = String::new();
    for name in text.lines().filter(|line| line.starts_with("ze")) {
        writeln!(rust, "table! {{ {name}, c{name:?} }}").expect("it takes all");
    }
    fs::write(out.join("tables.rs"), rust)
}

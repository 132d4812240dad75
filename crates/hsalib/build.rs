//! Gives `libpeerdma-hsa.so` the symbol table of `libhsa-runtime64.so.1`.
//!
//! From the list of names in `crates/hsa/names` this writes `entries.rs`: for each name a function
//! that says which name it is and goes on through a table (`stubs::versioned`), all of one version
//! node (why by `.symver` and a version script, `crates/peerdma/build.rs` tells).

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The version node of every name.
const NODE: &str = "ROCR_1";

fn main() -> io::Result<()> {
    let list = Path::new("../hsa/names/names.txt");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", list.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let text = fs::read_to_string(list)?;
    let names: Vec<_> = text.lines().filter(|line| line.starts_with("hsa_")).collect();
    fs::write(out.join("entries.rs"), source(&names))?;
    let map = out.join("libpeerdma-hsa.map");
    let globals: String = names.iter().map(|name| format!("    {name};\n")).collect();
    // Zig takes no other script (`crates/peerdma/build.rs`).
    fs::write(&map, format!("{NODE} {{\n  global:\n{globals}  local: *;\n}};\n"))?;
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhsa-runtime64.so.1");
    // Programs keep pointers to these functions.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}

fn source(names: &[&str]) -> String {
    let mut rust = String::from("// Written by build.rs from crates/hsa/names.\n\n");
    let mut list = String::new();
    for (index, name) in names.iter().enumerate() {
        let local = format!("peerdma_entry_{name}");
        let version = format!(".symver {local}, {name}@@{NODE}");
        writeln!(rust, "versioned! {{ {name}, {local:?}, {version:?}, {index} }}")
            .expect("it takes all");
        writeln!(list, "    c{name:?},").expect("it takes all");
    }
    let count = names.len();
    format!(
        "{rust}\n/// How many names there are.\npub(crate) const COUNT: usize = {count};\n\n\
         /// Each name.\npub(crate) static NAMES: [&CStr; COUNT] = [\n{list}];\n"
    )
}

//! Gives `libpeerdma-cuda.so` the symbol tables of `libcuda.so.1`, `libnvidia-ml.so.1`,
//! `libcudart.so.12` and `libcudart.so.13`.
//!
//! From the lists of names in `crates/cuda/names` this writes `entries.rs`: for each name a
//! function in assembly that says which name it is and goes on through a table, and the table's
//! length, its names and its functions. Names of the driver and of NVML have no version; those of
//! the runtime have one version node for each library, by `.symver` and a version script (why
//! assembly, `crates/peerdma/build.rs` tells).

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A name of one of the libraries. `node` is the version node, if it has any.
struct Entry {
    library: &'static str,
    name: String,
    node: Option<String>,
}

fn main() -> io::Result<()> {
    let names = Path::new("../cuda/names");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", names.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let entries = read(names)?;
    fs::write(out.join("entries.rs"), source(&entries))?;
    let map = out.join("libpeerdma-cuda.map");
    fs::write(&map, version_script(&entries))?;
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Programs keep pointers to these functions, and patch them.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}

fn read(directory: &Path) -> io::Result<Vec<Entry>> {
    let lines = |file: &str| -> io::Result<Vec<Vec<String>>> {
        let text = fs::read_to_string(directory.join(file))?;
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        Ok(lines.map(|line| line.split(' ').map(ToOwned::to_owned).collect()).collect())
    };
    let mut entries = Vec::new();
    for mut line in lines("driver.txt")? {
        entries.push(Entry { library: "DRIVER", name: line.swap_remove(0), node: None });
    }
    for mut line in lines("nvml.txt")? {
        entries.push(Entry { library: "NVML", name: line.swap_remove(0), node: None });
    }
    for line in lines("runtime.txt")? {
        for version in &line[1..] {
            let library = if version == "12" { "RUNTIME_12" } else { "RUNTIME_13" };
            let node = Some(format!("libcudart.so.{version}"));
            entries.push(Entry { library, name: line[0].clone(), node });
        }
    }
    Ok(entries)
}

fn version_script(entries: &[Entry]) -> String {
    let mut nodes = BTreeMap::<&str, String>::new();
    for entry in entries {
        if let Some(node) = &entry.node {
            writeln!(nodes.entry(node).or_default(), "    {};", entry.name).expect("it takes all");
        }
    }
    let node = |(index, (node, names)): (usize, (&&str, &String))| {
        // Zig takes no other script (`crates/peerdma/build.rs`). Names without a version are in
        // none of these nodes, so this one names what is not theirs.
        let local = if index == 0 { "  local: _R*; _ZN*; peerdma_entry_*; rust_*;\n" } else { "" };
        format!("{node} {{\n  global:\n{names}{local}}};\n")
    };
    nodes.iter().enumerate().map(node).collect()
}

fn source(entries: &[Entry]) -> String {
    let mut rust = String::from("// Written by build.rs from crates/cuda/names.\n\n");
    let mut names = String::new();
    let mut functions = String::new();
    for (index, entry) in entries.iter().enumerate() {
        let (name, library) = (&entry.name, entry.library);
        writeln!(names, "    (Library::{library}, c{name:?}),").expect("it takes all");
        let symbol = match &entry.node {
            None => name.clone(),
            Some(node) => format!("{name}_{}", node.rsplit('.').next().expect("it has a number")),
        };
        if library == "DRIVER" {
            writeln!(functions, "    Function({symbol} as *const ()),").expect("it takes all");
        }
        match &entry.node {
            None => writeln!(rust, "plain! {{ {symbol}, {index} }}"),
            Some(node) => {
                // What a program linked today binds to.
                let newest = node.ends_with("12")
                    || !entries.iter().any(|e| {
                        e.name == *name && e.node.as_ref().is_some_and(|node| node.ends_with("12"))
                    });
                let at = if newest { "@@" } else { "@" };
                let local = format!("peerdma_entry_{symbol}");
                let version = format!(".symver {local}, {name}{at}{node}");
                writeln!(rust, "versioned! {{ {symbol}, {local:?}, {version:?}, {index} }}")
            }
        }
        .expect("it takes all");
    }
    let count = entries.len();
    let drivers = entries.iter().filter(|entry| entry.library == "DRIVER").count();
    format!(
        "{rust}\n/// How many names there are.\npub(crate) const COUNT: usize = {count};\n\n\
         /// Each name, and whose it is.\n\
         pub(crate) static NAMES: [(Library, &CStr); COUNT] = [\n{names}];\n\n\
         /// The functions of the driver's names, which come first.\n\
         pub(crate) static FUNCTIONS: [Function; {drivers}] = [\n{functions}];\n"
    )
}

//! Where `unsafe` may be written: in the crates that touch foreign memory or speak C, and nowhere
//! else.

use std::fs;

use crate::metadata::workspace;
use crate::sh::{Outcome, root};
use crate::source::{code, count_word, rust_files};

/// A crate, and the path below it that may have `unsafe` (empty: all of it).
const MAY: &[(&str, &str)] = &[
    // One word of the auxiliary vector.
    ("environment", "src/secure.rs"),
    // Signal masks, and locks that are made new after a fork.
    ("threads", ""),
    // Descriptor numbers that somebody else may have by now, and socket options.
    ("descriptors", ""),
    ("umem", ""),
    // Pages that are taken from the process and given back.
    ("hmm", ""),
    ("link", ""),
    ("dmabuf", "src/sys"),
    // Memory that the kernel reads and writes by its address.
    ("storage", "src/sys"),
    // Fork, seccomp, and memory of the program that it answers.
    ("launcher", "src/door"),
    // Arguments of ioctls.
    ("nodes", ""),
    // Memory of the program, by its address, and slices of what its owner alone has.
    ("verbs", "src/owned"),
    // What tokio wants to be told of a descriptor.
    ("verbs", "src/aio/tokio.rs"),
    // Calls of C.
    ("sysverbs", ""),
    // Signatures of C functions.
    ("verbs-abi", ""),
    ("peerdma", ""),
    ("umd", ""),
    ("cuda", ""),
    ("levelzero", ""),
    ("hsa", ""),
    ("stubs", ""),
    ("cudalib", ""),
    ("hsalib", ""),
    ("zelib", ""),
    ("preload", ""),
    ("rspreload", ""),
    ("heap", ""),
    // Bare system calls and raw memory are what the engine is compared with.
    ("bench", ""),
];

/// Checks every source file of the workspace.
pub(crate) fn run() -> Outcome {
    let mut wrong = Vec::new();
    let mut sites = Vec::new();
    for package in workspace()? {
        let dir = package.manifest.parent().expect("a manifest lies in a directory").to_owned();
        let mut here = 0;
        for file in rust_files(&dir)? {
            let text =
                fs::read_to_string(&file).map_err(|err| format!("{}: {err}", file.display()))?;
            let found = count_word(&code(&text), "unsafe");
            let below = file.strip_prefix(&dir).expect("a file below its directory");
            let allowed = MAY.iter().any(|(name, path)| {
                *name == package.name && below.to_string_lossy().starts_with(path)
            });
            if found > 0 && !allowed {
                let shown = file.strip_prefix(root()).unwrap_or(&file);
                wrong.push(format!("{}: {found}", shown.display()));
            }
            here += found;
        }
        if here > 0 {
            sites.push(format!("{} {here}", package.name));
        }
    }
    if !wrong.is_empty() {
        return Err(format!("`unsafe` where it must not be:\n  {}", wrong.join("\n  ")));
    }
    println!("unsafe: {}", if sites.is_empty() { "none".to_owned() } else { sites.join(", ") });
    Ok(())
}

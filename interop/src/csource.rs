//! C programs of our own, linked against the system's headers and library as any program is.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::scratch::Scratch;

/// Compiles `interop/c/NAME.c` into `scratch`, linked with the system's `libibverbs.so.1` and, if it
/// needs it, `librdmacm.so.1`.
#[track_caller]
pub fn compile(name: &str, scratch: &Scratch) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    let program = scratch.file(name);
    let out = Command::new("gcc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(["-I/usr/include/libdrm", "-o"])
        .arg(&program)
        .arg(dir.join(format!("{name}.c")))
        .args(["-Wl,--as-needed", "-libverbs", "-lrdmacm", "-ldl"])
        .output()
        .expect("gcc starts: the test asked for it with needs!");
    assert!(out.status.success(), "{name}.c: {}", String::from_utf8_lossy(&out.stderr));
    program
}

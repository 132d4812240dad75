//! Programs of others that use CUDA, which `cargo xtask cuda-rdma --build` builds or fetches, and what became of them.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use crate::artefacts::target_dir;

/// Where a program is; nothing may be there.
pub fn cuda_program(name: &str) -> PathBuf {
    target_dir().join("cuda-rdma").join(name)
}

/// Leaves a row for docs/CUDA_PROGRAMS.md: what was run of which program, by which way, what became of it, and why.
///
/// # Panics
///
/// When the file cannot be written.
#[track_caller]
pub fn row(program: &str, way: &str, run: &str, result: &str, why: &str) {
    let home = cuda_program("");
    std::fs::create_dir_all(&home).expect("the target directory is writable");
    let file = OpenOptions::new().append(true).create(true).open(home.join("rows.tsv"));
    writeln!(file.expect("a file"), "{program}\t{way}\t{run}\t{result}\t{why}").expect("it grows");
}

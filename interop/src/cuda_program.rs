//! Third-party programs that use CUDA, which `cargo xtask cuda-rdma --build` builds or fetches, and
//! their results.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::artefacts::target_dir;

/// The path of a program, which may be absent.
pub fn cuda_program(name: &str) -> PathBuf {
    target_dir().join("cuda-rdma").join(name)
}

/// The path of a file of libfabric, as `cargo xtask libfabric` installs it. It may be absent.
pub fn libfabric(path: &str) -> PathBuf {
    target_dir().join("libfabric/installed").join(path)
}

/// Bytes of GPU memory that the NIC accessed directly, of all processes in a report: by bus
/// address, or through the host bridge if the GPU is near another NIC.
pub fn by_nic(report: &Path) -> u64 {
    let text = std::fs::read_to_string(report).unwrap_or_default();
    sum(&text, "bus address ") + sum(&text, "through the host bridge ")
}

/// The sum of the numbers that follow these words in the reports of all processes.
pub fn sum(report: &str, words: &str) -> u64 {
    let counts = report.split(words).skip(1);
    counts.filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

/// Writes a row for docs/CUDA_PROGRAMS.md: the program, the kind of access, the run, its result,
/// and the reason.
///
/// # Panics
///
/// If the file cannot be written.
#[track_caller]
pub fn row(program: &str, way: &str, run: &str, result: &str, why: &str) {
    let home = cuda_program("");
    std::fs::create_dir_all(&home).expect("the target directory is writable");
    let file = OpenOptions::new().append(true).create(true).open(home.join("rows.tsv"));
    writeln!(file.expect("a file"), "{program}\t{way}\t{run}\t{result}\t{why}").expect("it grows");
}

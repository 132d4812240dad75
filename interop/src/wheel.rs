//! Programs of others from wheels of Python (`interop/wheels`), which `cargo xtask test` has pip
//! fetch.

use std::path::PathBuf;

/// Lists the directories that have the wheels, separated by colons.
const WHEELS: &str = "PEERDMA_WHEELS";

/// A file of a wheel, if it is there.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let wheels = std::env::var_os(WHEELS)?;
    std::env::split_paths(&wheels).map(|directory| directory.join(name)).find(|file| file.exists())
}

/// A file of a wheel.
///
/// # Panics
///
/// When it is not there: the test has not asked for it with `needs!`.
#[track_caller]
pub fn wheel(name: &str) -> PathBuf {
    find(name).expect("the test asked for it with needs!")
}

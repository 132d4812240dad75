//! Third-party programs from Python wheels (`interop/wheels`), which pip fetches for `cargo xtask
//! test`.

use std::path::PathBuf;

/// Lists the directories that have the wheels, separated by colons.
const WHEELS: &str = "PEERDMA_WHEELS";

/// A file of a wheel, if it is present.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let wheels = std::env::var_os(WHEELS)?;
    std::env::split_paths(&wheels).map(|directory| directory.join(name)).find(|file| file.exists())
}

/// A file of a wheel.
///
/// # Panics
///
/// If it is missing, because the test has not asked for it with `needs!`.
#[track_caller]
pub fn wheel(name: &str) -> PathBuf {
    find(name).expect("the test asked for it with needs!")
}

//! What runs behind the door.

use std::path::PathBuf;
use std::process::Command;

use crate::sysfs::Tree;

/// What to run, and behind which tree.
pub(crate) struct Launch {
    /// The program, its arguments and environment.
    pub(crate) command: Command,
    /// What `/sys` holds for our NICs.
    pub(crate) tree: Tree,
    /// Whether to try seccomp at all.
    pub(crate) seccomp: bool,
    /// `libpeerdma-preload.so` and the value of `LD_PRELOAD` that loads it, used where seccomp is
    /// refused.
    pub(crate) preload: Option<Preload>,
}

/// The preload fallback.
pub(crate) struct Preload {
    /// The library.
    pub(crate) library: PathBuf,
    /// `LD_PRELOAD` with the library in it.
    pub(crate) ld_preload: std::ffi::OsString,
}

//! What runs behind the door.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use crate::live::Live;
use crate::sysfs::Tree;

/// What to run, and behind which tree.
pub(crate) struct Launch {
    /// The program, its arguments and environment.
    pub(crate) command: Command,
    /// What `/sys` holds for our NICs.
    pub(crate) tree: Tree,
    /// The NICs in it, and what their processes have and count.
    pub(crate) live: Arc<Live>,
    /// Whether to try seccomp at all.
    pub(crate) seccomp: bool,
    /// `libpeerdma-preload.so`, which the program has preloaded and which shows the tree where
    /// seccomp is refused.
    pub(crate) preload: Option<PathBuf>,
}

//! Files below the root directory of a host.

use std::fs;
use std::path::{Path, PathBuf};

/// The files of a host. Paths are absolute, as on the host itself.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    root: PathBuf,
}

impl Files {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The control groups of the process that looks.
    pub(crate) fn groups(&self) -> cgroup::Groups {
        cgroup::Groups::of_self(&self.root)
    }

    /// Where a path of the host is here.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The text of a file, without white space around it. `None` if it cannot be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, sorted; none if it cannot be read.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The last name of what a link leads to.
    pub(crate) fn target(&self, path: &str) -> Option<String> {
        let target = fs::canonicalize(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }
}

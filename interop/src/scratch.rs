//! A temporary directory that is removed when its value is dropped.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A fresh directory under the system's temporary directory, accessible to every user, removed on
/// drop.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes a new, empty directory.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("peerdma-interop-{}-{n}", std::process::id()));
        fs::create_dir(&path).expect("the temporary directory is writable");
        // Other users run programs from here and leave results here.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("our own directory");
        Self { path }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a file in it with this owner and mode, and returns its path.
    pub fn write(&self, name: &str, text: &str, owner: u32, mode: u32) -> PathBuf {
        let path = self.file(name);
        fs::write(&path, text).expect("a scratch directory is writable");
        own(&path, owner, mode);
        path
    }

    /// The path of `name` inside it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Sets the owner and the mode of a file (a change of owner clears set-user-ID, so the mode comes
/// last).
pub fn own(path: &Path, owner: u32, mode: u32) {
    chown(path, Some(owner), None).expect("the test asked for root with needs!");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("root may");
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failure leaves a temporary directory behind; that must not abort a test that is already
        // unwinding.
        let _ = fs::remove_dir_all(&self.path);
    }
}

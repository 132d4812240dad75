//! The build artefacts: the `peerdma` program and its libraries.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::scratch::Scratch;

/// The sonames by which programs load the library.
const SONAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// The directory of a built peerdma.
#[derive(Clone, Debug)]
pub struct Artefacts {
    dir: PathBuf,
}

impl Artefacts {
    /// The release build of this workspace, or the directory that `PEERDMA_BIN_DIR` names.
    ///
    /// # Panics
    ///
    /// If nothing is built there; the message tells how to build it.
    #[track_caller]
    pub fn find() -> Self {
        let dir = match std::env::var_os("PEERDMA_BIN_DIR") {
            Some(dir) => PathBuf::from(dir),
            None => target_dir().join("release"),
        };
        let found = Self { dir };
        for file in [found.peerdma(), found.library()] {
            assert!(file.exists(), "{} is missing: run `cargo build --release`", file.display());
        }
        found
    }

    /// The `peerdma` program.
    pub fn peerdma(&self) -> PathBuf {
        self.dir.join("peerdma")
    }

    /// `libpeerdma.so`, which programs load as `libibverbs.so.1`.
    pub fn library(&self) -> PathBuf {
        self.dir.join("libpeerdma.so")
    }

    /// An example of the Rust API.
    pub fn example(&self, name: &str) -> PathBuf {
        self.dir.join("examples").join(name)
    }

    /// The library that hooks what programs read outside libibverbs. Its name is the installed one
    /// or the one from Cargo.
    fn preload(&self) -> Option<PathBuf> {
        let names = ["libpeerdma-preload.so", "libpeerdma_preload.so"];
        names.iter().map(|name| self.dir.join(name)).find(|file| file.exists())
    }

    /// The library of CUDA's names, likewise.
    fn cuda(&self) -> Option<PathBuf> {
        let names = ["libpeerdma-cuda.so", "libpeerdma_cuda.so"];
        names.iter().map(|name| self.dir.join(name)).find(|file| file.exists())
    }

    /// The library of HSA's names, likewise.
    fn hsa(&self) -> Option<PathBuf> {
        let names = ["libpeerdma-hsa.so", "libpeerdma_hsa.so"];
        names.iter().map(|name| self.dir.join(name)).find(|file| file.exists())
    }

    /// The driver of Level Zero, likewise.
    fn level_zero(&self) -> Option<PathBuf> {
        let names = ["libpeerdma-ze.so", "libpeerdma_ze.so"];
        names.iter().map(|name| self.dir.join(name)).find(|file| file.exists())
    }

    /// The library with an allocator, likewise.
    fn heap(&self) -> Option<PathBuf> {
        let names = ["libpeerdma-heap.so", "libpeerdma_heap.so"];
        names.iter().map(|name| self.dir.join(name)).find(|file| file.exists())
    }

    /// The program and all libraries that are built, as they lie beside each other.
    pub fn all(&self) -> impl Iterator<Item = PathBuf> {
        let beside = [self.preload(), self.cuda(), self.hsa(), self.level_zero(), self.heap()];
        [self.peerdma(), self.library()].into_iter().chain(beside.into_iter().flatten())
    }

    /// Makes a directory for `LD_LIBRARY_PATH` inside `scratch`, with the library under its
    /// sonames.
    pub fn library_dir(&self, scratch: &Scratch) -> PathBuf {
        let dir = scratch.path().join("lib");
        fs::create_dir_all(&dir).expect("a scratch directory is writable");
        for name in SONAMES {
            let link = dir.join(name);
            if !link.exists() {
                symlink(self.library(), &link).expect("a scratch directory takes links");
            }
        }
        dir
    }

    /// Copies everything to `scratch`, readable by every user: a checkout often lies in a home
    /// directory that other users cannot enter.
    pub fn staged(&self, scratch: &Scratch) -> Self {
        let dir = scratch.path().join("bin");
        fs::create_dir_all(&dir).expect("a scratch directory is writable");
        // An installation has this directory; without it `peerdma run` creates one in the user's
        // run-time directory.
        let names = ["libpeerdma.names", "libpeerdma-cuda.names", "libpeerdma-hsa.names"];
        for names in names.map(|name| dir.join(name)) {
            fs::create_dir_all(&names).expect("a scratch directory is writable");
            fs::set_permissions(&names, fs::Permissions::from_mode(0o777))
                .expect("our own directory");
        }
        for file in self.all() {
            let to = dir.join(file.file_name().expect("an artefact has a name"));
            fs::copy(&file, &to).expect("an artefact can be copied");
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("our own file");
        }
        Self { dir }
    }

    /// The value of `LD_PRELOAD` for a program with a libibverbs of its own: our library under the
    /// soname, which the loader then considers loaded.
    pub fn preload_list(&self, scratch: &Scratch) -> PathBuf {
        self.library_dir(scratch).join(SONAMES[0])
    }
}

/// The target directory of this test binary: three levels above `target/PROFILE/deps/test-HASH`.
pub fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("a running program has a path");
    exe.ancestors().nth(3).map_or_else(|| PathBuf::from("target"), Path::to_path_buf)
}

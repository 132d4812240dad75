//! Where `libpeerdma.so` is, and the directory with links to it under the names that programs look
//! for.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Names the directory of `libpeerdma.so`.
const LIB_DIR: &str = "PEERDMA_LIB_DIR";

const LIBRARY: &str = "libpeerdma.so";

/// The name under which verbs programs ask for the library.
pub(super) const VERBS: &str = "libibverbs.so.1";

/// The name by which programs that were built with a hashed copy of the CUDA runtime find another
/// one.
pub(super) const CUDA_RUNTIME: &str = "libcudart.so.12";

/// Names that lead to one library.
struct Names {
    /// The directory of the links, next to the library. (Cargo has a file libpeerdma.d there.)
    directory: &'static str,
    names: &'static [&'static str],
}

/// Every name the library has: one engine, whichever is asked for first.
const VERBS_NAMES: Names = Names {
    directory: "libpeerdma.names",
    names: &[VERBS, "libibverbs.so", "librdmacm.so.1", "librdmacm.so"],
};

/// Every name of CUDA's libraries. They are in a directory of their own: on a machine with a real
/// GPU, a verbs program uses the real libraries.
const CUDA_NAMES: Names = Names {
    directory: "libpeerdma-cuda.names",
    names: &[
        "libcuda.so.1",
        "libcuda.so",
        CUDA_RUNTIME,
        "libcudart.so.13",
        "libcudart.so",
        "libnvidia-ml.so.1",
        "libnvidia-ml.so",
    ],
};

/// Every name of HSA's runtime, likewise. libfabric opens the second.
const HSA_NAMES: Names = Names {
    directory: "libpeerdma-hsa.names",
    names: &["libhsa-runtime64.so.1", "libhsa-runtime64.so"],
};

/// The preload library, as it is installed and as Cargo names it.
const PRELOAD: [&str; 2] = ["libpeerdma-preload.so", "libpeerdma_preload.so"];

/// The library of CUDA's names, as it is installed and as Cargo names it.
const CUDA: [&str; 2] = ["libpeerdma-cuda.so", "libpeerdma_cuda.so"];

/// The library of HSA's names, likewise.
const HSA: [&str; 2] = ["libpeerdma-hsa.so", "libpeerdma_hsa.so"];

/// The driver that the Level Zero loader loads, likewise.
const LEVEL_ZERO: [&str; 2] = ["libpeerdma-ze.so", "libpeerdma_ze.so"];

/// The library that makes sockets rsockets, as it is installed and as Cargo names it.
const RSOCKETS: [&str; 2] = ["librspreload.so.1", "librspreload.so"];

/// The library with an allocator, likewise.
const HEAP: [&str; 2] = ["libpeerdma-heap.so", "libpeerdma_heap.so"];

/// The directory that holds our libraries.
#[derive(Debug)]
pub(super) struct Library {
    directory: PathBuf,
}

/// Why programs cannot be given our library.
#[derive(Debug, thiserror::Error)]
pub(super) enum LibraryError {
    /// It was not found.
    #[error("{LIBRARY} is not in {}; {LIB_DIR} can name its directory", list(.0))]
    NotFound(Vec<PathBuf>),
    /// The library with the names of a GPU driver is missing.
    #[error("{} is not in {}", .0, .1.display())]
    NoNames(&'static str, PathBuf),
    /// The links cannot be made.
    #[error("no directory for the names of {LIBRARY}: {}: {}", .0.display(), .1)]
    Names(PathBuf, io::Error),
}

fn list(directories: &[PathBuf]) -> String {
    let names: Vec<String> = directories.iter().map(|path| path.display().to_string()).collect();
    names.join(" or ")
}

/// Finds the library: in the directory that `PEERDMA_LIB_DIR` names; next to this executable,
/// where Cargo leaves it; or in `../lib`, where an installation has it.
pub(super) fn find() -> Result<Library, LibraryError> {
    let candidates = match environment::var_os(LIB_DIR) {
        Some(path) => vec![PathBuf::from(path)],
        None => {
            let here = env::current_exe().unwrap_or_default();
            let here = here.parent().unwrap_or(Path::new("/"));
            let lib = here.parent().unwrap_or(Path::new("/")).join("lib");
            vec![here.to_owned(), lib.join("peerdma"), lib]
        }
    };
    let found = candidates.iter().find(|path| path.join(LIBRARY).is_file());
    let found = found.and_then(|path| fs::canonicalize(path).ok());
    found.map(|directory| Library { directory }).ok_or(LibraryError::NotFound(candidates))
}

impl Library {
    /// A directory with links to the library under all its names. It is not removed: it is part of
    /// the installation, and made at first use if the installer did not make it. If the user may
    /// not write next to the library, it is among the user's run-time files.
    pub(super) fn names(&self) -> Result<PathBuf, LibraryError> {
        self.links(&VERBS_NAMES, LIBRARY)
    }

    /// The same for CUDA's libraries.
    pub(super) fn cuda_names(&self) -> Result<PathBuf, LibraryError> {
        self.driver_names(&CUDA_NAMES, CUDA)
    }

    /// The same for HSA's.
    pub(super) fn hsa_names(&self) -> Result<PathBuf, LibraryError> {
        self.driver_names(&HSA_NAMES, HSA)
    }

    fn driver_names(
        &self,
        names: &Names,
        library: [&'static str; 2],
    ) -> Result<PathBuf, LibraryError> {
        let found = library.into_iter().find(|name| self.directory.join(name).is_file());
        let none = || LibraryError::NoNames(library[0], self.directory.clone());
        self.links(names, found.ok_or_else(none)?)
    }

    fn links(&self, names: &Names, library: &str) -> Result<PathBuf, LibraryError> {
        let beside = self.directory.join(names.directory);
        let made = if is_listable(&beside) {
            self.link(&beside, names, library)
        } else {
            Err(io::ErrorKind::InvalidFilename.into())
        };
        let Err(error) = made else { return Ok(beside) };
        tracing::debug!(path = %beside.display(), %error, "names: not next to the library");
        let own = self.own_directory(names);
        match self.link_private(&own, names, library) {
            Ok(()) => Ok(own),
            Err(error) => Err(LibraryError::Names(own, error)),
        }
    }

    /// The preload library, if it exists and can be named in a list.
    pub(super) fn preload(&self) -> Option<PathBuf> {
        self.beside(&PRELOAD)
    }

    /// The Level Zero driver, if it exists and can be named in a list.
    pub(super) fn level_zero(&self) -> Option<PathBuf> {
        let found = self.beside(&LEVEL_ZERO)?;
        // The separator in the list of drivers that the loader reads.
        (!found.to_string_lossy().contains(',')).then_some(found)
    }

    /// The library that makes sockets rsockets, if it exists and can be named in a list.
    pub(super) fn rsockets(&self) -> Option<PathBuf> {
        self.beside(&RSOCKETS)
    }

    /// The library with an allocator, if it exists and can be named in a list.
    pub(super) fn heap(&self) -> Option<PathBuf> {
        self.beside(&HEAP)
    }

    fn beside(&self, names: &[&str]) -> Option<PathBuf> {
        names
            .iter()
            .map(|name| self.directory.join(name))
            .find(|path| path.is_file() && is_listable(path))
    }

    /// A directory of this user for this library.
    fn own_directory(&self, names: &Names) -> PathBuf {
        let base = environment::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let base = base.filter(|path| path.is_absolute() && is_listable(path) && path.is_dir());
        let uid = rustix::process::geteuid().as_raw();
        let device = fs::metadata(&self.directory).map_or((0, 0), |data| (data.dev(), data.ino()));
        base.unwrap_or_else(|| PathBuf::from("/tmp"))
            .join(format!("{}-{uid}-{:x}-{:x}", names.directory, device.0, device.1))
    }

    fn link_private(&self, directory: &Path, names: &Names, library: &str) -> io::Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // The owner of the directory decides which library the program loads.
        let data = fs::symlink_metadata(directory)?;
        let private = data.is_dir()
            && data.uid() == rustix::process::geteuid().as_raw()
            && data.mode() & 0o022 == 0;
        if !private {
            return Err(io::Error::other("exists, and is not exclusively this user's"));
        }
        self.link(directory, names, library)
    }

    /// Makes the links that do not exist yet or lead elsewhere. Others may do the same at the same
    /// time.
    fn link(&self, directory: &Path, names: &Names, library: &str) -> io::Result<()> {
        match fs::create_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let is_beside = directory.parent() == Some(&self.directory);
        let target =
            if is_beside { Path::new("..").join(library) } else { self.directory.join(library) };
        for name in names.names {
            let link = directory.join(name);
            if fs::read_link(&link).is_ok_and(|now| now == target) {
                continue;
            }
            let new = directory.join(format!(".{name}.{}", std::process::id()));
            std::os::unix::fs::symlink(&target, &new)?;
            if let Err(error) = fs::rename(&new, &link) {
                let _ = fs::remove_file(&new);
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Whether a path can stand in `LD_PRELOAD`, which has no way to quote.
fn is_listable(path: &Path) -> bool {
    !path.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_the_library_however_often_they_are_made() {
        let directory = env::temp_dir().join(format!("peerdma-names-test-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(LIBRARY), "").unwrap();
        let library = Library { directory: directory.clone() };
        let names = library.names().unwrap();
        assert_eq!(library.names().unwrap(), names);
        let each = VERBS_NAMES.names.iter();
        let found: Vec<bool> = each.map(|name| names.join(name).is_file()).collect();
        let entries = fs::read_dir(&names).unwrap().count();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!((found, entries), (vec![true; 4], 4));
    }
}

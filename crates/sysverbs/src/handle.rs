//! A library that is open: its symbols by name and version.

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The loader did not load it.
    #[error("{reason}")]
    Dlopen {
        /// The loader's own words.
        reason: String,
    },
    /// It is older than this interface.
    #[error("{library} has no {symbol} in version {version}: rdma-core is too old")]
    Symbol {
        /// Which library.
        library: PathBuf,
        /// The function.
        symbol: String,
        /// The version of the function.
        version: String,
    },
    /// A path with a zero byte in it.
    #[error("a path has no zero byte")]
    Path,
}

/// Declares a table of functions, and how a library's are found: those that it must have, and those
/// that came later.
macro_rules! functions {
    (
        $(#[$meta:meta])*
        pub(crate) struct $table:ident {
            always {
                $($name:ident, $version:literal: fn($($arg:ty),*) $(-> $ret:ty)?;)*
            }
            later {
                $($late:ident, $late_version:literal: fn($($late_arg:ty),*) $(-> $late_ret:ty)?;)*
            }
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub(crate) $late: Option<unsafe extern "C" fn($($late_arg),*) $(-> $late_ret)?>,)*
        }

        impl $table {
            pub(crate) fn find(
                library: &$crate::handle::Handle,
            ) -> Result<Self, $crate::handle::LoadError> {
                Ok(Self {
                    $($name: {
                        let found = library.need(stringify!($name), $version)?;
                        // SAFETY: the function of this name and version has this signature; the
                        // version is what keeps it so. The library is never unloaded.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                            >(found)
                        }
                    },)*
                    $($late: library.find(stringify!($late), $late_version).map(|found| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($late_arg),*) $(-> $late_ret)?,
                            >(found)
                        }
                    }),)*
                })
            }
        }
    };
}
pub(crate) use functions;

/// An open library, which is never closed: threads of it may run.
#[derive(Debug)]
pub(crate) struct Handle {
    raw: NonNull<c_void>,
    path: PathBuf,
}

// SAFETY: the loader may be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| LoadError::Path)?;
        // SAFETY: a string of C. Constructors of a library of the system run, as they would if the
        // program were linked with it.
        let raw = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let raw = NonNull::new(raw).ok_or_else(|| LoadError::Dlopen { reason: reason(path) })?;
        Ok(Self { raw, path: path.to_owned() })
    }

    pub(crate) fn find(&self, symbol: &str, version: &str) -> Option<*mut c_void> {
        let c_string = |text: &str| CString::new(text).expect("names have no zero byte");
        let (name, version) = (c_string(symbol), c_string(version));
        // SAFETY: the handle is open and both are strings of C.
        let found = unsafe { libc::dlvsym(self.raw.as_ptr(), name.as_ptr(), version.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    /// Whether there is a symbol of this name, in any version.
    pub(crate) fn has(&self, name: &CStr) -> bool {
        // SAFETY: the handle is open and the name ends with a zero byte.
        !unsafe { libc::dlsym(self.raw.as_ptr(), name.as_ptr()) }.is_null()
    }

    pub(crate) fn need(&self, symbol: &str, version: &str) -> Result<*mut c_void, LoadError> {
        self.find(symbol, version).ok_or_else(|| LoadError::Symbol {
            library: self.path.clone(),
            symbol: symbol.to_owned(),
            version: version.to_owned(),
        })
    }
}

/// What the loader says of its last failure in this thread.
fn reason(path: &Path) -> String {
    // SAFETY: it takes nothing.
    let said: *const c_char = unsafe { libc::dlerror() };
    if said.is_null() {
        return format!("{} was not loaded", path.display());
    }
    // SAFETY: it is a string of C that is valid until this thread's next call of the loader.
    let said = unsafe { CStr::from_ptr(said) };
    OsStr::from_bytes(said.to_bytes()).to_string_lossy().into_owned()
}

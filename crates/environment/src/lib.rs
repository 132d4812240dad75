//! What the user who started the program tells the library: variables, and the files they name.
//!
//! A program that has more rights than the user who started it (set-user-ID, set-group-ID, file
//! capabilities, a transition of a security module) must not be told by that user which files to
//! read and write. The kernel reports that it is such a program (`AT_SECURE`), and for such a
//! program this crate reads no variables. All other crates ask this crate alone; `cargo xtask
//! deps-check` enforces it.
//!
//! ```
//! assert_eq!(environment::var("PEERDMA_NOBODY_SETS_THIS"), None);
//! ```
//!
//! Files that are read without being named by a variable lie in `/etc`, which belongs to the
//! administrator.

mod configuration;
mod file;
mod secure;

pub use configuration::{choose_gpu, configuration};
pub use file::NamedFile;
pub use secure::is_secure;

use std::ffi::OsString;

/// The value of a variable. `None` if it is not set, if it is empty, and in a program that runs
/// with rights that its user does not have.
#[doc(alias = "secure_getenv")]
pub fn var_os(name: &str) -> Option<OsString> {
    if is_secure() {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The same as text; also `None` if it is not text.
pub fn var(name: &str) -> Option<String> {
    var_os(name)?.into_string().ok()
}

/// Whether a variable is set to the empty string: some users ask for none of something in this way.
pub fn is_empty(name: &str) -> bool {
    !is_secure() && std::env::var_os(name).is_some_and(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_read_by_its_name() {
        assert_eq!(
            var_os("CARGO_PKG_NAME"),
            Some("peerdma-environment".into()),
            "Cargo sets it for tests"
        );
        assert_eq!(var("CARGO_PKG_NAME").as_deref(), Some("peerdma-environment"));
    }
}

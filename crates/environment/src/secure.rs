//! Whether the program has rights that its user does not have.

#![expect(unsafe_code, reason = "one word of the auxiliary vector")]

use std::sync::OnceLock;

/// Whether the kernel started this program in secure mode: its effective ids are not the real ones,
/// its file has capabilities, or a security module reports it.
#[doc(alias = "AT_SECURE")]
pub fn is_secure() -> bool {
    static SECURE: OnceLock<bool> = OnceLock::new();
    *SECURE.get_or_init(|| {
        // SAFETY: it reads a table that the kernel made for this process, and has no preconditions.
        let word = unsafe { libc::getauxval(libc::AT_SECURE) };
        word != 0
    })
}

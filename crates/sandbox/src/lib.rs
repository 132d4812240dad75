//! Refusals by a sandbox: a seccomp filter, Yama, a limit, a namespace that may not be made, an
//! address family that is forbidden.
//!
//! Such a refusal is no fault of the program, and its reason is not in the call that failed: the
//! kernel says EPERM for most of them. `peerdma doctor` reads what there is to read about it. So
//! each of our refusals that may come from a sandbox ends with the same [`HINT`]:
//!
//! ```text
//!   process_vm_readv is not available here: Function not implemented
//!                                  `- what was refused: the crate that asked knows
//!   (`peerdma doctor` shows what this host permits)
//!                                  `- what can tell why: always the same
//! ```
//!
//! ```
//! let error = std::io::Error::from_raw_os_error(1);
//! let words = format!("no userfaultfd: {error}{}", sandbox::hint(error.raw_os_error()));
//! assert!(words.ends_with(" (`peerdma doctor` shows what this host permits)"));
//! ```
//!
//! It looks at nothing: that is for `doctor`, which programs need not link.

/// What follows the words of a refusal.
pub const HINT: &str = " (`peerdma doctor` shows what this host permits)";

/// The numbers by which Linux's sandboxes refuse, the same on x86-64 and aarch64:
/// EPERM (seccomp, capabilities, Yama, locked memory), EACCES (security modules, modes of files),
/// ENOSYS (seccomp, kernels without the call), ENOSPC (namespaces beyond `user.max_*`),
/// EAFNOSUPPORT (address families).
const REFUSALS: [i32; 5] = [1, 13, 38, 28, 97];

/// [`HINT`] if a sandbox may be why a call of the kernel failed with this errno; otherwise nothing.
pub fn hint(errno: impl Into<Option<i32>>) -> &'static str {
    match errno.into() {
        Some(number) if REFUSALS.contains(&number) => HINT,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_follows_refusals_and_no_other_errors() {
        for refusal in REFUSALS {
            assert_eq!(hint(refusal), HINT, "{refusal}");
        }
        // A process that is gone, memory that is not mapped, a call that is to be repeated.
        for fault in [3, 14, 11] {
            assert_eq!(hint(fault), "", "{fault}");
        }
        assert_eq!(hint(std::io::Error::other("no number").raw_os_error()), "");
    }
}

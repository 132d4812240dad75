//! How a verb that is not implemented refuses, by the convention of the verb.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::errno;
use crate::logging;

/// For calls that return 0 or the errno.
pub(crate) fn errno(verb: &'static str, why: &'static str) -> c_int {
    say(verb, why);
    errno::set(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// For calls that return -1 and set errno.
pub(crate) fn minus_one(verb: &'static str, why: &'static str) -> isize {
    say(verb, why);
    errno::set(libc::EOPNOTSUPP);
    -1
}

/// For calls that return a pointer.
pub(crate) fn null(verb: &'static str, why: &'static str) -> *mut c_void {
    say(verb, why);
    errno::set(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// For calls that cannot fail. They may run while a library is being loaded, so this does nothing.
pub(crate) fn silent(_verb: &'static str, _why: &'static str) -> usize {
    0
}

fn say(verb: &'static str, why: &'static str) {
    logging::init();
    tracing::info!(target: "peerdma::refusal", "{verb}: {why}");
}

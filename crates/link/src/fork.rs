//! What a child does with inherited descriptors.
#![allow(unsafe_code, reason = "closes descriptors by number")]

use descriptors::Inherited;

/// An owner of descriptors that can name them.
///
/// # Safety
///
/// `inherited` adds only descriptors that the value owns.
pub(crate) unsafe trait OwnsFds {
    fn inherited(&self, out: &mut Vec<Inherited>);
}

/// For the child after a fork: closes the descriptors of `owner`, and leaks the rest of it without
/// running its destructors.
pub(crate) fn abandon(owner: impl OwnsFds) {
    let mut fds = Vec::new();
    owner.inherited(&mut fds);
    std::mem::forget(owner);
    for fd in fds {
        // SAFETY: its owner is forgotten, so that nothing uses or closes it later.
        unsafe { fd.close() };
    }
}

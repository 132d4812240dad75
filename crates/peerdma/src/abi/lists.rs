//! Lists that a program passes: of work requests, and of the memory of each.

use std::ffi::c_int;

use iba::LKey;
use transport::PostError;
use transport::wr::{self, SgList};

use super::types::wr::{RecvWr, SendWr, Sge};

/// A request that names the next one of its list.
pub(crate) trait Linked {
    fn next(&self) -> *mut Self;
}

impl Linked for SendWr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Linked for RecvWr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// Posts each request of a list, until one is refused; `bad` then points to that one.
///
/// The list is valid to its end, and there is room for a pointer at `bad`.
#[inline]
pub(crate) unsafe fn each<W: Linked>(
    first: *mut W,
    bad: *mut *mut W,
    mut post: impl FnMut(&mut W) -> Result<(), c_int>,
) -> c_int {
    let mut next = first;
    // SAFETY: the caller's promise.
    while let Some(c) = unsafe { next.as_mut() } {
        if let Err(errno) = post(c) {
            if !bad.is_null() {
                // SAFETY: the caller's promise.
                unsafe { bad.write(next) };
            }
            return errno;
        }
        next = c.next();
    }
    0
}

/// The errno of a request that a queue does not take.
pub(crate) fn refused(queue: &str, error: &PostError) -> c_int {
    tracing::info!(target: "peerdma::refusal", "ibv_post_{queue}: {error}");
    match error {
        PostError::Full(_) => libc::ENOMEM,
        PostError::Dead => libc::EIO,
        _ => libc::EINVAL,
    }
}

/// A receive in the engine's form.
///
/// The list it names is valid.
#[inline]
pub(crate) unsafe fn recv_wr(c: &RecvWr) -> Result<wr::RecvWr, c_int> {
    // SAFETY: the caller's promise.
    let sges = unsafe { sg_list(c.sg_list, c.num_sge) }?;
    Ok(wr::RecvWr { wr_id: c.wr_id, sges })
}

/// More than any queue of ours can be created for: a longer list is refused unread.
pub(crate) const MOST_SGES: usize = 1 << 10;

/// The length of a list, unless it cannot be one.
#[inline]
pub(crate) fn length_of(list: *const Sge, count: c_int) -> Result<usize, c_int> {
    match usize::try_from(count) {
        Ok(count) if count == 0 || count <= MOST_SGES && !list.is_null() => Ok(count),
        _ => {
            tracing::info!(target: "peerdma::refusal", "a list of {count} elements at {list:p}");
            Err(libc::EINVAL)
        }
    }
}

/// A scatter/gather list of `count` valid elements.
#[inline]
pub(crate) unsafe fn sg_list(list: *const Sge, count: c_int) -> Result<SgList, c_int> {
    let mut sges = SgList::new();
    // SAFETY: the caller's promise.
    unsafe { extend(&mut sges, list, count) }?;
    Ok(sges)
}

/// Appends `count` valid elements to a scatter/gather list.
#[inline]
pub(crate) unsafe fn extend(
    sges: &mut SgList,
    list: *const Sge,
    count: c_int,
) -> Result<(), c_int> {
    for place in 0..length_of(list, count)? {
        // SAFETY: the caller's promise.
        let c = unsafe { list.add(place) };
        // SAFETY: as above.
        sges.push(sge(unsafe { &*c }));
    }
    Ok(())
}

/// An element in the engine's form.
#[inline]
pub(crate) fn sge(c: &Sge) -> wr::Sge {
    wr::Sge { addr: c.addr, length: c.length, lkey: LKey(c.lkey) }
}

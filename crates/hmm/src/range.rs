//! Ranges of a mirror, checked.

use crate::PAGE;
use crate::error::{Error, Result};

/// Offsets of the pages that `len` bytes at `offset` of a mirror of `total` bytes touch.
pub(crate) fn touched(call: &'static str, total: u64, offset: u64, len: u64) -> Result<Pages> {
    let end = offset.checked_add(len).filter(|end| *end <= total);
    let Some(end) = end else {
        return Err(Error::Range { call, offset, len, why: "beyond the end of the mirror" });
    };
    Ok(Pages { next: offset / PAGE * PAGE, end })
}

/// The same for a call on whole pages.
pub(crate) fn whole(call: &'static str, total: u64, offset: u64, len: u64) -> Result<Pages> {
    if !offset.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
        return Err(Error::Range { call, offset, len, why: "not of whole pages" });
    }
    touched(call, total, offset, len)
}

/// Offsets of pages, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    next: u64,
    end: u64,
}

impl Iterator for Pages {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let page = self.next;
        if page >= self.end {
            return None;
        }
        self.next += PAGE;
        Some(page)
    }
}

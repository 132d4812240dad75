//! The boundary of calls from C: what each returns, and the text of the last error.

use std::cell::RefCell;
use std::ffi::CString;

pub(crate) use umd::boundary::{Calls, Function, caught};

use crate::status::{Refusal, Result, Status};

/// The log target of refusals.
pub(crate) const LOG: &str = "peerdma::level-zero";

thread_local! {
    /// The last refusal of this thread.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of a call.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Result<()>) -> i32 {
    match caught(name, body) {
        Ok(()) => 0,
        Err(refusal) => {
            if refusal.status != Status::NotReady {
                tracing::info!(target: LOG, "{name}: {refusal}");
                keep(name, &refusal);
            }
            refusal.status as i32
        }
    }
}

#[cold]
fn keep(name: &str, refusal: &Refusal) {
    let text = CString::new(format!("{name}: {}", refusal.what)).unwrap_or_default();
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// The last refusal of this thread, until its next.
pub(crate) fn last() -> *const std::ffi::c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// [`umd::calls`] with this boundary.
macro_rules! calls {
    ($table:ident: $($functions:tt)*) => {
        umd::calls! { $table by $crate::boundary::call: $($functions)* }
    };
}
pub(crate) use calls;

//! The boundary of calls from C: what each returns.

pub(crate) use umd::boundary::{Calls, Function, caught};

use crate::status::{Result, Status};

/// The log target of refusals.
pub(crate) const LOG: &str = "peerdma::hsa";

/// Runs the body of a call.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Result<()>) -> i32 {
    match caught(name, body) {
        Ok(()) => 0,
        Err(refusal) => {
            if refusal.status != Status::INFO_BREAK {
                tracing::info!(target: LOG, "{name}: {refusal}");
            }
            refusal.status.0
        }
    }
}

/// [`umd::calls`] with this boundary.
macro_rules! calls {
    ($table:ident: $($functions:tt)*) => {
        umd::calls! { $table by $crate::boundary::call: $($functions)* }
    };
}
pub(crate) use calls;

//! The boundary of calls from C: what each returns.

pub(crate) use umd::boundary::{Calls, Function, caught};

use crate::status::{Result, Status};

/// The log target of refusals.
pub(crate) const LOG: &str = "peerdma::cuda";

/// Runs the body of a call of the driver.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Result<()>) -> i32 {
    match caught(name, body) {
        Ok(()) => 0,
        Err(refusal) => {
            if refusal.status != Status::NotReady {
                tracing::info!(target: LOG, "{name}: {refusal}");
            }
            refusal.status.number()
        }
    }
}

/// [`umd::calls`] with the driver's boundary, unless another is named.
macro_rules! calls {
    ($(#[$about:meta])* $table:ident by $call:path: $($functions:tt)*) => {
        umd::calls! { $(#[$about])* $table by $call: $($functions)* }
    };
    ($(#[$about:meta])* $table:ident: $($functions:tt)*) => {
        umd::calls! { $(#[$about])* $table by $crate::boundary::call: $($functions)* }
    };
}
pub(crate) use calls;

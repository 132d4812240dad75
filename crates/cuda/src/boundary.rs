//! Where calls come in: what each returns, and where a panic stops.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::status::{Refusal, Result, Status};

/// Where refusals are logged.
pub(crate) const LOG: &str = "peerdma::cuda";

/// The address of a function of C.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Function(pub(crate) *const ());

// SAFETY: an address of code, which never changes.
unsafe impl Sync for Function {}
// SAFETY: as above.
unsafe impl Send for Function {}

/// Names and functions of one part of a library.
pub(crate) type Calls = &'static [(&'static str, Function)];

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

/// Runs a body; a panic in it is a refusal.
pub(crate) fn caught<T>(name: &'static str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    gpu::weather::operation(name);
    // What the body held is behind locks that ignore poison: each is held for one change of one table.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        tracing::error!(target: LOG, "{name}: panic; this is a bug");
        Err(Refusal::new(Status::Unknown, "panic"))
    })
}

/// Functions of C, and the table of them.
///
/// Each has the name that the header gives it, and a body that answers a `Result<()>`: that of [`call`], or of the function that
/// the table names `by` another library's boundary. What it takes are numbers and the types of [`crate::c`].
macro_rules! calls {
    ($(#[$about:meta])* $table:ident: $($functions:tt)*) => {
        $crate::boundary::calls! { $(#[$about])* $table by $crate::boundary::call: $($functions)* }
    };
    ($(#[$about:meta])* $table:ident by $call:path: $(
        $(#[$doc:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block
    )*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case, reason = "names of C")]
            pub(crate) extern "C" fn $name($($argument: $type),*) -> core::ffi::c_int {
                $call(stringify!($name), move || $body)
            }
        )*

        $(#[$about])*
        pub(crate) const $table: $crate::boundary::Calls = &[
            $((stringify!($name), $crate::boundary::Function($name as *const ()))),*
        ];
    };
}
pub(crate) use calls;

//! Where calls enter: where a panic stops, and tables of functions.

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{PoisonError, RwLock};

use crate::refusal::{Error, Kind, Refusal};

/// The log target for what all drivers share.
pub(crate) const LOG: &str = "peerdma::gpu";

/// The address of a function of C.
#[derive(Clone, Copy)]
#[repr(transparent)]
#[expect(clippy::exhaustive_structs, reason = "tables of functions are made of them")]
pub struct Function(pub *const ());

// SAFETY: an address of code, which never changes.
unsafe impl Sync for Function {}
// SAFETY: as above.
unsafe impl Send for Function {}

/// Names and functions of one part of a library.
pub type Calls = &'static [(&'static str, Function)];

/// Runs the body of a call; a panic in it is a refusal.
///
/// # Errors
///
/// What the body answers.
pub fn caught<T, E: Error>(
    name: &'static str,
    body: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    gpu::weather::operation(name);
    // The locks that the body held ignore poison: each is held for one change of one table.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        tracing::error!(target: LOG, "{name}: panic; this is a bug");
        Err(Refusal::new(Kind::Unknown, "panic").into())
    })
}

/// Whether this is the first message about this name: one line for each function that a program
/// calls and nothing serves.
pub fn is_first(name: &'static CStr) -> bool {
    static SAID: RwLock<Vec<&CStr>> = RwLock::new(Vec::new());
    if SAID.read().unwrap_or_else(PoisonError::into_inner).contains(&name) {
        return false;
    }
    let mut said = SAID.write().unwrap_or_else(PoisonError::into_inner);
    let is_new = !said.contains(&name);
    if is_new {
        said.push(name);
    }
    is_new
}

/// Functions of C, and the table of them.
///
/// Each has the name that the header gives it, and a body that answers a `Result<()>`: that of the
/// function that the table names `by` a library's boundary. What it takes are numbers and the types
/// of [`crate::c`].
#[macro_export]
macro_rules! calls {
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

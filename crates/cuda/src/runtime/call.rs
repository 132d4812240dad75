//! Running and failing calls, and calling the driver.

use std::borrow::Cow;
use std::ffi::{c_int, c_void};

use super::{error, thread};
use crate::begin;
use crate::boundary::{LOG, caught};
use crate::status::Refusal;

/// A version of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// `libcudart.so.12`, as of 12.9.
    Twelve,
    /// `libcudart.so.13`, as of 13.5.
    Thirteen,
}

/// `cudaErrorInvalidPitchValue`
pub(super) const INVALID_PITCH: c_int = 12;
/// `cudaErrorInvalidSymbol`
pub(super) const INVALID_SYMBOL: c_int = 13;
/// `cudaErrorInvalidMemcpyDirection`
pub(super) const INVALID_DIRECTION: c_int = 21;
/// `cudaErrorInsufficientDriver`
pub(super) const INSUFFICIENT_DRIVER: c_int = 35;
/// `cudaErrorInvalidDeviceFunction`
pub(super) const INVALID_DEVICE_FUNCTION: c_int = 98;

/// Why a call is refused: the number, and the words if the driver has not logged them already.
pub(crate) struct Failure {
    pub(super) number: c_int,
    what: Option<Cow<'static, str>>,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(super) fn new(number: c_int, what: impl Into<Cow<'static, str>>) -> Self {
        Self { number, what: Some(what.into()) }
    }
}

/// Errors are the driver's numbers, except the few above.
impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.status.number(), refusal.what)
    }
}

/// The result of a function of the driver.
pub(super) fn done(number: c_int) -> Result<()> {
    if number == 0 { Ok(()) } else { Err(Failure { number, what: None }) }
}

/// Runs the body of a call that needs no driver. Its failure is the thread's last error.
pub(super) fn call(name: &'static str, body: impl FnOnce() -> Result<()>) -> c_int {
    let failure = match caught(name, || Ok::<_, Refusal>(body())) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(refusal) => refusal.into(),
    };
    if let Some(what) = failure.what {
        tracing::info!(target: LOG, "{name}: {what} ({})", error::name(failure.number));
    }
    error::set(failure.number);
    failure.number
}

/// Runs the body of a call that needs the driver: `cuInit` is called first.
pub(super) fn initialized(name: &'static str, body: impl FnOnce() -> Result<()>) -> c_int {
    call(name, || {
        begin::init()?;
        body()
    })
}

/// Runs the body of a call that needs a context. If the thread has none, the primary context of its
/// device is made current.
pub(super) fn in_context(name: &'static str, body: impl FnOnce() -> Result<()>) -> c_int {
    call(name, || {
        thread::ready(begin::init()?)?;
        body()
    })
}

/// The driver's function with this name and type as programs resolve it, with the patches of their
/// hooks.
macro_rules! exported {
    ($name:ident($($argument:expr => $type:ty),* $(,)?)) => {{
        match $crate::runtime::call::driver_function(stringify!($name)) {
            Some(function) => {
                // SAFETY: a function of C of this name, whose arguments these are in `cuda.h`.
                let function = unsafe {
                    std::mem::transmute::<
                        *const std::ffi::c_void,
                        extern "C" fn($($type),*) -> std::ffi::c_int,
                    >(function)
                };
                $crate::runtime::call::done(function($($argument),*))
            }
            None => Err($crate::status::unsupported(concat!(stringify!($name), " is not served")).into()),
        }
    }};
}
pub(super) use exported;

/// A function of the driver: the one that programs resolve, or the implementation behind it if the
/// library is not loaded.
pub(super) fn driver_function(symbol: &str) -> Option<*const c_void> {
    let own = || crate::driver::find(symbol).map(|function| function.0.cast());
    crate::exported::driver_function(symbol).or_else(own)
}

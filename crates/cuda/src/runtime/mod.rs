//! `libcudart.so.12` and `libcudart.so.13`: the runtime, a thin face of the driver.
//!
//! A thread works on its device's primary context, or on whatever context the program has made
//! current by the driver. Work is passed to the functions of [`crate::driver`]; those that allocate
//! and free are called as programs find them ([`exported`]), so that a hook of a program's on
//! `cuMemAlloc` sees `cudaMalloc` as well.

mod device;
mod error;
mod event;
mod host;
mod ipc;
mod kernel;
mod memcpy;
mod memcpy3d;
mod memory;
mod pool;
mod properties;
mod stream;
mod thread;
mod version;

use std::borrow::Cow;
use std::ffi::{c_int, c_void};

use crate::boundary::{Calls, Function, LOG, caught};
use crate::process;
use crate::status::Refusal;

/// A version of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// `libcudart.so.12`, as of 12.9.
    Twelve,
    /// `libcudart.so.13`, as of 13.5.
    Thirteen,
}

/// All that is the same in both.
const ALL: &[Calls] = &[
    device::CALLS,
    device::QUERIES,
    error::CALLS,
    event::CALLS,
    host::CALLS,
    ipc::CALLS,
    kernel::CALLS,
    memcpy::CALLS,
    memcpy3d::CALLS,
    memory::CALLS,
    memory::QUERIES,
    pool::CALLS,
    stream::CALLS,
    thread::CALLS,
    thread::QUERIES,
    version::CALLS,
    version::QUERIES,
];

/// What only one of them has, or has in another form.
const ONLY_12: &[Calls] = &[
    event::ONLY_12,
    memcpy::ONLY_12,
    memory::ONLY_12,
    memory::POINTERS_12,
    properties::ONLY_12,
    stream::ONLY_12,
    thread::ONLY_12,
    version::ONLY_12,
];
const ONLY_13: &[Calls] = &[
    memcpy::ONLY_13,
    memory::ONLY_13,
    memory::POINTERS_13,
    properties::ONLY_13,
    stream::ONLY_13,
    version::ONLY_13,
];

/// What is not a function of numbers that answers one.
const OTHERS: &[Calls] = &[error::TEXTS, kernel::REGISTRATION];

/// `cudaErrorInvalidPitchValue`
const INVALID_PITCH: c_int = 12;
/// `cudaErrorInvalidSymbol`
const INVALID_SYMBOL: c_int = 13;
/// `cudaErrorInvalidMemcpyDirection`
const INVALID_DIRECTION: c_int = 21;
/// `cudaErrorInsufficientDriver`
const INSUFFICIENT_DRIVER: c_int = 35;
/// `cudaErrorInvalidDeviceFunction`
const INVALID_DEVICE_FUNCTION: c_int = 98;

/// Why a call is refused: the number, and the words if the driver has not said them already.
pub(crate) struct Failure {
    number: c_int,
    what: Option<Cow<'static, str>>,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    fn new(number: c_int, what: impl Into<Cow<'static, str>>) -> Self {
        Self { number, what: Some(what.into()) }
    }
}

/// Errors are the driver's numbers, but for the few above.
impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.status.number(), refusal.what)
    }
}

/// What a function of the driver answered.
fn done(number: c_int) -> Result<()> {
    if number == 0 { Ok(()) } else { Err(Failure { number, what: None }) }
}

/// Runs the body of a call that needs nothing. What it fails with is the thread's last error.
fn call(name: &'static str, body: impl FnOnce() -> Result<()>) -> c_int {
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
fn initialized(name: &'static str, body: impl FnOnce() -> Result<()>) -> c_int {
    call(name, || {
        process::init()?;
        body()
    })
}

/// Runs the body of a call that needs a context: that of the thread's device is made current if the
/// thread has none.
fn in_context(name: &'static str, body: impl FnOnce() -> Result<()>) -> c_int {
    call(name, || {
        thread::ready(process::init()?)?;
        body()
    })
}

/// The function of the driver of this name and type as programs find it, and as their hooks have
/// patched it.
macro_rules! exported {
    ($name:ident($($argument:expr => $type:ty),* $(,)?)) => {{
        match $crate::runtime::driver_function(stringify!($name)) {
            Some(function) => {
                // SAFETY: a function of C of this name, whose arguments these are in `cuda.h`.
                let function = unsafe {
                    std::mem::transmute::<
                        *const std::ffi::c_void,
                        extern "C" fn($($type),*) -> std::ffi::c_int,
                    >(function)
                };
                $crate::runtime::done(function($($argument),*))
            }
            None => Err($crate::status::unsupported(concat!(stringify!($name), " is not served")).into()),
        }
    }};
}
use exported;

/// A function of the driver: the one that programs find, or, if no program does, the one behind it.
fn driver_function(symbol: &str) -> Option<*const c_void> {
    let own = || crate::driver::find(symbol).map(|function| function.0.cast());
    crate::door::driver_function(symbol).or_else(own)
}

/// The function of a name. The form for the stream of a thread is the same: work is done in order
/// either way.
pub(crate) fn find(library: Library, symbol: &str) -> Option<Function> {
    let plain = crate::names::plain(symbol);
    let only = match library {
        Library::Twelve => ONLY_12,
        Library::Thirteen => ONLY_13,
    };
    if version::is_refused(library) && !version::NEEDS_NO_DRIVER.contains(&plain) {
        return Some(version::REFUSAL);
    }
    let mut served = [only, ALL, OTHERS].into_iter().flatten().copied().flatten();
    served.find(|(name, _)| *name == plain).map(|(_, function)| *function)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(library: Library) -> impl Iterator<Item = &'static str> {
        let only = match library {
            Library::Twelve => ONLY_12,
            Library::Thirteen => ONLY_13,
        };
        let all = [only, ALL, OTHERS].into_iter().flatten().copied().flatten();
        all.map(|(name, _)| *name)
    }

    #[test]
    fn no_name_is_served_twice_and_each_is_a_name_of_its_library() {
        let list = include_str!("../../names/runtime.txt");
        for (library, number) in [(Library::Twelve, "12"), (Library::Thirteen, "13")] {
            let known: Vec<_> = list
                .lines()
                .filter(|line| line.split(' ').skip(1).any(|version| version == number))
                .filter_map(|line| line.split(' ').next())
                .collect();
            crate::names::are_served_once(served(library), &known);
        }
    }

    #[test]
    fn a_form_for_the_threads_stream_is_the_plain_one() {
        let at = |name: &str| find(Library::Twelve, name).map(|function| function.0);
        assert!(at("cudaMemcpyAsync").is_some());
        assert_eq!(at("cudaMemcpyAsync_ptsz"), at("cudaMemcpyAsync"));
        assert_eq!(at("cudaMemcpy_ptds"), at("cudaMemcpy"));
    }
}

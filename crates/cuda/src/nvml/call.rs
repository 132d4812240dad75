//! Running calls, refusals, and handles of GPUs.

use std::borrow::Cow;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::boundary::{LOG, caught};
use crate::c::Out;
use crate::machine::{self, Device};
use crate::status::{Refusal, Status};

/// The return codes of calls that fail.
#[doc(alias = "nvmlReturn_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NotFound = 6,
    InsufficientSize = 7,
    GpuIsLost = 15,
    VersionMismatch = 25,
    Unknown = 999,
}

/// Why a call is refused.
pub(crate) struct Failure {
    code: Code,
    what: Cow<'static, str>,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: Code, what: impl Into<Cow<'static, str>>) -> Self {
        Self { code, what: what.into() }
    }
}

/// The NVML code for a refusal of the shared code.
impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal.status {
            Status::InvalidValue => Code::InvalidArgument,
            Status::NotSupported => Code::NotSupported,
            Status::NotFound => Code::NotFound,
            Status::DeviceUnavailable => Code::GpuIsLost,
            _ => Code::Unknown,
        };
        Self { code, what: refusal.what }
    }
}

/// Runs the body of a call that is valid before `nvmlInit`.
pub(super) fn call(name: &'static str, body: impl FnOnce() -> Result<()>) -> c_int {
    match caught(name, || Ok::<_, Refusal>(body())) {
        Ok(Ok(())) => 0,
        Ok(Err(Failure { code, what })) => {
            tracing::info!(target: LOG, "{name}: {what} ({code:?})");
            code as c_int
        }
        Err(_) => Code::Unknown as c_int,
    }
}

/// Runs the body of a call between `nvmlInit` and `nvmlShutdown`.
pub(super) fn initialized(name: &'static str, body: impl FnOnce() -> Result<()>) -> c_int {
    call(name, || {
        if USERS.load(Ordering::Relaxed) == 0 {
            return Err(Failure::new(Code::Uninitialized, "nvmlInit was not called"));
        }
        body()
    })
}

/// The number of `nvmlInit` calls without their `nvmlShutdown`.
pub(super) static USERS: AtomicU32 = AtomicU32::new(0);

/// Handles look like addresses of structures, but nothing is mapped there.
const FIRST_HANDLE: u64 = 0x6000_0000_0000;
const STEP: u64 = 64;

/// The handle of a GPU.
pub(super) fn handle(index: usize) -> u64 {
    FIRST_HANDLE + STEP * index as u64
}

/// The GPU of a handle, and its index.
pub(super) fn device(handle: u64) -> Result<(usize, &'static Device)> {
    let distance = handle.checked_sub(FIRST_HANDLE).filter(|distance| distance % STEP == 0);
    let index = distance.and_then(|distance| usize::try_from(distance / STEP).ok());
    let found = index.and_then(|index| Some((index, machine::devices().get(index)?)));
    found.ok_or_else(|| {
        Failure::new(Code::InvalidArgument, format!("{handle:#x} is not a handle of a GPU"))
    })
}

/// Stores a string in a buffer of `len` bytes.
pub(super) fn put_text(out: Out<c_char>, text: &str, len: u32) -> Result<()> {
    out.check()?;
    if text.len() >= len as usize {
        let what = format!("{len} bytes have no room for {text:?}");
        return Err(Failure::new(Code::InsufficientSize, what));
    }
    Ok(out.put_text(text, len as usize)?)
}

/// Checks the version word of a structure that a call fills.
pub(super) fn check_version(first: Out<u32>, version: u32) -> Result<()> {
    first.check()?;
    let given = first.input().get()?;
    if given == version {
        return Ok(());
    }
    let what = format!("a structure of version {given:#x}: {version:#x} is served");
    Err(Failure::new(Code::VersionMismatch, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_names_one_gpu_or_none() {
        assert_eq!(device(handle(0)).ok().map(|(index, _)| index), Some(0));
        for wrong in [0, 1, handle(0) + 1, handle(0) - STEP, handle(1 << 40), u64::MAX] {
            let refused = device(wrong).err().map(|failure| failure.code);
            assert_eq!(refused, Some(Code::InvalidArgument), "{wrong:#x}");
        }
    }
}

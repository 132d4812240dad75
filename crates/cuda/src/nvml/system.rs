//! Initialisation, shutdown, versions, and names of errors.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::Ordering;

use super::call::{Code, Failure, Result, USERS, call, initialized, put_text};
use crate::boundary::calls;
use crate::c::Out;
use crate::machine;

/// The version of the driver. No NVIDIA release has this version.
pub const DRIVER_VERSION: &str = "600.00";

/// Number and text of each error.
const ERRORS: &[(c_int, &CStr)] = &[
    (0, c"Success"),
    (1, c"Uninitialized"),
    (2, c"Invalid Argument"),
    (3, c"Not Supported"),
    (4, c"Insufficient Permissions"),
    (5, c"Already Initialized"),
    (6, c"Not Found"),
    (7, c"Insufficient Size"),
    (8, c"Insufficient External Power"),
    (9, c"Driver Not Loaded"),
    (10, c"Timeout"),
    (11, c"Interrupt Request Issue"),
    (12, c"NVML Shared Library Not Found"),
    (13, c"Function Not Found"),
    (14, c"Corrupted infoROM"),
    (15, c"GPU is lost"),
    (16, c"GPU requires reset"),
    (17, c"The operating system has blocked the request"),
    (18, c"RM has detected an NVML/RM version mismatch"),
    (19, c"In use by another client"),
    (20, c"Insufficient Memory"),
    (21, c"No data"),
    (22, c"vGPU ECC not supported"),
    (23, c"Insufficient resources"),
    (24, c"Frequency not supported"),
    (25, c"Argument version mismatch"),
    (26, c"Deprecated"),
    (27, c"Not ready"),
    (28, c"GPU not found"),
    (29, c"Invalid state"),
    (30, c"Reset type not supported"),
];

/// `nvmlErrorString`
pub(super) extern "C" fn error_string(error: c_int) -> *const c_char {
    let found = ERRORS.iter().find(|(number, _)| *number == error);
    found.map_or(c"Unknown Error", |(_, words)| *words).as_ptr()
}

fn init() -> Result<()> {
    if machine::devices().is_empty() {
        tracing::debug!(target: crate::boundary::LOG, "NVML: there is no GPU");
    }
    USERS.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

calls! { BEGINNING by call:
    fn nvmlInit() { init() }

    fn nvmlInit_v2() { init() }

    // Flag 1 allows a machine without GPUs, flag 2 attaches none: there is nothing to attach.
    fn nvmlInitWithFlags(flags: u32) {
        if flags & !3 != 0 {
            return Err(Failure::new(Code::InvalidArgument, format!("flags {flags:#x}")));
        }
        init()
    }

    fn nvmlSystemGetNVMLVersion(text: Out<c_char>, len: u32) {
        put_text(text, &format!("13.{DRIVER_VERSION}"), len)
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) {
        Ok(version.put(crate::driver::init::version().cast_signed())?)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) {
        Ok(version.put(crate::driver::init::version().cast_signed())?)
    }
}

calls! { GENERAL by initialized:
    fn nvmlShutdown() {
        let one_less = |users: u32| users.checked_sub(1);
        let _ = USERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        Ok(())
    }

    fn nvmlSystemGetDriverVersion(text: Out<c_char>, len: u32) {
        put_text(text, DRIVER_VERSION, len)
    }

    fn nvmlUnitGetCount(count: Out<u32>) { Ok(count.put(0)?) }

    fn nvmlGetExcludedDeviceCount(count: Out<u32>) { Ok(count.put(0)?) }
}

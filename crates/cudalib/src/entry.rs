//! The functions, and the table behind them.

use core::ffi::{CStr, c_int};

use stubs::{plain, versioned};

use crate::load::{load, refused};

/// Whose name it is. The numbers are those that `libpeerdma.so` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Library {
    /// `libcuda.so.1`
    Driver = 0,
    /// `libnvidia-ml.so.1`
    Nvml = 1,
    /// `libcudart.so.12`
    Runtime12 = 12,
    /// `libcudart.so.13`
    Runtime13 = 13,
}

impl Library {
    const DRIVER: Self = Self::Driver;
    const NVML: Self = Self::Nvml;
    const RUNTIME_12: Self = Self::Runtime12;
    const RUNTIME_13: Self = Self::Runtime13;

    /// The number that `libpeerdma.so` knows it by.
    pub(crate) fn number(self) -> c_int {
        self as c_int
    }
}

/// The address of a function.
#[repr(transparent)]
pub(crate) struct Function(*const ());

// SAFETY: an address of code, which never changes.
unsafe impl Sync for Function {}

stubs::table!(load, refused);

include!(concat!(env!("OUT_DIR"), "/entries.rs"));

//! Devices.

use std::ffi::{c_char, c_int};

use super::call::{Result, done, initialized};
use crate::begin;
use crate::boundary::calls;
use crate::c::{Out, Text};
use crate::driver;

calls! { CALLS by super::call::call:
    // Without a GPU the count is 0, and the call fails.
    fn cudaGetDeviceCount(count: Out<c_int>) {
        count.check()?;
        count.put_if(0);
        // CAST: there are few GPUs.
        Ok(count.put(begin::init()?.devices().len() as c_int)?)
    }
}

calls! { QUERIES by initialized:
    fn cudaDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) {
        done(driver::device::cuDeviceGetAttribute(value, attribute, device))
    }

    fn cudaDeviceGetPCIBusId(text: Out<c_char>, len: c_int, device: c_int) {
        done(driver::device::cuDeviceGetPCIBusId(text, len, device))
    }

    fn cudaDeviceGetByPCIBusId(device: Out<c_int>, text: Text) {
        done(driver::device::cuDeviceGetByPCIBusId(device, text))
    }

    fn cudaDeviceCanAccessPeer(answer: Out<c_int>, device: c_int, peer: c_int) {
        done(driver::device::cuDeviceCanAccessPeer(answer, device, peer))
    }

    fn cudaDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, from: c_int, to: c_int) {
        done(driver::device::cuDeviceGetP2PAttribute(value, attribute, from, to))
    }

    // All GPUs are alike.
    fn cudaChooseDevice(device: Out<c_int>, _wanted: *const std::ffi::c_void) {
        let first: Result<()> = Ok(device.put(0)?);
        first
    }
}

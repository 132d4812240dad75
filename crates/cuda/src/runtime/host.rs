//! Host memory that GPUs reach.

use super::call::{done, exported, in_context};
use crate::boundary::calls;
use crate::c::Out;
use crate::driver;

calls! { CALLS by in_context:
    fn cudaMallocHost(out: Out<u64>, len: usize) {
        done(driver::host::cuMemAllocHost_v2(out, len))
    }

    fn cudaHostAlloc(out: Out<u64>, len: usize, flags: u32) {
        done(driver::host::cuMemHostAlloc(out, len, flags))
    }

    fn cudaFreeHost(start: u64) { exported!(cuMemFreeHost(start => u64)) }

    fn cudaHostRegister(start: u64, len: usize, flags: u32) {
        done(driver::host::cuMemHostRegister_v2(start, len, flags))
    }

    fn cudaHostUnregister(start: u64) { done(driver::host::cuMemHostUnregister(start)) }

    fn cudaHostGetDevicePointer(out: Out<u64>, addr: u64, flags: u32) {
        done(driver::host::cuMemHostGetDevicePointer_v2(out, addr, flags))
    }

    fn cudaHostGetFlags(out: Out<u32>, addr: u64) {
        done(driver::host::cuMemHostGetFlags(out, addr))
    }
}

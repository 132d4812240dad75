//! Memory in the order of streams, and pools.

use std::ffi::{c_int, c_void};

use super::call::{done, exported, in_context};
use crate::boundary::calls;
use crate::c::{In, Out};
use crate::driver;
use crate::driver::managed::Location;
use crate::driver::pool::Properties;
use crate::driver::vmm::Access;

calls! { CALLS by in_context:
    fn cudaMallocAsync(out: Out<u64>, len: usize, stream: u64) {
        exported!(cuMemAllocAsync(out => Out<u64>, len => usize, stream => u64))
    }

    fn cudaMallocFromPoolAsync(out: Out<u64>, len: usize, pool: u64, stream: u64) {
        exported!(cuMemAllocFromPoolAsync(
            out => Out<u64>,
            len => usize,
            pool => u64,
            stream => u64,
        ))
    }

    fn cudaFreeAsync(start: u64, stream: u64) {
        exported!(cuMemFreeAsync(start => u64, stream => u64))
    }

    fn cudaDeviceGetDefaultMemPool(out: Out<u64>, device: c_int) {
        done(driver::pool::cuDeviceGetDefaultMemPool(out, device))
    }

    fn cudaDeviceGetMemPool(out: Out<u64>, device: c_int) {
        done(driver::pool::cuDeviceGetMemPool(out, device))
    }

    fn cudaDeviceSetMemPool(device: c_int, pool: u64) {
        done(driver::pool::cuDeviceSetMemPool(device, pool))
    }

    fn cudaMemPoolCreate(out: Out<u64>, properties: In<Properties>) {
        done(driver::pool::cuMemPoolCreate(out, properties))
    }

    fn cudaMemPoolDestroy(pool: u64) { done(driver::pool::cuMemPoolDestroy(pool)) }

    fn cudaMemPoolGetAttribute(pool: u64, attribute: u32, value: Out<u8>) {
        done(driver::pool::cuMemPoolGetAttribute(pool, attribute, value))
    }

    fn cudaMemPoolSetAttribute(pool: u64, attribute: u32, value: In<u8>) {
        done(driver::pool::cuMemPoolSetAttribute(pool, attribute, value))
    }

    fn cudaMemPoolSetAccess(pool: u64, list: In<Access>, count: usize) {
        done(driver::pool::cuMemPoolSetAccess(pool, list, count))
    }

    fn cudaMemPoolGetAccess(flags: Out<u32>, pool: u64, location: In<Location>) {
        done(driver::pool::cuMemPoolGetAccess(flags, pool, location))
    }

    fn cudaMemPoolTrimTo(pool: u64, keep: usize) {
        done(driver::pool::cuMemPoolTrimTo(pool, keep))
    }

    fn cudaMemPoolExportToShareableHandle(
        out: *mut c_void,
        pool: u64,
        kind: c_int,
        flags: u32,
    ) {
        exported!(cuMemPoolExportToShareableHandle(
            out => *mut c_void,
            pool => u64,
            kind => c_int,
            // The driver's argument is wider.
            u64::from(flags) => u64,
        ))
    }

    fn cudaMemPoolImportFromShareableHandle(
        out: Out<u64>,
        handle: *mut c_void,
        kind: c_int,
        flags: u32,
    ) {
        exported!(cuMemPoolImportFromShareableHandle(
            out => Out<u64>,
            handle => *mut c_void,
            kind => c_int,
            u64::from(flags) => u64,
        ))
    }

    fn cudaMemPoolExportPointer(out: *mut c_void, start: u64) {
        exported!(cuMemPoolExportPointer(out => *mut c_void, start => u64))
    }

    fn cudaMemPoolImportPointer(out: Out<u64>, pool: u64, data: *mut c_void) {
        exported!(cuMemPoolImportPointer(out => Out<u64>, pool => u64, data => *mut c_void))
    }
}

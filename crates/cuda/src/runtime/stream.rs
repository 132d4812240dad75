//! Streams.

use std::ffi::{c_int, c_void};

use super::call::{done, in_context};
use crate::boundary::calls;
use crate::c::Out;
use crate::driver;
use crate::driver::stream::{Callback, HostFunction};

calls! { CALLS by in_context:
    fn cudaStreamCreate(out: Out<u64>) { done(driver::stream::cuStreamCreate(out, 0)) }

    fn cudaStreamCreateWithFlags(out: Out<u64>, flags: u32) {
        done(driver::stream::cuStreamCreate(out, flags))
    }

    fn cudaStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: c_int) {
        done(driver::stream::cuStreamCreateWithPriority(out, flags, priority))
    }

    fn cudaStreamDestroy(stream: u64) { done(driver::stream::cuStreamDestroy_v2(stream)) }

    fn cudaStreamQuery(stream: u64) { done(driver::stream::cuStreamQuery(stream)) }

    fn cudaStreamSynchronize(stream: u64) { done(driver::stream::cuStreamSynchronize(stream)) }

    fn cudaStreamWaitEvent(stream: u64, event: u64, flags: u32) {
        done(driver::stream::cuStreamWaitEvent(stream, event, flags))
    }

    fn cudaStreamAddCallback(stream: u64, callback: Callback, data: *mut c_void, flags: u32) {
        done(driver::stream::cuStreamAddCallback(stream, callback, data, flags))
    }

    fn cudaLaunchHostFunc(stream: u64, function: HostFunction, data: *mut c_void) {
        done(driver::stream::cuLaunchHostFunc(stream, function, data))
    }

    fn cudaStreamGetFlags(stream: u64, flags: Out<u32>) {
        done(driver::stream::cuStreamGetFlags(stream, flags))
    }

    fn cudaStreamGetPriority(stream: u64, priority: Out<c_int>) {
        done(driver::stream::cuStreamGetPriority(stream, priority))
    }

    fn cudaStreamGetId(stream: u64, id: Out<u64>) {
        done(driver::stream::cuStreamGetId(stream, id))
    }

    fn cudaStreamGetDevice(stream: u64, device: Out<c_int>) {
        done(driver::stream::cuStreamGetDevice(stream, device))
    }

    fn cudaStreamIsCapturing(stream: u64, status: Out<c_int>) {
        done(driver::stream::cuStreamIsCapturing(stream, status))
    }

    // The variants differ in the arguments that follow, which are unused: nothing is ever captured.
    fn cudaStreamGetCaptureInfo(stream: u64, status: Out<c_int>) {
        done(driver::stream::cuStreamIsCapturing(stream, status))
    }

    fn cudaStreamCopyAttributes(to: u64, from: u64) {
        done(driver::stream::cuStreamCopyAttributes(to, from))
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: Out<c_int>) {
        done(driver::stream::cuThreadExchangeStreamCaptureMode(mode))
    }
}

calls! { ONLY_12 by in_context:
    fn cudaStreamGetCaptureInfo_v2(stream: u64, status: Out<c_int>) {
        done(driver::stream::cuStreamIsCapturing(stream, status))
    }

    fn cudaStreamGetCaptureInfo_v3(stream: u64, status: Out<c_int>) {
        done(driver::stream::cuStreamIsCapturing(stream, status))
    }
}

mod thirteen {
    use crate::runtime::stream::{HostFunction, c_int, c_void, calls, done, driver, in_context};

    calls! { ONLY_13 by in_context:
        // How the stream waits is only a hint.
        fn cudaLaunchHostFunc_v2(
            stream: u64,
            function: HostFunction,
            data: *mut c_void,
            _wait: c_int,
        ) {
            done(driver::stream::cuLaunchHostFunc(stream, function, data))
        }
    }
}
pub(super) use thirteen::ONLY_13;

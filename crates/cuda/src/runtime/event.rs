//! Events.

use super::call::{done, in_context};
use crate::boundary::calls;
use crate::c::Out;
use crate::driver;

calls! { CALLS by in_context:
    fn cudaEventCreate(out: Out<u64>) { done(driver::event::cuEventCreate(out, 0)) }

    fn cudaEventCreateWithFlags(out: Out<u64>, flags: u32) {
        done(driver::event::cuEventCreate(out, flags))
    }

    fn cudaEventDestroy(event: u64) { done(driver::event::cuEventDestroy_v2(event)) }

    fn cudaEventRecord(event: u64, stream: u64) {
        done(driver::event::cuEventRecord(event, stream))
    }

    fn cudaEventRecordWithFlags(event: u64, stream: u64, flags: u32) {
        done(driver::event::cuEventRecordWithFlags(event, stream, flags))
    }

    fn cudaEventQuery(event: u64) { done(driver::event::cuEventQuery(event)) }

    fn cudaEventSynchronize(event: u64) { done(driver::event::cuEventSynchronize(event)) }

    fn cudaEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        done(driver::event::cuEventElapsedTime(milliseconds, start, end))
    }
}

calls! { ONLY_12 by in_context:
    fn cudaEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) {
        done(driver::event::cuEventElapsedTime(milliseconds, start, end))
    }
}

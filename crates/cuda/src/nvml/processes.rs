//! Processes on a GPU: the list is always empty.

use super::call::{Result, device, initialized};
use crate::boundary::calls;
use crate::c::Out;

/// Answers an empty list.
fn none(gpu: u64, count: Out<u32>) -> Result<()> {
    device(gpu)?;
    Ok(count.put(0)?)
}

macro_rules! none_of {
    ($($name:ident)*) => {
        calls! { CALLS by initialized: $(
            fn $name(gpu: u64, count: Out<u32>, _list: Out<u8>) { none(gpu, count) }
        )* }
    };
}

none_of! {
    nvmlDeviceGetComputeRunningProcesses
    nvmlDeviceGetComputeRunningProcesses_v2
    nvmlDeviceGetComputeRunningProcesses_v3
    nvmlDeviceGetGraphicsRunningProcesses
    nvmlDeviceGetGraphicsRunningProcesses_v2
    nvmlDeviceGetGraphicsRunningProcesses_v3
    nvmlDeviceGetMPSComputeRunningProcesses
    nvmlDeviceGetMPSComputeRunningProcesses_v2
    nvmlDeviceGetMPSComputeRunningProcesses_v3
}

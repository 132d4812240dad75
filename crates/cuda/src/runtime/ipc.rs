//! Memory and events of other processes.

use super::call::{exported, in_context};
use crate::boundary::calls;
use crate::c::Out;

/// The handle of memory or of an event for another process. The runtime and the driver use the same
/// handles.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Handle([u8; 64]);

calls! { CALLS by in_context:
    fn cudaIpcGetMemHandle(out: Out<Handle>, addr: u64) {
        exported!(cuIpcGetMemHandle(out => Out<Handle>, addr => u64))
    }

    fn cudaIpcOpenMemHandle(out: Out<u64>, handle: Handle, flags: u32) {
        exported!(cuIpcOpenMemHandle_v2(out => Out<u64>, handle => Handle, flags => u32))
    }

    fn cudaIpcCloseMemHandle(start: u64) { exported!(cuIpcCloseMemHandle(start => u64)) }

    fn cudaIpcGetEventHandle(out: Out<Handle>, event: u64) {
        exported!(cuIpcGetEventHandle(out => Out<Handle>, event => u64))
    }

    fn cudaIpcOpenEventHandle(out: Out<u64>, handle: Handle) {
        exported!(cuIpcOpenEventHandle(out => Out<u64>, handle => Handle))
    }
}

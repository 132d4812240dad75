//! An open device, as programs hold it: what every other object points to.

use std::ffi::{c_int, c_void};

use libc::{pthread_mutex_t, timespec};

use crate::device::Device;
use crate::{Absent, c_struct};

/// What `abi_compat` must be for the header to look for a `VerbsContext` around a [`Context`].
#[doc(alias = "__VERBS_ABI_IS_EXTENDED")]
pub const ABI_IS_EXTENDED: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);

/// Pointers in `struct ibv_context_ops`.
const CONTEXT_OPS: usize = 32;

/// The room for the operations in a [`Context`]. Operations name the objects, and every object
/// names its context, so their types are in a file above this one: `ContextOps`.
#[repr(transparent)]
pub struct OpsRoom([Absent; CONTEXT_OPS]);

c_struct! {
    /// An open device, as programs hold it.
    pub struct Context = "struct ibv_context" {
        device: *mut Device,
        /// C's `struct ibv_context_ops`, which `ContextOps::of` gives.
        ops: OpsRoom,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }
}

c_struct! {
    /// Current values that the device can tell.
    pub struct ValuesEx = "struct ibv_values_ex" {
        comp_mask: u32,
        raw_clock: timespec,
    }
}

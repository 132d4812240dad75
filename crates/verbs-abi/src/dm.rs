//! Device memory.

use std::ffi::{c_int, c_void};

use libc::size_t;

use crate::c_struct;
use crate::context::Context;

pub type MemcpyToDm = unsafe extern "C" fn(*mut Dm, u64, *const c_void, size_t) -> c_int;
pub type MemcpyFromDm = unsafe extern "C" fn(*mut c_void, *mut Dm, u64, size_t) -> c_int;

c_struct! {
    /// A request for device memory.
    pub struct AllocDmAttr = "struct ibv_alloc_dm_attr" {
        length: size_t,
        log_align_req: u32,
        comp_mask: u32,
    }
}

c_struct! {
    /// A block of device memory. The header copies through its two pointers.
    pub struct Dm = "struct ibv_dm" {
        context: *mut Context,
        memcpy_to_dm: Option<MemcpyToDm>,
        memcpy_from_dm: Option<MemcpyFromDm>,
        comp_mask: u32,
        handle: u32,
    }
}

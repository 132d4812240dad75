//! Protection domains.

use std::ffi::c_void;

use libc::size_t;

use crate::c_struct;
use crate::context::Context;

pub type Alloc = unsafe extern "C" fn(*mut Pd, *mut c_void, size_t, size_t, u64) -> *mut c_void;
pub type Free = unsafe extern "C" fn(*mut Pd, *mut c_void, *mut c_void, u64);

c_struct! {
    /// A protection domain.
    pub struct Pd = "struct ibv_pd" {
        context: *mut Context,
        handle: u32,
    }
}

c_struct! {
    /// A thread domain.
    pub struct Td = "struct ibv_td" {
        context: *mut Context,
    }
}

c_struct! {
    /// How to make a thread domain; no bit of it means anything yet.
    pub struct TdInitAttr = "struct ibv_td_init_attr" {
        comp_mask: u32,
    }
}

c_struct! {
    /// What a parent domain is over, and the allocators of what a provider keeps in the program's
    /// memory.
    pub struct ParentDomainInitAttr = "struct ibv_parent_domain_init_attr" {
        pd: *mut Pd,
        td: *mut Td,
        comp_mask: u32,
        alloc: Option<Alloc>,
        free: Option<Free>,
        pd_context: *mut c_void,
    }
}

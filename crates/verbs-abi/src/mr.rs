//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};

use libc::size_t;

use crate::context::Context;
use crate::pd::Pd;
use crate::{CEnum, Opaque, c_struct};

c_struct! {
    /// A memory region.
    pub struct Mr = "struct ibv_mr" {
        context: *mut Context,
        pd: *mut Pd,
        addr: *mut c_void,
        length: size_t,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
}

c_struct! {
    /// What a memory window covers.
    #[derive(Clone, Copy)]
    pub struct MwBindInfo = "struct ibv_mw_bind_info" {
        mr: *mut Mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }
}

c_struct! {
    /// A memory window.
    pub struct Mw = "struct ibv_mw" {
        context: *mut Context,
        pd: *mut Pd,
        rkey: u32,
        handle: u32,
        r#type: CEnum,
    }
}

c_struct! {
    /// How to bind a window of type 1.
    pub struct MwBind = "struct ibv_mw_bind" {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: MwBindInfo,
    }
}

c_struct! {
    /// How to register a region, extended; only what `comp_mask` names may be read.
    pub struct MrInitAttr = "struct ibv_mr_init_attr" {
        length: size_t,
        access: c_int,
        comp_mask: u64,
        iova: u64,
        addr: *mut c_void,
        fd: c_int,
        fd_offset: u64,
        dmah: *mut Opaque,
        buf: *mut Opaque,
    }
}

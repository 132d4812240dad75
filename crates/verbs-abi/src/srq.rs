//! Shared receive queues.

use std::ffi::{c_int, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use crate::context::Context;
use crate::cq::Cq;
use crate::pd::Pd;
use crate::wr::Sge;
use crate::{CEnum, c_struct};

c_struct! {
    /// A shared receive queue.
    pub struct Srq = "struct ibv_srq" {
        context: *mut Context,
        srq_context: *mut c_void,
        pd: *mut Pd,
        handle: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
}

c_struct! {
    /// Size and limit.
    #[derive(Clone, Copy)]
    pub struct SrqAttr = "struct ibv_srq_attr" {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }
}

c_struct! {
    /// How to create an SRQ.
    pub struct SrqInitAttr = "struct ibv_srq_init_attr" {
        srq_context: *mut c_void,
        attr: SrqAttr,
    }
}

c_struct! {
    /// Sizes of tag matching.
    pub struct TmCap = "struct ibv_tm_cap" {
        max_num_tags: u32,
        max_ops: u32,
    }
}

/// A receive with a tag.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TmAdd {
    pub recv_wr_id: u64,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub tag: u64,
    pub mask: u64,
}

/// The part of an [`OpsWr`] that is about tag matching: all of it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Tm {
    pub unexpected_cnt: u32,
    /// Given by the library where a receive is added.
    pub handle: u32,
    pub add: TmAdd,
}

c_struct! {
    /// An operation on a list of tags.
    pub struct OpsWr = "struct ibv_ops_wr" {
        wr_id: u64,
        next: *mut OpsWr,
        opcode: CEnum,
        flags: c_int,
        tm: Tm,
    }
}

c_struct! {
    /// How to create an SRQ, extended. Its first fields are those of [`SrqInitAttr`].
    pub struct SrqInitAttrEx = "struct ibv_srq_init_attr_ex" {
        srq_context: *mut c_void,
        attr: SrqAttr,
        comp_mask: u32,
        srq_type: CEnum,
        pd: *mut Pd,
        xrcd: *mut Xrcd,
        cq: *mut Cq,
        tm_cap: TmCap,
    }
}

c_struct! {
    /// An XRC domain.
    pub struct Xrcd = "struct ibv_xrcd" {
        context: *mut Context,
    }
}

c_struct! {
    /// How to open an XRC domain.
    pub struct XrcdInitAttr = "struct ibv_xrcd_init_attr" {
        comp_mask: u32,
        fd: c_int,
        oflags: c_int,
    }
}

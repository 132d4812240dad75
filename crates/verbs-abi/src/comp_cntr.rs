//! Completion counters.

use crate::context::Context;
use crate::{CEnum, c_struct};

c_struct! {
    /// A completion counter.
    pub struct CompCntr = "struct ibv_comp_cntr" {
        context: *mut Context,
        handle: u32,
    }
}

c_struct! {
    /// A request for a completion counter.
    pub struct CompCntrInitAttr = "struct ibv_comp_cntr_init_attr" {
        comp_mask: u32,
        r#type: CEnum,
        flags: u32,
    }
}

c_struct! {
    /// What a QP's counter is to count.
    pub struct QpAttachCompCntrAttr = "struct ibv_qp_attach_comp_cntr_attr" {
        comp_mask: u32,
        op_mask: u32,
    }
}

c_struct! {
    /// What counters a device has.
    pub struct CompCntrCaps = "struct ibv_comp_cntr_caps" {
        max_value: u64,
        max_counters: u32,
        supported_qp_attach_ops: u32,
    }
}

//! Completion counters.

use super::context::Context;
use super::{CEnum, c_struct};

c_struct! {
    /// A completion counter.
    pub(crate) struct CompCntr = "struct ibv_comp_cntr" {
        context: *mut Context,
        handle: u32,
    }
}

c_struct! {
    /// A request for a completion counter.
    pub(crate) struct CompCntrInitAttr = "struct ibv_comp_cntr_init_attr" {
        comp_mask: u32,
        r#type: CEnum,
        flags: u32,
    }
}

c_struct! {
    /// What a QP's counter is to count.
    pub(crate) struct QpAttachCompCntrAttr = "struct ibv_qp_attach_comp_cntr_attr" {
        comp_mask: u32,
        op_mask: u32,
    }
}

c_struct! {
    /// What counters a device has.
    pub(crate) struct CompCntrCaps = "struct ibv_comp_cntr_caps" {
        max_value: u64,
        max_counters: u32,
        supported_qp_attach_ops: u32,
    }
}

//! Addresses.

use crate::c_struct;
use crate::context::Context;
use crate::device::Gid;
use crate::pd::Pd;

c_struct! {
    /// The route to another subnet. On RoCE every path has one.
    #[derive(Clone, Copy)]
    pub struct GlobalRoute = "struct ibv_global_route" {
        dgid: Gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }
}

c_struct! {
    /// The 40 bytes before a received datagram; integers in network order.
    #[derive(Clone, Copy)]
    pub struct Grh = "struct ibv_grh" {
        version_tclass_flow: u32,
        paylen: u16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: Gid,
        dgid: Gid,
    }
}

c_struct! {
    /// An address vector.
    #[derive(Clone, Copy)]
    pub struct AhAttr = "struct ibv_ah_attr" {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
}

c_struct! {
    /// An address handle.
    pub struct Ah = "struct ibv_ah" {
        context: *mut Context,
        pd: *mut Pd,
        handle: u32,
    }
}

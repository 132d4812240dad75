//! Flow steering, work queues and indirection tables.

use std::ffi::{c_int, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use crate::context::Context;
use crate::cq::Cq;
use crate::pd::Pd;
use crate::wr::RecvWr;
use crate::{CEnum, c_struct};

pub type PostWqRecv = unsafe extern "C" fn(*mut Wq, *mut RecvWr, *mut *mut RecvWr) -> c_int;

c_struct! {
    /// A rule.
    pub struct Flow = "struct ibv_flow" {
        comp_mask: u32,
        context: *mut Context,
        handle: u32,
    }
}

c_struct! {
    /// How to make a rule. Its specs follow behind it.
    #[derive(Clone, Copy)]
    pub struct FlowAttr = "struct ibv_flow_attr" {
        comp_mask: u32,
        r#type: CEnum,
        size: u16,
        priority: u16,
        num_of_specs: u8,
        port: u8,
        flags: u32,
    }
}

c_struct! {
    /// Fields of an Ethernet header. Numbers are in network order.
    #[derive(Clone, Copy)]
    pub struct EthFilter = "struct ibv_flow_eth_filter" {
        dst_mac: [u8; 6],
        src_mac: [u8; 6],
        ether_type: u16,
        vlan_tag: u16,
    }
}

c_struct! {
    /// What is asked of an Ethernet header.
    #[derive(Clone, Copy)]
    pub struct SpecEth = "struct ibv_flow_spec_eth" {
        r#type: CEnum,
        size: u16,
        val: EthFilter,
        mask: EthFilter,
    }
}

c_struct! {
    /// The addresses of an IPv4 header, in network order.
    #[derive(Clone, Copy)]
    pub struct Ipv4Filter = "struct ibv_flow_ipv4_filter" {
        src_ip: u32,
        dst_ip: u32,
    }
}

c_struct! {
    /// What is asked of an IPv4 header.
    #[derive(Clone, Copy)]
    pub struct SpecIpv4 = "struct ibv_flow_spec_ipv4" {
        r#type: CEnum,
        size: u16,
        val: Ipv4Filter,
        mask: Ipv4Filter,
    }
}

c_struct! {
    /// More fields of an IPv4 header.
    #[derive(Clone, Copy)]
    pub struct Ipv4ExtFilter = "struct ibv_flow_ipv4_ext_filter" {
        src_ip: u32,
        dst_ip: u32,
        proto: u8,
        tos: u8,
        ttl: u8,
        flags: u8,
    }
}

c_struct! {
    /// What is asked of an IPv4 header.
    #[derive(Clone, Copy)]
    pub struct SpecIpv4Ext = "struct ibv_flow_spec_ipv4_ext" {
        r#type: CEnum,
        size: u16,
        val: Ipv4ExtFilter,
        mask: Ipv4ExtFilter,
    }
}

c_struct! {
    /// Fields of an IPv6 header. Numbers are in network order.
    #[derive(Clone, Copy)]
    pub struct Ipv6Filter = "struct ibv_flow_ipv6_filter" {
        src_ip: [u8; 16],
        dst_ip: [u8; 16],
        flow_label: u32,
        next_hdr: u8,
        traffic_class: u8,
        hop_limit: u8,
    }
}

c_struct! {
    /// What is asked of an IPv6 header.
    #[derive(Clone, Copy)]
    pub struct SpecIpv6 = "struct ibv_flow_spec_ipv6" {
        r#type: CEnum,
        size: u16,
        val: Ipv6Filter,
        mask: Ipv6Filter,
    }
}

c_struct! {
    /// Ports, in network order.
    #[derive(Clone, Copy)]
    pub struct TcpUdpFilter = "struct ibv_flow_tcp_udp_filter" {
        dst_port: u16,
        src_port: u16,
    }
}

c_struct! {
    /// What is asked of ports.
    #[derive(Clone, Copy)]
    pub struct SpecTcpUdp = "struct ibv_flow_spec_tcp_udp" {
        r#type: CEnum,
        size: u16,
        val: TcpUdpFilter,
        mask: TcpUdpFilter,
    }
}

c_struct! {
    /// How to make a work queue.
    pub struct WqInitAttr = "struct ibv_wq_init_attr" {
        wq_context: *mut c_void,
        wq_type: CEnum,
        max_wr: u32,
        max_sge: u32,
        pd: *mut Pd,
        cq: *mut Cq,
        comp_mask: u32,
        create_flags: u32,
    }
}

c_struct! {
    /// How to change one.
    pub struct WqAttr = "struct ibv_wq_attr" {
        attr_mask: u32,
        wq_state: CEnum,
        curr_wq_state: CEnum,
        flags: u32,
        flags_mask: u32,
    }
}

c_struct! {
    /// A work queue.
    pub struct Wq = "struct ibv_wq" {
        context: *mut Context,
        wq_context: *mut c_void,
        pd: *mut Pd,
        cq: *mut Cq,
        wq_num: u32,
        handle: u32,
        state: CEnum,
        wq_type: CEnum,
        post_recv: Option<PostWqRecv>,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
        comp_mask: u32,
    }
}

c_struct! {
    /// How to make an indirection table: the logarithm of its size, and its places.
    pub struct RwqIndTableInitAttr = "struct ibv_rwq_ind_table_init_attr" {
        log_ind_tbl_size: u32,
        ind_tbl: *mut *mut Wq,
        comp_mask: u32,
    }
}

c_struct! {
    /// An indirection table.
    pub struct RwqIndTable = "struct ibv_rwq_ind_table" {
        context: *mut Context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }
}

//! The structures of `<rdma/rdma_cma.h>`, and the path record of `<infiniband/sa.h>`.
//!
//! The inline functions of `<rdma/rdma_verbs.h>` reach through [`CmId`]: its queues, channels and
//! domain are as much the ABI as the symbols are.

use std::ffi::{c_char, c_int, c_void};

use libc::{size_t, sockaddr, sockaddr_storage, socklen_t};

use crate::ah::AhAttr;
use crate::context::Context;
use crate::cq::{CompChannel, Cq};
use crate::device::Gid;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::{CEnum, c_struct};

/// Bytes of private data that an event can bring.
#[doc(alias = "RDMA_MAX_PRIVATE_DATA")]
pub const MAX_PRIVATE_DATA: usize = 256;

/// The Q_Key of datagram QPs and multicast groups of the connection manager.
#[doc(alias = "RDMA_UDP_QKEY")]
pub const UDP_QKEY: u32 = 0x0123_4567;

/// The kinds of events.
#[doc(alias = "rdma_cm_event_type")]
pub mod event_type {
    use crate::CEnum;

    pub const ADDR_RESOLVED: CEnum = 0;
    pub const ADDR_ERROR: CEnum = 1;
    pub const ROUTE_RESOLVED: CEnum = 2;
    pub const ROUTE_ERROR: CEnum = 3;
    pub const CONNECT_REQUEST: CEnum = 4;
    pub const CONNECT_RESPONSE: CEnum = 5;
    pub const CONNECT_ERROR: CEnum = 6;
    pub const UNREACHABLE: CEnum = 7;
    pub const REJECTED: CEnum = 8;
    pub const ESTABLISHED: CEnum = 9;
    pub const DISCONNECTED: CEnum = 10;
    pub const DEVICE_REMOVAL: CEnum = 11;
    pub const MULTICAST_JOIN: CEnum = 12;
    pub const MULTICAST_ERROR: CEnum = 13;
    pub const ADDR_CHANGE: CEnum = 14;
    pub const TIMEWAIT_EXIT: CEnum = 15;
    pub const ADDRINFO_RESOLVED: CEnum = 16;
    pub const USER: CEnum = 18;
}

/// Port spaces.
#[doc(alias = "rdma_port_space")]
pub mod port_space {
    use crate::CEnum;

    pub const IPOIB: CEnum = 0x0002;
    pub const TCP: CEnum = 0x0106;
    pub const UDP: CEnum = 0x0111;
    pub const IB: CEnum = 0x013f;
}

/// Flags of [`AddrInfo`].
pub mod rai {
    use std::ffi::c_int;

    #[doc(alias = "RAI_PASSIVE")]
    pub const PASSIVE: c_int = 1;
    #[doc(alias = "RAI_NUMERICHOST")]
    pub const NUMERICHOST: c_int = 1 << 1;
    #[doc(alias = "RAI_FAMILY")]
    pub const FAMILY: c_int = 1 << 3;
    #[doc(alias = "RAI_SA")]
    pub const SA: c_int = 1 << 4;
    #[doc(alias = "RAI_DNS")]
    pub const DNS: c_int = 1 << 5;
}

c_struct! {
    /// A path, as a subnet manager would describe it. Integers of more than a byte that C calls
    /// `__be` are in network order.
    #[derive(Clone, Copy)]
    pub struct SaPathRec = "struct ibv_sa_path_rec" {
        dgid: Gid,
        sgid: Gid,
        dlid: u16,
        slid: u16,
        raw_traffic: c_int,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
        numb_path: u8,
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }
}

c_struct! {
    /// InfiniBand's addresses of the two ends.
    #[derive(Clone, Copy)]
    pub struct IbAddr = "struct rdma_ib_addr" {
        sgid: Gid,
        dgid: Gid,
        /// In network order.
        pkey: u16,
    }
}

c_struct! {
    /// The addresses of the two ends. In C each is a union of the socket addresses there are.
    #[derive(Clone, Copy)]
    pub struct Addr = "struct rdma_addr" {
        src_storage: sockaddr_storage,
        dst_storage: sockaddr_storage,
        addr: IbAddr,
    }
}

c_struct! {
    /// Addresses and paths.
    #[derive(Clone, Copy)]
    pub struct Route = "struct rdma_route" {
        addr: Addr,
        path_rec: *mut SaPathRec,
        num_paths: c_int,
    }
}

c_struct! {
    /// Where events come from.
    pub struct EventChannel = "struct rdma_event_channel" {
        fd: c_int,
    }
}

c_struct! {
    /// An identifier of the connection manager: what a socket is to TCP.
    pub struct CmId = "struct rdma_cm_id" {
        verbs: *mut Context,
        channel: *mut EventChannel,
        context: *mut c_void,
        qp: *mut Qp,
        route: Route,
        ps: CEnum,
        port_num: u8,
        event: *mut CmEvent,
        send_cq_channel: *mut CompChannel,
        send_cq: *mut Cq,
        recv_cq_channel: *mut CompChannel,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        pd: *mut Pd,
        qp_type: CEnum,
    }
}

c_struct! {
    /// What the sides of a connection tell each other.
    #[derive(Clone, Copy)]
    pub struct ConnParam = "struct rdma_conn_param" {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }
}

c_struct! {
    /// What the sides of a datagram service tell each other.
    #[derive(Clone, Copy)]
    pub struct UdParam = "struct rdma_ud_param" {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: AhAttr,
        qp_num: u32,
        qkey: u32,
    }
}

/// What an event brings: which member holds depends on the identifier and the event.
#[derive(Clone, Copy)]
#[repr(C)]
pub union EventParam {
    pub conn: ConnParam,
    pub ud: UdParam,
    /// Of the events that a program writes itself.
    pub arg: u64,
}

c_struct! {
    /// An event.
    pub struct CmEvent = "struct rdma_cm_event" {
        id: *mut CmId,
        listen_id: *mut CmId,
        event: CEnum,
        /// 0, a negative errno, or a reason of the peer.
        status: c_int,
        param: EventParam,
    }
}

c_struct! {
    /// What a name stands for.
    pub struct AddrInfo = "struct rdma_addrinfo" {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: socklen_t,
        ai_dst_len: socklen_t,
        ai_src_addr: *mut sockaddr,
        ai_dst_addr: *mut sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: size_t,
        ai_route: *mut c_void,
        ai_connect_len: size_t,
        ai_connect: *mut c_void,
        ai_next: *mut AddrInfo,
    }
}

c_struct! {
    /// How to join a multicast group.
    pub struct JoinMcAttrEx = "struct rdma_cm_join_mc_attr_ex" {
        comp_mask: u32,
        join_flags: u32,
        addr: *mut sockaddr,
    }
}

c_struct! {
    /// A path record as it goes over the wire (`<infiniband/sa.h>`), in network order.
    #[derive(Clone, Copy)]
    pub struct PathRecord = "struct ibv_path_record" {
        service_id: u64,
        dgid: Gid,
        sgid: Gid,
        dlid: u16,
        slid: u16,
        flowlabel_hoplimit: u32,
        tclass: u8,
        reversible_numpath: u8,
        pkey: u16,
        qosclass_sl: u16,
        mtu: u8,
        rate: u8,
        packetlifetime: u8,
        preference: u8,
        reserved: [u8; 6],
    }
}

c_struct! {
    /// A path record with what it is for.
    #[derive(Clone, Copy)]
    pub struct PathData = "struct ibv_path_data" {
        flags: u32,
        reserved: u32,
        path: PathRecord,
    }
}

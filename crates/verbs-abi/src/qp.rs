//! Queue pairs.

use std::ffi::{c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t, size_t};

use crate::ah::{Ah, AhAttr};
use crate::context::Context;
use crate::cq::Cq;
use crate::flow::RwqIndTable;
use crate::mr::{Mw, MwBindInfo};
use crate::pd::Pd;
use crate::srq::{Srq, Xrcd};
use crate::wr::{DataBuf, Sge};
use crate::{Absent, CEnum, c_struct};

c_struct! {
    /// How to open a QP that exists.
    pub struct QpOpenAttr = "struct ibv_qp_open_attr" {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut Xrcd,
        qp_context: *mut c_void,
        qp_type: CEnum,
    }
}

c_struct! {
    /// A queue pair.
    pub struct Qp = "struct ibv_qp" {
        context: *mut Context,
        qp_context: *mut c_void,
        pd: *mut Pd,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        handle: u32,
        qp_num: u32,
        state: CEnum,
        qp_type: CEnum,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
}

pub type WrAtomicCmpSwp = unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64);
pub type WrAtomicFetchAdd = unsafe extern "C" fn(*mut QpEx, u32, u64, u64);
pub type WrRdma = unsafe extern "C" fn(*mut QpEx, u32, u64);
pub type WrRdmaImm = unsafe extern "C" fn(*mut QpEx, u32, u64, u32);
pub type WrPlain = unsafe extern "C" fn(*mut QpEx);
pub type WrU32 = unsafe extern "C" fn(*mut QpEx, u32);
pub type WrSetUdAddr = unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32);
pub type WrSetInlineData = unsafe extern "C" fn(*mut QpEx, *mut c_void, size_t);
pub type WrSetInlineDataList = unsafe extern "C" fn(*mut QpEx, size_t, *const DataBuf);
pub type WrSetSge = unsafe extern "C" fn(*mut QpEx, u32, u64, u32);
pub type WrSetSgeList = unsafe extern "C" fn(*mut QpEx, size_t, *const Sge);
pub type WrBindMw = unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo);
pub type WrAtomicWrite = unsafe extern "C" fn(*mut QpEx, u32, u64, *const c_void);
pub type WrFlush = unsafe extern "C" fn(*mut QpEx, u32, u64, size_t, u8, u8);
pub type WrComplete = unsafe extern "C" fn(*mut QpEx) -> c_int;

c_struct! {
    /// A queue pair whose work requests are built by calls. It begins with a [`Qp`], and is used as
    /// one.
    pub struct QpEx = "struct ibv_qp_ex" {
        qp_base: Qp,
        comp_mask: u64,
        /// The program sets this and `wr_flags` before each work request.
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<WrAtomicCmpSwp>,
        wr_atomic_fetch_add: Option<WrAtomicFetchAdd>,
        wr_bind_mw: Option<WrBindMw>,
        wr_local_inv: Option<WrU32>,
        wr_rdma_read: Option<WrRdma>,
        wr_rdma_write: Option<WrRdma>,
        wr_rdma_write_imm: Option<WrRdmaImm>,
        wr_send: Option<WrPlain>,
        wr_send_imm: Option<WrU32>,
        wr_send_inv: Option<WrU32>,
        wr_send_tso: Absent,
        wr_set_ud_addr: Option<WrSetUdAddr>,
        wr_set_xrc_srqn: Option<WrU32>,
        wr_set_inline_data: Option<WrSetInlineData>,
        wr_set_inline_data_list: Option<WrSetInlineDataList>,
        wr_set_sge: Option<WrSetSge>,
        wr_set_sge_list: Option<WrSetSgeList>,
        wr_start: Option<WrPlain>,
        wr_complete: Option<WrComplete>,
        wr_abort: Option<WrPlain>,
        wr_atomic_write: Option<WrAtomicWrite>,
        wr_flush: Option<WrFlush>,
    }
}

c_struct! {
    /// Sizes of a QP's queues.
    #[derive(Clone, Copy)]
    pub struct QpCap = "struct ibv_qp_cap" {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
}

c_struct! {
    /// How to create a QP.
    pub struct QpInitAttr = "struct ibv_qp_init_attr" {
        qp_context: *mut c_void,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: CEnum,
        sq_sig_all: c_int,
    }
}

c_struct! {
    /// How raw packets are spread over receive queues.
    pub struct RxHashConf = "struct ibv_rx_hash_conf" {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }
}

c_struct! {
    /// How to create a QP, extended. Its first fields are those of [`QpInitAttr`]; only what
    /// `comp_mask` names may be read.
    pub struct QpInitAttrEx = "struct ibv_qp_init_attr_ex" {
        qp_context: *mut c_void,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: CEnum,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut Pd,
        xrcd: *mut Xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut RwqIndTable,
        rx_hash_conf: RxHashConf,
        source_qpn: u32,
        send_ops_flags: u64,
    }
}

c_struct! {
    /// Attributes of a QP.
    pub struct QpAttr = "struct ibv_qp_attr" {
        qp_state: CEnum,
        cur_qp_state: CEnum,
        path_mtu: CEnum,
        path_mig_state: CEnum,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: QpCap,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
}

c_struct! {
    /// How fast a QP sends.
    pub struct QpRateLimitAttr = "struct ibv_qp_rate_limit_attr" {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }
}

c_struct! {
    /// Enhanced connection establishment: what two vendors may agree on.
    pub struct Ece = "struct ibv_ece" {
        vendor_id: u32,
        options: u32,
        comp_mask: u32,
    }
}

//! Work requests.

use std::ffi::{c_int, c_uint, c_void};

use libc::size_t;

use super::ah::Ah;
use super::mr::{Mw, MwBindInfo};
use super::{CEnum, c_struct};

c_struct! {
    /// A piece of local memory.
    #[derive(Clone, Copy)]
    pub(crate) struct Sge = "struct ibv_sge" {
        addr: u64,
        length: u32,
        lkey: u32,
    }
}

c_struct! {
    /// Inline data.
    #[derive(Clone, Copy)]
    pub(crate) struct DataBuf = "struct ibv_data_buf" {
        addr: *mut c_void,
        length: size_t,
    }
}

/// Where a READ or WRITE goes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// Where an atomic goes, and its operands.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// Where a datagram goes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ud {
    pub(crate) ah: *mut Ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// The part of a send request that depends on its opcode and its QP's type.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Remote {
    pub(crate) rdma: Rdma,
    pub(crate) atomic: Atomic,
    pub(crate) ud: Ud,
}

/// A memory window to bind. C overlays this with the header of a raw packet to segment, which is
/// smaller.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BindMw {
    pub(crate) mw: *mut Mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: MwBindInfo,
}

c_struct! {
    /// A send request. `imm_data` is in network order, or the key to invalidate in host order, as
    /// the opcode says.
    pub(crate) struct SendWr = "struct ibv_send_wr" {
        wr_id: u64,
        next: *mut SendWr,
        sg_list: *mut Sge,
        num_sge: c_int,
        opcode: CEnum,
        send_flags: c_uint,
        imm_data: u32,
        wr: Remote,
        /// C nests `xrc.remote_srqn` in here.
        qp_type: u32,
        bind_mw: BindMw,
    }
}

c_struct! {
    /// A receive request.
    pub(crate) struct RecvWr = "struct ibv_recv_wr" {
        wr_id: u64,
        next: *mut RecvWr,
        sg_list: *mut Sge,
        num_sge: c_int,
    }
}

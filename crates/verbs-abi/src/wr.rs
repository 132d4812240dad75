//! Work requests.

use std::ffi::{c_int, c_uint, c_void};

use libc::size_t;

use crate::ah::Ah;
use crate::mr::{Mw, MwBindInfo};
use crate::{CEnum, c_struct};

c_struct! {
    /// A piece of local memory.
    #[derive(Clone, Copy)]
    pub struct Sge = "struct ibv_sge" {
        addr: u64,
        length: u32,
        lkey: u32,
    }
}

c_struct! {
    /// Inline data.
    #[derive(Clone, Copy)]
    pub struct DataBuf = "struct ibv_data_buf" {
        addr: *mut c_void,
        length: size_t,
    }
}

/// Where a READ or WRITE goes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// Where an atomic goes, and its operands.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// Where a datagram goes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Ud {
    pub ah: *mut Ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// The part of a send request that depends on its opcode and its QP's type.
#[derive(Clone, Copy)]
#[repr(C)]
pub union Remote {
    pub rdma: Rdma,
    pub atomic: Atomic,
    pub ud: Ud,
}

/// A memory window to bind. C overlays this with the header of a raw packet to segment, which is
/// smaller.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BindMw {
    pub mw: *mut Mw,
    pub rkey: u32,
    pub bind_info: MwBindInfo,
}

c_struct! {
    /// A send request. `imm_data` is in network order, or the key to invalidate in host order, as
    /// the opcode says.
    pub struct SendWr = "struct ibv_send_wr" {
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
    pub struct RecvWr = "struct ibv_recv_wr" {
        wr_id: u64,
        next: *mut RecvWr,
        sg_list: *mut Sge,
        num_sge: c_int,
    }
}

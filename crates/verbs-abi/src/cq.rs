//! Completion channels and completion queues.

use std::ffi::{c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use crate::context::Context;
use crate::pd::Pd;
use crate::{CEnum, c_struct};

c_struct! {
    /// A completion channel: a file descriptor that is readable when a CQ has an event.
    pub struct CompChannel = "struct ibv_comp_channel" {
        context: *mut Context,
        fd: c_int,
        refcnt: c_int,
    }
}

c_struct! {
    /// A completion queue. `mutex`, `cond` and the two counters make destruction wait for
    /// acknowledged events.
    pub struct Cq = "struct ibv_cq" {
        context: *mut Context,
        channel: *mut CompChannel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }
}

pub type StartPoll = unsafe extern "C" fn(*mut CqEx, *mut PollCqAttr) -> c_int;
pub type NextPoll = unsafe extern "C" fn(*mut CqEx) -> c_int;
pub type EndPoll = unsafe extern "C" fn(*mut CqEx);
pub type ReadU8 = unsafe extern "C" fn(*mut CqEx) -> u8;
pub type ReadU16 = unsafe extern "C" fn(*mut CqEx) -> u16;
pub type ReadU32 = unsafe extern "C" fn(*mut CqEx) -> u32;
pub type ReadU64 = unsafe extern "C" fn(*mut CqEx) -> u64;
pub type ReadTmInfo = unsafe extern "C" fn(*mut CqEx, *mut WcTmInfo);

c_struct! {
    /// A completion queue that is read one completion at a time. Its first fields are those of a
    /// [`Cq`], and it is used as one.
    pub struct CqEx = "struct ibv_cq_ex" {
        context: *mut Context,
        channel: *mut CompChannel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: CEnum,
        wr_id: u64,
        start_poll: Option<StartPoll>,
        next_poll: Option<NextPoll>,
        end_poll: Option<EndPoll>,
        read_opcode: Option<ReadU32>,
        read_vendor_err: Option<ReadU32>,
        read_byte_len: Option<ReadU32>,
        read_imm_data: Option<ReadU32>,
        read_qp_num: Option<ReadU32>,
        read_src_qp: Option<ReadU32>,
        read_wc_flags: Option<ReadU32>,
        read_slid: Option<ReadU32>,
        read_sl: Option<ReadU8>,
        read_dlid_path_bits: Option<ReadU8>,
        read_completion_ts: Option<ReadU64>,
        read_cvlan: Option<ReadU16>,
        read_flow_tag: Option<ReadU32>,
        read_tm_info: Option<ReadTmInfo>,
        read_completion_wallclock_ns: Option<ReadU64>,
    }
}

c_struct! {
    /// Options of one poll; no bit of it means anything yet.
    pub struct PollCqAttr = "struct ibv_poll_cq_attr" {
        comp_mask: u32,
    }
}

c_struct! {
    /// What tag matching says of a message.
    pub struct WcTmInfo = "struct ibv_wc_tm_info" {
        tag: u64,
        r#priv: u32,
    }
}

c_struct! {
    /// How to create a [`CqEx`].
    pub struct CqInitAttrEx = "struct ibv_cq_init_attr_ex" {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut CompChannel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut Pd,
    }
}

c_struct! {
    /// Moderation of a CQ's events; the period is in microseconds.
    pub struct ModerateCq = "struct ibv_moderate_cq" {
        cq_count: u16,
        cq_period: u16,
    }
}

c_struct! {
    /// How to modify a CQ.
    pub struct ModifyCqAttr = "struct ibv_modify_cq_attr" {
        attr_mask: u32,
        moderate: ModerateCq,
    }
}

/// C's `unsigned int`, which `read_wc_flags` returns, is what [`ReadU32`] says.
const _: () = assert!(size_of::<c_uint>() == size_of::<u32>());

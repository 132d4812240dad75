//! The operations of an open device: the pointers that the header's inline functions call.

use std::ffi::{c_int, c_uint};

use libc::size_t;

use crate::context::{Context, OpsRoom, ValuesEx};
use crate::cq::{Cq, CqEx, CqInitAttrEx, ModifyCqAttr};
use crate::device::{DeviceAttr, DeviceAttrEx, PortAttr, QueryDeviceExInput};
use crate::dm::{AllocDmAttr, Dm};
use crate::flow::{Flow, FlowAttr, RwqIndTable, RwqIndTableInitAttr, Wq, WqAttr, WqInitAttr};
use crate::mr::{Mr, Mw, MwBind};
use crate::pd::{ParentDomainInitAttr, Pd, Td, TdInitAttr};
use crate::qp::{Qp, QpInitAttrEx, QpOpenAttr, QpRateLimitAttr};
use crate::srq::{OpsWr, Srq, SrqInitAttrEx, Xrcd, XrcdInitAttr};
use crate::wc::Wc;
use crate::wr::{RecvWr, SendWr, Sge};
use crate::{Absent, CEnum, Opaque, c_struct};

pub type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
pub type ReqNotifyCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
pub type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
pub type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;
pub type PostSrqRecv = unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int;
pub type QueryDevice = unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int;
pub type QueryPortCompat = unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int;
pub type QueryPort = unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, size_t) -> c_int;
pub type QueryDeviceEx = unsafe extern "C" fn(
    *mut Context,
    *const QueryDeviceExInput,
    *mut DeviceAttrEx,
    size_t,
) -> c_int;
pub type AdviseMr = unsafe extern "C" fn(*mut Pd, CEnum, u32, *mut Sge, u32) -> c_int;
pub type AllocNullMr = unsafe extern "C" fn(*mut Pd) -> *mut Mr;
pub type RegDmMr = unsafe extern "C" fn(*mut Pd, *mut Dm, u64, size_t, c_uint) -> *mut Mr;
pub type AllocDm = unsafe extern "C" fn(*mut Context, *mut AllocDmAttr) -> *mut Dm;
pub type FreeDm = unsafe extern "C" fn(*mut Dm) -> c_int;
pub type AllocMw = unsafe extern "C" fn(*mut Pd, CEnum) -> *mut Mw;
pub type BindMw = unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int;
pub type DeallocMw = unsafe extern "C" fn(*mut Mw) -> c_int;
pub type GetSrqNum = unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int;
pub type OpenXrcd = unsafe extern "C" fn(*mut Context, *mut XrcdInitAttr) -> *mut Xrcd;
pub type CloseXrcd = unsafe extern "C" fn(*mut Xrcd) -> c_int;
pub type AllocTd = unsafe extern "C" fn(*mut Context, *mut TdInitAttr) -> *mut Td;
pub type DeallocTd = unsafe extern "C" fn(*mut Td) -> c_int;
pub type AllocParentDomain =
    unsafe extern "C" fn(*mut Context, *mut ParentDomainInitAttr) -> *mut Pd;
pub type ModifyQpRateLimit = unsafe extern "C" fn(*mut Qp, *mut QpRateLimitAttr) -> c_int;
pub type ModifyCq = unsafe extern "C" fn(*mut Cq, *mut ModifyCqAttr) -> c_int;
pub type QueryRtValues = unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int;
pub type CreateCqEx = unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx;
pub type CreateQpEx = unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp;
pub type OpenQp = unsafe extern "C" fn(*mut Context, *mut QpOpenAttr) -> *mut Qp;
pub type PostSrqOps = unsafe extern "C" fn(*mut Srq, *mut OpsWr, *mut *mut OpsWr) -> c_int;
pub type CreateWq = unsafe extern "C" fn(*mut Context, *mut WqInitAttr) -> *mut Wq;
pub type ModifyWq = unsafe extern "C" fn(*mut Wq, *mut WqAttr) -> c_int;
pub type DestroyWq = unsafe extern "C" fn(*mut Wq) -> c_int;
pub type CreateRwqIndTable =
    unsafe extern "C" fn(*mut Context, *mut RwqIndTableInitAttr) -> *mut RwqIndTable;
pub type DestroyRwqIndTable = unsafe extern "C" fn(*mut RwqIndTable) -> c_int;
pub type CreateFlow = unsafe extern "C" fn(*mut Qp, *mut FlowAttr) -> *mut Flow;
pub type DestroyFlow = unsafe extern "C" fn(*mut Flow) -> c_int;
pub type CreateSrqEx = unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq;

c_struct! {
    /// The first set of operations. The header calls none of those named `_compat_`.
    pub struct ContextOps = "struct ibv_context_ops" {
        _compat_query_device: Option<QueryDevice>,
        _compat_query_port: Option<QueryPortCompat>,
        _compat_alloc_pd: Absent,
        _compat_dealloc_pd: Absent,
        _compat_reg_mr: Absent,
        _compat_rereg_mr: Absent,
        _compat_dereg_mr: Absent,
        alloc_mw: Option<AllocMw>,
        bind_mw: Option<BindMw>,
        dealloc_mw: Option<DeallocMw>,
        _compat_create_cq: Absent,
        poll_cq: Option<PollCq>,
        req_notify_cq: Option<ReqNotifyCq>,
        _compat_cq_event: Absent,
        _compat_resize_cq: Absent,
        _compat_destroy_cq: Absent,
        _compat_create_srq: Absent,
        _compat_modify_srq: Absent,
        _compat_query_srq: Absent,
        _compat_destroy_srq: Absent,
        post_srq_recv: Option<PostSrqRecv>,
        _compat_create_qp: Absent,
        _compat_query_qp: Absent,
        _compat_modify_qp: Absent,
        _compat_destroy_qp: Absent,
        post_send: Option<PostSend>,
        post_recv: Option<PostRecv>,
        _compat_create_ah: Absent,
        _compat_destroy_ah: Absent,
        _compat_attach_mcast: Absent,
        _compat_detach_mcast: Absent,
        _compat_async_event: Absent,
    }
}

const _: () = assert!(
    size_of::<ContextOps>() == size_of::<OpsRoom>()
        && align_of::<ContextOps>() == align_of::<OpsRoom>()
);

impl ContextOps {
    /// The operations of a context.
    pub fn of(context: &mut Context) -> &mut Self {
        let ops = &raw mut context.ops;
        // SAFETY: both types are the same number of pointers to functions that may be absent (their
        // sizes are compared above), so each value of one is a value of the other. The result has
        // the lifetime of the borrow.
        unsafe { &mut *ops.cast::<Self>() }
    }
}

c_struct! {
    /// The open device with the operations that were added later. It grows at its start: `context`
    /// is always last, and `sz` is right before it.
    #[expect(non_snake_case, reason = "C names them so")]
    pub struct VerbsContext = "struct verbs_context" {
        free_buf: Absent,
        alloc_buf: Absent,
        dm_export_dmabuf_fd: Absent,
        reg_mr_ex: Absent,
        dealloc_dmah: Absent,
        alloc_dmah: Absent,
        query_port: Option<QueryPort>,
        advise_mr: Option<AdviseMr>,
        alloc_null_mr: Option<AllocNullMr>,
        read_counters: Absent,
        attach_counters_point_flow: Absent,
        create_counters: Absent,
        destroy_counters: Absent,
        reg_dm_mr: Option<RegDmMr>,
        alloc_dm: Option<AllocDm>,
        free_dm: Option<FreeDm>,
        modify_flow_action_esp: Absent,
        destroy_flow_action: Absent,
        create_flow_action_esp: Absent,
        modify_qp_rate_limit: Option<ModifyQpRateLimit>,
        alloc_parent_domain: Option<AllocParentDomain>,
        dealloc_td: Option<DeallocTd>,
        alloc_td: Option<AllocTd>,
        modify_cq: Option<ModifyCq>,
        post_srq_ops: Option<PostSrqOps>,
        destroy_rwq_ind_table: Option<DestroyRwqIndTable>,
        create_rwq_ind_table: Option<CreateRwqIndTable>,
        destroy_wq: Option<DestroyWq>,
        modify_wq: Option<ModifyWq>,
        create_wq: Option<CreateWq>,
        query_rt_values: Option<QueryRtValues>,
        create_cq_ex: Option<CreateCqEx>,
        /// The library's own; programs never look.
        r#priv: *mut Opaque,
        query_device_ex: Option<QueryDeviceEx>,
        ibv_destroy_flow: Option<DestroyFlow>,
        ABI_placeholder2: Absent,
        ibv_create_flow: Option<CreateFlow>,
        ABI_placeholder1: Absent,
        open_qp: Option<OpenQp>,
        create_qp_ex: Option<CreateQpEx>,
        get_srq_num: Option<GetSrqNum>,
        create_srq_ex: Option<CreateSrqEx>,
        open_xrcd: Option<OpenXrcd>,
        close_xrcd: Option<CloseXrcd>,
        _ABI_placeholder3: u64,
        /// Size of the whole. The header uses a pointer only if it lies within.
        sz: size_t,
        context: Context,
    }
}

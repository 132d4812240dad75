//! Queue pairs: creation, modification, queries, destruction. [`super::post`] and [`super::wr`]
//! fill their queues.

use std::ffi::c_int;
use std::mem;
use std::ptr;
use std::sync::Arc;

use device::ids::QpId;
use device::{Kind, QpSpec, Refusal};
use iba::{AttrMask, QpType, Qpn};
use transport::RateLimit;

use super::acks::Acks;
use super::boundary::control;
use super::errno;
use super::object::{given, room, same_device};
use super::own::context::opened;
use super::own::cq;
use super::own::pd::{self, PdObject};
use super::own::qp::{OwnQp, QpObject, lookup, own};
use super::qp_attr;
use super::srq::SrqObject;
use super::turn::Turn;
use super::types::context::Context;
use super::types::cq::Cq;
use super::types::pd::Pd;
use super::types::qp::{
    Ece, Qp, QpAttr, QpCap, QpEx, QpInitAttr, QpInitAttrEx, QpOpenAttr, QpRateLimitAttr,
};
use super::types::srq::{Srq, Xrcd};
use super::wq::{self, TableObject};
use super::wr;
use super::xrc::XrcdObject;

/// Fills in the numbers that a program sees of a QP.
fn numbered(id: QpId, qpn: Qpn) -> impl FnOnce(&mut QpEx) {
    move |c| {
        c.qp_base.handle = id.handle();
        c.qp_base.qp_num = qpn.value();
    }
}

pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp {
    control("ibv_create_qp", ptr::null_mut(), || {
        // SAFETY: contract: the attributes are valid.
        let wanted = unsafe { given(attr) };
        let wanted = Wanted {
            qp_context: wanted.qp_context,
            send_cq: wanted.send_cq,
            recv_cq: wanted.recv_cq,
            srq: wanted.srq,
            cap: wanted.cap,
            qp_type: wanted.qp_type,
            sq_sig_all: wanted.sq_sig_all,
            is_extended: false,
        };
        // The capacities are granted exactly as requested, so they need not be written back.
        // SAFETY: contract: the PD is one of ours, and so are the queues.
        errno::or_null(unsafe { create(pd, &wanted) })
    })
}

/// Bits of [`QpInitAttrEx::comp_mask`].
mod mask {
    pub(super) const PD: u32 = 1;
    pub(super) const XRCD: u32 = 1 << 1;
    pub(super) const CREATE_FLAGS: u32 = 1 << 2;
    pub(super) const IND_TABLE: u32 = 1 << 4;
    pub(super) const RX_HASH: u32 = 1 << 5;
    pub(super) const SEND_OPS_FLAGS: u32 = 1 << 6;
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut Context,
    attr: *mut QpInitAttrEx,
) -> *mut Qp {
    use mask::{CREATE_FLAGS, IND_TABLE, PD, RX_HASH, SEND_OPS_FLAGS, XRCD};
    const KNOWN: u32 = CREATE_FLAGS | IND_TABLE | PD | RX_HASH | SEND_OPS_FLAGS | XRCD;
    control("ibv_create_qp_ex", ptr::null_mut(), || {
        // SAFETY: contract: the attributes are valid; only those that the mask names are read.
        let wanted = unsafe { given(attr) };
        // SAFETY: contract: the context is one of ours.
        let _ = unsafe { opened(context) };
        let has = |bit| wanted.comp_mask & bit != 0;
        let refused =
            |kind, what: String| Err(Refusal::new(kind, format!("ibv_create_qp_ex: {what}")));
        let created = if wanted.comp_mask & !KNOWN != 0 {
            refused(Kind::NotSupported, format!("comp_mask {:#x}", wanted.comp_mask))
        } else if wanted.qp_type == QpType::XrcRecv as u32 {
            if has(XRCD) {
                // SAFETY: contract: the mask says that the domain is valid.
                unsafe { create_target(wanted.xrcd, wanted.qp_context) }
            } else {
                refused(Kind::Invalid, "no XRC domain".to_owned())
            }
        } else if has(XRCD) {
            refused(Kind::Invalid, "only an XRC_RECV QP has an XRC domain".to_owned())
        } else if !has(PD) {
            refused(Kind::Invalid, "no protection domain".to_owned())
        } else if has(CREATE_FLAGS) && wanted.create_flags != 0 {
            refused(Kind::NotSupported, format!("create_flags {:#x}", wanted.create_flags))
        } else if has(RX_HASH) || has(IND_TABLE) {
            // SAFETY: contract: what the mask names is valid.
            unsafe { create_rss(context, wanted) }
        } else if has(SEND_OPS_FLAGS) && !wr::has_operations(wanted.qp_type, wanted.send_ops_flags)
        {
            refused(Kind::NotSupported, format!("send_ops_flags {:#x}", wanted.send_ops_flags))
        } else {
            let pd = wanted.pd;
            // SAFETY: contract: the mask says that the PD is valid.
            let _ = unsafe { pd::of_context(context, pd) };
            let wanted = Wanted {
                qp_context: wanted.qp_context,
                send_cq: wanted.send_cq,
                recv_cq: wanted.recv_cq,
                srq: wanted.srq,
                cap: wanted.cap,
                qp_type: wanted.qp_type,
                sq_sig_all: wanted.sq_sig_all,
                is_extended: has(SEND_OPS_FLAGS),
            };
            // SAFETY: contract: the PD is one of ours, and so are the queues.
            unsafe { create(pd, &wanted) }
        };
        errno::or_null(created)
    })
}

/// What a program asks of a new QP.
struct Wanted {
    qp_context: *mut std::ffi::c_void,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut Srq,
    cap: QpCap,
    qp_type: u32,
    sq_sig_all: c_int,
    is_extended: bool,
}

/// Creates a QP in a PD of ours, over queues of ours.
unsafe fn create(pd: *mut Pd, wanted: &Wanted) -> Result<*mut Qp, Refusal> {
    let Some(qp_type) = QpType::from_code(wanted.qp_type) else {
        let what = format!("ibv_create_qp: there is no QP type {}", wanted.qp_type);
        return Err(Refusal::new(Kind::Invalid, what));
    };
    if qp_type == QpType::XrcRecv {
        let what = "ibv_create_qp: ibv_create_qp_ex creates an XRC_RECV QP, in an XRC domain";
        return Err(Refusal::new(Kind::Invalid, what));
    }
    // An XRC_SEND QP receives nothing.
    let recv_cq = if qp_type == QpType::XrcSend { wanted.send_cq } else { wanted.recv_cq };
    if wanted.send_cq.is_null() || recv_cq.is_null() {
        let what = format!("ibv_create_qp: a {qp_type} QP needs two CQs");
        return Err(Refusal::new(Kind::Invalid, what));
    }
    // SAFETY: the caller's promise.
    let parent = unsafe { PdObject::lookup(pd) };
    // SAFETY: the caller's promise.
    let [send_cq, recv_cq] = [wanted.send_cq, recv_cq].map(|cq| {
        // SAFETY: the caller's promise.
        let own = unsafe { cq::lookup(cq) };
        same_device(&parent.hca, &own.hca, "a CQ");
        own.id
    });
    let srq = if wanted.srq.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        let own = unsafe { SrqObject::lookup(wanted.srq) };
        same_device(&parent.hca, &own.hca, "the SRQ");
        Some(own.id)
    };
    // SAFETY: the structure is made of integers, pointers, and pointers to functions that may be
    // absent, for all of which zero is a value; so it is for a mutex and a condition.
    let mut c: QpEx = unsafe { mem::zeroed() };
    // SAFETY: the caller's promise.
    c.qp_base.context = unsafe { (*pd).context };
    c.qp_base.qp_context = wanted.qp_context;
    c.qp_base.pd = pd;
    c.qp_base.send_cq = wanted.send_cq;
    c.qp_base.recv_cq = wanted.recv_cq;
    c.qp_base.srq = wanted.srq;
    c.qp_base.qp_type = wanted.qp_type;
    if wanted.is_extended {
        wr::fill(&mut c);
    }

    let cap = wanted.cap;
    // The engine returns the QP's address with its events, so the object comes first.
    let boxed = QpObject::reserve(c);
    let spec = QpSpec {
        pd: parent.id,
        qp_type,
        send_cq,
        recv_cq,
        srq,
        xrcd: None,
        cap: iba::QpCap {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        },
        sq_sig_all: wanted.sq_sig_all != 0,
        cookie: boxed.address() as u64,
    };
    let (id, qpn) = parent.hca.alive()?.create_qp(&spec)?;
    let own = OwnQp {
        hca: Arc::clone(&parent.hca),
        id,
        acks: Acks::default(),
        batch: Turn::default(),
        cap,
        sq_sig_all: wanted.sq_sig_all,
        is_extended: wanted.is_extended,
    };
    Ok(boxed.create(numbered(id, qpn), own).cast())
}

/// Creates an XRC_RECV QP in a domain of ours. It has no PD and no queues: those of its SRQs apply.
unsafe fn create_target(
    xrcd: *mut Xrcd,
    qp_context: *mut std::ffi::c_void,
) -> Result<*mut Qp, Refusal> {
    // SAFETY: the caller's promise.
    let domain = unsafe { XrcdObject::lookup(xrcd) };
    // SAFETY: the structure is made of integers, pointers, and pointers to functions that may be
    // absent, for all of which zero is a value; so it is for a mutex and a condition.
    let mut c: QpEx = unsafe { mem::zeroed() };
    // SAFETY: the caller's promise.
    c.qp_base.context = unsafe { (*xrcd).context };
    c.qp_base.qp_context = qp_context;
    c.qp_base.qp_type = QpType::XrcRecv as u32;
    let boxed = QpObject::reserve(c);
    let spec = QpSpec::xrc_target(domain.id, boxed.address() as u64);
    let (id, qpn) = domain.hca.lock().create_qp(&spec)?;
    let own = OwnQp::without_queues(&domain.hca, id);
    Ok(boxed.create(numbered(id, qpn), own).cast())
}

/// Creates a QP that spreads frames over work queues. The attributes that the mask names are valid.
unsafe fn create_rss(context: *mut Context, wanted: &QpInitAttrEx) -> Result<*mut Qp, Refusal> {
    let refused =
        |what: String| Err(Refusal::new(Kind::Invalid, format!("ibv_create_qp_ex: {what}")));
    let both = mask::RX_HASH | mask::IND_TABLE;
    if wanted.comp_mask & both != both || wanted.comp_mask & mask::SEND_OPS_FLAGS != 0 {
        let given = wanted.comp_mask;
        return refused(format!("comp_mask {given:#x}: a hash and a table belong together"));
    }
    if wanted.qp_type != QpType::RawPacket as u32 {
        return refused(format!("a hash for QP type {}; only RAW_PACKET has one", wanted.qp_type));
    }
    // `create_qp` of the kernel's uverbs.
    if wanted.cap.max_recv_wr != 0 || wanted.cap.max_recv_sge != 0 || !wanted.srq.is_null() {
        return refused(
            "a QP that spreads frames over work queues has no receives of its own".to_owned(),
        );
    }
    // SAFETY: the caller's promise.
    let parent = unsafe { pd::of_context(context, wanted.pd) };
    // SAFETY: the caller's promise.
    let table = unsafe { TableObject::lookup(wanted.rwq_ind_tbl) };
    same_device(&parent.hca, &table.hca, "the indirection table");
    // SAFETY: the caller's promise.
    let hash = unsafe { wq::rx_hash(&wanted.rx_hash_conf) }?;
    // SAFETY: the structure is made of integers, pointers, and pointers to functions that may be
    // absent, for all of which zero is a value; so it is for a mutex and a condition.
    let mut c: QpEx = unsafe { mem::zeroed() };
    c.qp_base.context = context;
    c.qp_base.qp_context = wanted.qp_context;
    c.qp_base.pd = wanted.pd;
    c.qp_base.qp_type = wanted.qp_type;
    let boxed = QpObject::reserve(c);
    let mut engine = parent.hca.alive()?;
    let (id, qpn) = engine.create_rss_qp(parent.id, table.id, hash, boxed.address() as u64)?;
    drop(engine);
    let own = OwnQp::without_queues(&parent.hca, id);
    Ok(boxed.create(numbered(id, qpn), own).cast())
}

/// Bits of [`QpOpenAttr::comp_mask`].
mod open_mask {
    pub(super) const NUM: u32 = 1;
    pub(super) const XRCD: u32 = 1 << 1;
    pub(super) const CONTEXT: u32 = 1 << 2;
    pub(super) const TYPE: u32 = 1 << 3;
}

pub(crate) unsafe extern "C" fn open_qp(context: *mut Context, attr: *mut QpOpenAttr) -> *mut Qp {
    use open_mask::{CONTEXT, NUM, TYPE, XRCD};
    control("ibv_open_qp", ptr::null_mut(), || {
        // SAFETY: contract: the attributes are valid; only those that the mask names are read.
        let attr = unsafe { given(attr) };
        let needed = NUM | XRCD | TYPE;
        let opened = if attr.comp_mask & !(needed | CONTEXT) != 0 {
            let what = format!("ibv_open_qp: comp_mask {:#x}", attr.comp_mask);
            Err(Refusal::new(Kind::NotSupported, what))
        } else if attr.comp_mask & needed != needed || attr.qp_type != QpType::XrcRecv as u32 {
            let what = "ibv_open_qp: it needs the number and the domain of an XRC_RECV QP";
            Err(Refusal::new(Kind::Invalid, what))
        } else {
            let has_context = attr.comp_mask & CONTEXT != 0;
            let qp_context = if has_context { attr.qp_context } else { ptr::null_mut() };
            // SAFETY: contract: the mask says that the domain is valid.
            unsafe { open_target(context, attr.xrcd, attr.qp_num, qp_context) }
        };
        errno::or_null(opened)
    })
}

/// Creates another handle of an XRC_RECV QP in a domain of ours, for a context of ours.
unsafe fn open_target(
    context: *mut Context,
    xrcd: *mut Xrcd,
    qp_num: u32,
    qp_context: *mut std::ffi::c_void,
) -> Result<*mut Qp, Refusal> {
    // SAFETY: the caller's promise.
    let open = unsafe { opened(context) };
    // SAFETY: the caller's promise.
    let domain = unsafe { XrcdObject::lookup(xrcd) };
    same_device(&open.hca, &domain.hca, "the XRC domain");
    // SAFETY: the structure is made of integers, pointers, and pointers to functions that may be
    // absent, for all of which zero is a value; so it is for a mutex and a condition.
    let mut c: QpEx = unsafe { mem::zeroed() };
    c.qp_base.context = context;
    c.qp_base.qp_context = qp_context;
    c.qp_base.qp_type = QpType::XrcRecv as u32;
    c.qp_base.qp_num = qp_num;
    let boxed = QpObject::reserve(c);
    let mut engine = domain.hca.alive()?;
    let id = engine.open_qp(open.id, domain.id, Qpn::new(qp_num), boxed.address() as u64)?;
    let state = engine.query_qp(id)?.state;
    drop(engine);
    let own = OwnQp::without_queues(&domain.hca, id);
    let finish = |c: &mut QpEx| {
        c.qp_base.handle = id.handle();
        c.qp_base.state = state as u32;
    };
    Ok(boxed.create(finish, own).cast())
}

pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut Qp) -> *mut QpEx {
    control("ibv_qp_to_qp_ex", ptr::null_mut(), || {
        // SAFETY: contract: the QP is one of ours.
        if unsafe { own(qp) }.is_extended { qp.cast() } else { ptr::null_mut() }
    })
}

pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut Qp,
    attr: *mut QpAttr,
    mask: c_int,
) -> c_int {
    control("ibv_modify_qp", libc::EIO, || {
        // SAFETY: contract: the QP is one of ours.
        let _ = unsafe { lookup(qp) };
        let mask = AttrMask::from_bits_retain(mask as u32);
        // SAFETY: contract: the attributes that the mask names are valid, and the others are
        // integers too.
        let attr = qp_attr::from_c(unsafe { given(attr) }, mask);
        // SAFETY: contract: the QP is one of ours.
        errno::or_errno(attr.and_then(|attr| unsafe { modify(qp, &attr, mask) }))
    })
}

/// Modifies a QP, and the fields of its C structure.
///
/// # Safety
///
/// `qp` is one of ours, and alive.
pub(crate) unsafe fn modify(
    qp: *mut Qp,
    attr: &iba::QpAttr,
    mask: AttrMask,
) -> Result<(), Refusal> {
    // SAFETY: the caller's promise.
    let own = unsafe { lookup(qp) };
    own.hca.modify_qp(own.id, attr, mask)?;
    if mask.contains(AttrMask::STATE) {
        // SAFETY: the caller's promise; the field is the library's to write.
        unsafe { (*qp).state = attr.state as u32 };
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut Qp,
    attr: *mut QpRateLimitAttr,
) -> c_int {
    control("ibv_modify_qp_rate_limit", libc::EIO, || {
        // SAFETY: contract: the QP is one of ours.
        let own = unsafe { lookup(qp) };
        // SAFETY: contract: the attributes are valid.
        let attr = unsafe { given(attr) };
        if attr.comp_mask != 0 {
            let what = format!("ibv_modify_qp_rate_limit: comp_mask {:#x}", attr.comp_mask);
            return errno::of(Refusal::new(Kind::NotSupported, what).kind());
        }
        let limit = RateLimit {
            kbps: attr.rate_limit,
            max_burst: attr.max_burst_sz,
            typical_packet: attr.typical_pkt_sz,
        };
        let limited = own.hca.alive().and_then(|mut nic| nic.modify_qp_rate_limit(own.id, limit));
        errno::or_errno(limited)
    })
}

pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut Qp,
    attr: *mut QpAttr,
    _mask: c_int,
    init_attr: *mut QpInitAttr,
) -> c_int {
    control("ibv_query_qp", libc::EIO, || {
        // SAFETY: contract: the QP is one of ours.
        let own = unsafe { lookup(qp) };
        let (attr, init_attr) = (room(attr), room(init_attr));
        let found = own.hca.alive().and_then(|engine| engine.query_qp(own.id));
        errno::or_errno(found.map(|found| {
            // SAFETY: contract: the program has room for the attributes. All are returned, whatever
            // was requested.
            unsafe { attr.write(qp_attr::to_c(&found, own.cap)) };
            // SAFETY: contract: the QP is alive; the field is the library's to write.
            unsafe { (*qp).state = found.state as u32 };
            // SAFETY: contract: the QP is alive.
            let c = unsafe { &*qp };
            let created = QpInitAttr {
                qp_context: c.qp_context,
                send_cq: c.send_cq,
                recv_cq: c.recv_cq,
                srq: c.srq,
                cap: own.cap,
                qp_type: c.qp_type,
                sq_sig_all: own.sq_sig_all,
            };
            // SAFETY: contract: the program has room for the attributes.
            unsafe { init_attr.write(created) };
        }))
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    control("ibv_destroy_qp", libc::EIO, || {
        // SAFETY: contract: the QP is one of ours.
        let own = unsafe { lookup(qp) };
        let is_last = own.hca.lock().close_qp(own.id, qp.addr() as u64);
        if is_last && let Err(refusal) = own.hca.destroy_qp(own.id) {
            return errno::of(refusal.kind());
        }
        if !own.hca.lock().is_husk() {
            own.acks.wait();
        }
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { QpObject::destroy(qp.cast()) });
        0
    })
}

/// No operation promises more than that its last word is written last.
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut Qp,
    _opcode: u32,
    _flags: u32,
) -> c_int {
    0
}

/// There is no vendor to negotiate with, and the answer says so in both ways that programs check.
pub(crate) unsafe extern "C" fn ibv_query_ece(qp: *mut Qp, ece: *mut Ece) -> c_int {
    control("ibv_query_ece", libc::EIO, || {
        // SAFETY: contract: the QP is one of ours.
        let _ = unsafe { lookup(qp) };
        let answer = Ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: contract: the program has room for the answer.
        unsafe { room(ece).write(answer) };
        libc::EOPNOTSUPP
    })
}

/// No vendor has options here that could be accepted; a request that names no vendor is refused the
/// same way (rdma-core: `ibv_set_ece`).
pub(crate) unsafe extern "C" fn ibv_set_ece(qp: *mut Qp, ece: *mut Ece) -> c_int {
    control("ibv_set_ece", libc::EIO, || {
        // SAFETY: contract: the QP is one of ours.
        let _ = unsafe { lookup(qp) };
        // SAFETY: contract: the options are valid.
        let _ = unsafe { given(ece) };
        libc::EOPNOTSUPP
    })
}

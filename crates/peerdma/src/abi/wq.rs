//! Work queues, and the indirection tables of receive side scaling.

use std::ffi::c_int;
use std::mem;
use std::ptr;
use std::sync::Arc;

use device::ids::{RwqTableId, WqId};
use device::rss::{self, RxHash};
use device::{Hca, Kind, Refusal, WqState};
use iba::HashFields;

use super::boundary::{control, data};
use super::object::{Object, given, same_device};
use super::own::context::opened;
use super::own::{cq, pd};
use super::types::context::Context;
use super::types::flow::{RwqIndTable, RwqIndTableInitAttr, Wq, WqAttr, WqInitAttr};
use super::types::qp::RxHashConf;
use super::types::wr::RecvWr;
use super::{errno, lists};

/// The library's part of a work queue.
pub(crate) struct OwnWq {
    hca: Arc<Hca>,
    id: WqId,
}

/// The library's part of an indirection table.
pub(crate) struct OwnTable {
    pub(crate) hca: Arc<Hca>,
    pub(crate) id: RwqTableId,
}

type WqObject = Object<Wq, OwnWq>;
pub(crate) type TableObject = Object<RwqIndTable, OwnTable>;

/// `IBV_WQ_INIT_ATTR_FLAGS`.
const INIT_FLAGS: u32 = 1;
/// `IBV_WQT_RQ`, the only type.
const TYPE_RQ: u32 = 0;
/// The most entries of a table that a program may ask for, as a logarithm; the device has fewer.
const MOST_LOG: u32 = 16;
/// `IBV_RX_HASH_FUNC_TOEPLITZ`.
pub(crate) const TOEPLITZ: u8 = 1;

fn refused<T>(verb: &str, kind: Kind, what: String) -> Result<T, Refusal> {
    Err(Refusal::new(kind, format!("{verb}: {what}")))
}

pub(crate) unsafe extern "C" fn create_wq(context: *mut Context, attr: *mut WqInitAttr) -> *mut Wq {
    control("ibv_create_wq", ptr::null_mut(), || {
        // SAFETY: contract: the attributes are valid.
        let attr = unsafe { given(attr) };
        // SAFETY: contract: the context, the PD and the CQ are ours.
        errno::or_null(unsafe { create(context, attr) })
    })
}

unsafe fn create(context: *mut Context, attr: &WqInitAttr) -> Result<*mut Wq, Refusal> {
    let no = |kind, what| refused("ibv_create_wq", kind, what);
    if attr.wq_type != TYPE_RQ || attr.comp_mask & !INIT_FLAGS != 0 {
        let (kind, mask) = (attr.wq_type, attr.comp_mask);
        return no(Kind::Invalid, format!("type {kind}, comp_mask {mask:#x}"));
    }
    if attr.comp_mask & INIT_FLAGS != 0 && attr.create_flags != 0 {
        return no(Kind::NotSupported, format!("create_flags {:#x}", attr.create_flags));
    }
    // SAFETY: the caller's promise.
    let domain = unsafe { pd::of_context(context, attr.pd) };
    // SAFETY: the caller's promise.
    let completions = unsafe { cq::lookup(attr.cq) };
    same_device(&domain.hca, &completions.hca, "the CQ");
    let mut engine = domain.hca.alive()?;
    let (id, number) = engine.create_wq(domain.id, completions.id, attr.max_wr, attr.max_sge)?;
    drop(engine);
    // SAFETY: the structure is made of integers, pointers, and a pointer to a function that may be
    // absent, for all of which zero is a value; so it is for a mutex and a condition.
    let mut c: Wq = unsafe { mem::zeroed() };
    c.context = context;
    c.wq_context = attr.wq_context;
    c.pd = attr.pd;
    c.cq = attr.cq;
    c.wq_num = number.value();
    c.handle = id.handle();
    c.state = WqState::Reset as u32;
    c.wq_type = attr.wq_type;
    c.post_recv = Some(post_recv);
    Ok(WqObject::create(c, OwnWq { hca: Arc::clone(&domain.hca), id }))
}

/// Bits of [`WqAttr::attr_mask`].
mod mask {
    pub(super) const STATE: u32 = 1;
    pub(super) const CURR_STATE: u32 = 1 << 1;
    pub(super) const FLAGS: u32 = 1 << 2;
}

pub(crate) unsafe extern "C" fn modify_wq(wq: *mut Wq, attr: *mut WqAttr) -> c_int {
    control("ibv_modify_wq", libc::EIO, || {
        // SAFETY: contract: the work queue is one of ours.
        let own = unsafe { WqObject::lookup(wq) };
        // SAFETY: contract: the attributes are valid.
        let attr = unsafe { given(attr) };
        errno::or_errno(change(own, attr).map(|state| {
            // SAFETY: contract: the work queue is alive; the field is the library's to write.
            unsafe { (*wq).state = state as u32 };
        }))
    })
}

fn change(own: &OwnWq, attr: &WqAttr) -> Result<WqState, Refusal> {
    use mask::{CURR_STATE, FLAGS, STATE};
    let no = |kind, what| refused("ibv_modify_wq", kind, what);
    // `ib_uverbs_ex_modify_wq` of the kernel.
    if attr.attr_mask == 0 || attr.attr_mask & !(STATE | CURR_STATE | FLAGS) != 0 {
        return no(Kind::Invalid, format!("attr_mask {:#x}", attr.attr_mask));
    }
    if attr.attr_mask & FLAGS != 0 && attr.flags_mask != 0 {
        return no(Kind::NotSupported, format!("flags {:#x}", attr.flags_mask));
    }
    let state = |bit, code: u32| match WqState::from_code(code) {
        _ if attr.attr_mask & bit == 0 => Ok(None),
        None => refused("ibv_modify_wq", Kind::Invalid, format!("there is no state {code}")),
        state => Ok(state),
    };
    let claimed = state(CURR_STATE, attr.curr_wq_state)?;
    let to = state(STATE, attr.wq_state)?;
    own.hca.alive()?.modify_wq(own.id, claimed, to)
}

pub(crate) unsafe extern "C" fn destroy_wq(wq: *mut Wq) -> c_int {
    control("ibv_destroy_wq", libc::EIO, || {
        // SAFETY: contract: the work queue is one of ours.
        let own = unsafe { WqObject::lookup(wq) };
        if let Err(refusal) = own.hca.lock().destroy_wq(own.id) {
            return errno::of(refusal.kind());
        }
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { WqObject::destroy(wq) });
        0
    })
}

/// The pointer that `ibv_post_wq_recv` calls.
unsafe extern "C" fn post_recv(wq: *mut Wq, first: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    data("ibv_post_wq_recv", libc::EIO, || {
        // SAFETY: contract: the work queue is one of ours.
        let own = unsafe { WqObject::own(wq) };
        let mut engine = own.hca.lock_to_post();
        let post = |c: &mut RecvWr| {
            // SAFETY: contract: the list that a request names is valid.
            let wr = unsafe { lists::recv_wr(c) }?;
            engine.post_wq_recv(own.id, wr).map_err(|error| lists::refused("wq_recv", &error))
        };
        // SAFETY: contract: the list is valid to its end.
        let answer = unsafe { lists::each(first, bad, post) };
        engine.kick_wq(own.id);
        answer
    })
}

pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut Context,
    attr: *mut RwqIndTableInitAttr,
) -> *mut RwqIndTable {
    control("ibv_create_rwq_ind_table", ptr::null_mut(), || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        // SAFETY: contract: the attributes are valid.
        let attr = unsafe { given(attr) };
        if attr.comp_mask != 0 || attr.log_ind_tbl_size > MOST_LOG {
            let (mask, log) = (attr.comp_mask, attr.log_ind_tbl_size);
            let what = format!("comp_mask {mask:#x}, log_ind_tbl_size {log}");
            return errno::or_null(refused("ibv_create_rwq_ind_table", Kind::Invalid, what));
        }
        let places = 1_usize << attr.log_ind_tbl_size;
        // SAFETY: contract: the list is as long as said.
        let _ = unsafe { given(attr.ind_tbl) };
        let mut queues = Vec::with_capacity(places);
        for place in 0..places {
            // SAFETY: as above.
            let wq = unsafe { attr.ind_tbl.wrapping_add(place).read() };
            // SAFETY: contract: the work queues are ours.
            let own = unsafe { WqObject::lookup(wq) };
            same_device(&open.hca, &own.hca, "a work queue");
            queues.push(own.id);
        }
        let made = open.hca.alive().and_then(|mut e| e.create_rwq_table(open.id, &queues));
        errno::or_null(made.map(|id| {
            let handle = id.handle().cast_signed();
            let c =
                RwqIndTable { context, ind_tbl_handle: handle, ind_tbl_num: handle, comp_mask: 0 };
            TableObject::create(c, OwnTable { hca: Arc::clone(&open.hca), id })
        }))
    })
}

pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut RwqIndTable) -> c_int {
    control("ibv_destroy_rwq_ind_table", libc::EIO, || {
        // SAFETY: contract: the table is one of ours.
        let own = unsafe { TableObject::lookup(table) };
        if let Err(refusal) = own.hca.lock().destroy_rwq_table(own.id) {
            return errno::of(refusal.kind());
        }
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { TableObject::destroy(table) });
        0
    })
}

/// How a program wants frames spread, in the engine's form.
///
/// The key has the given length.
pub(crate) unsafe fn rx_hash(conf: &RxHashConf) -> Result<RxHash, Refusal> {
    let no = |kind, what| refused("ibv_create_qp_ex", kind, what);
    if conf.rx_hash_function != TOEPLITZ {
        return no(Kind::NotSupported, format!("rx_hash_function {}", conf.rx_hash_function));
    }
    if usize::from(conf.rx_hash_key_len) != rss::KEY || conf.rx_hash_key.is_null() {
        let length = conf.rx_hash_key_len;
        return no(Kind::Invalid, format!("a key of {length} bytes; Toeplitz has {}", rss::KEY));
    }
    let Some(fields) = HashFields::from_bits(conf.rx_hash_fields_mask) else {
        return no(
            Kind::NotSupported,
            format!("rx_hash_fields_mask {:#x}", conf.rx_hash_fields_mask),
        );
    };
    // SAFETY: the caller's promise, and the length.
    let key = unsafe { conf.rx_hash_key.cast::<[u8; rss::KEY]>().read_unaligned() };
    Ok(RxHash { fields, key })
}

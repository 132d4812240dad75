//! Posting by calls: `ibv_wr_start`, a call for each request, one or two calls for its operands,
//! `ibv_wr_complete`.
//!
//! The requests are collected, and posted together at the end: if one is refused, none is posted
//! (`ibv_wr_post(3)`), unlike with a list of `ibv_post_send`.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;

use iba::{QpType, RKey, SendFlags, WrOpcode};
use libc::size_t;
use smallvec::SmallVec;
use transport::wr::{Data, Flush, SendWr, SgList};

use super::boundary::data;
use super::lists;
use super::mw;
use super::object::{bad, given, room};
use super::own::qp::{Batch, OwnQp, own};
use super::post;
use super::types::ah::Ah;
use super::types::mr::{Mw, MwBindInfo};
use super::types::qp::QpEx;
use super::types::wr::{BindMw, DataBuf, Sge};

/// Bits of `send_ops_flags`.
mod operation {
    pub(super) const RDMA_WRITE: u64 = 1;
    pub(super) const RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub(super) const SEND: u64 = 1 << 2;
    pub(super) const SEND_WITH_IMM: u64 = 1 << 3;
    pub(super) const RDMA_READ: u64 = 1 << 4;
    pub(super) const ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub(super) const ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub(super) const LOCAL_INV: u64 = 1 << 7;
    pub(super) const BIND_MW: u64 = 1 << 8;
    pub(super) const SEND_WITH_INV: u64 = 1 << 9;
    pub(super) const FLUSH: u64 = 1 << 11;
    pub(super) const ATOMIC_WRITE: u64 = 1 << 12;
}

/// Whether a QP of a type has all of these operations.
pub(crate) fn has_operations(qp_type: u32, wanted: u64) -> bool {
    use operation::{
        ATOMIC_CMP_AND_SWP, ATOMIC_FETCH_AND_ADD, ATOMIC_WRITE, BIND_MW, FLUSH, LOCAL_INV,
        RDMA_READ, RDMA_WRITE, RDMA_WRITE_WITH_IMM, SEND, SEND_WITH_IMM, SEND_WITH_INV,
    };
    let datagram = SEND | SEND_WITH_IMM;
    let connected = datagram | RDMA_WRITE | RDMA_WRITE_WITH_IMM | LOCAL_INV | BIND_MW;
    let has = match QpType::from_code(qp_type) {
        Some(QpType::Rc | QpType::XrcSend) => {
            let atomics = ATOMIC_CMP_AND_SWP | ATOMIC_FETCH_AND_ADD | ATOMIC_WRITE;
            connected | RDMA_READ | atomics | SEND_WITH_INV | FLUSH
        }
        Some(QpType::Uc) => connected,
        Some(QpType::Ud) => datagram,
        Some(QpType::RawPacket) => SEND,
        _ => 0,
    };
    wanted & !has == 0
}

/// Sets the pointers through which the header posts. A program calls only the operations that it
/// created the QP for, so all pointers can be set.
pub(crate) fn fill(qp: &mut QpEx) {
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_send_inv = Some(send_inv);
    qp.wr_local_inv = Some(local_inv);
    qp.wr_bind_mw = Some(bind_mw);
    qp.wr_rdma_write = Some(rdma_write);
    qp.wr_rdma_write_imm = Some(rdma_write_imm);
    qp.wr_rdma_read = Some(rdma_read);
    qp.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(atomic_fetch_add);
    qp.wr_atomic_write = Some(atomic_write);
    qp.wr_flush = Some(flush);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_set_xrc_srqn = Some(set_xrc_srqn);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
}

/// The library's part of an extended QP of ours.
#[inline]
unsafe fn own_ex<'a>(qp: *mut QpEx) -> &'a OwnQp {
    // SAFETY: the caller's promise; a QP begins its extended structure.
    unsafe { own(qp.cast()) }
}

unsafe extern "C" fn start(qp: *mut QpEx) {
    data("ibv_wr_start", (), || {
        // SAFETY: contract: the QP is one of ours.
        let own = unsafe { own_ex(qp) };
        own.batch.begin();
        // SAFETY: the turn began.
        let batch = unsafe { own.batch.get() };
        batch.requests.clear();
        batch.is_bad = false;
    });
}

unsafe extern "C" fn complete(qp: *mut QpEx) -> c_int {
    data("ibv_wr_complete", libc::EIO, || {
        // SAFETY: contract: the QP is one of ours.
        let own = unsafe { own_ex(qp) };
        check_turn(own);
        let answer = data("ibv_wr_complete", libc::EIO, || {
            let mut engine = own.hca.lock_to_post();
            // SAFETY: it is within its turn.
            let batch = unsafe { own.batch.get() };
            if batch.is_bad {
                return libc::EINVAL;
            }
            let posted = match &mut batch.requests[..] {
                [only] => engine.post_send(own.id, only),
                _ => engine.post_sends(own.id, batch.requests.drain(..)),
            };
            match posted {
                Ok(()) => 0,
                Err(error) => lists::refused("send", &error),
            }
        });
        own.batch.end();
        answer
    })
}

unsafe extern "C" fn abort(qp: *mut QpEx) {
    // SAFETY: contract: the QP is one of ours, and its turn began.
    data("ibv_wr_abort", (), || unsafe { own_ex(qp) }.batch.end());
}

/// Adds a request, with the `wr_id` and flags that the program set in the QP. The QP is one of ours
/// and in its turn.
#[inline]
unsafe fn add(qp: *mut QpEx, opcode: WrOpcode, finish: impl FnOnce(&mut SendWr)) {
    let add = |batch: &mut Batch| {
        // SAFETY: the caller's promise; a program sets these two fields and nothing else does.
        let wr_id = unsafe { (*qp).wr_id };
        // SAFETY: as above.
        let flags = unsafe { (*qp).wr_flags };
        let flags = SendFlags::from_bits_retain(flags).difference(SendFlags::INLINE);
        let mut wr = SendWr::new(wr_id, opcode, flags, Data::Sges(SgList::new()));
        finish(&mut wr);
        batch.requests.push(wr);
    };
    // SAFETY: the caller's promise.
    unsafe { step(qp, add) };
}

/// One call of a turn. The QP is one of ours and in its turn; if the program is not in its turn,
/// the call does nothing.
#[inline]
unsafe fn step(qp: *mut QpEx, step: impl FnOnce(&mut Batch)) {
    data("ibv_wr_post", (), || {
        // SAFETY: the caller's promise.
        let own = unsafe { own_ex(qp) };
        check_turn(own);
        // SAFETY: it is within its turn.
        let batch = unsafe { own.batch.get() };
        // A call that ends early leaves this value.
        let was_bad = mem::replace(&mut batch.is_bad, true);
        step(batch);
        batch.is_bad = was_bad;
    });
}

#[inline]
fn check_turn(own: &OwnQp) {
    if !own.batch.is_taken() {
        bad("no requests are collected: ibv_wr_start comes first".to_owned());
    }
}

/// Changes the last request that was added. The QP is one of ours and in its turn.
#[inline]
unsafe fn change(qp: *mut QpEx, change: impl FnOnce(&mut SendWr)) {
    let change = |batch: &mut Batch| match batch.requests.last_mut() {
        Some(last) => change(last),
        None => bad("no request was added yet".to_owned()),
    };
    // SAFETY: the caller's promise.
    unsafe { step(qp, change) };
}

unsafe extern "C" fn send(qp: *mut QpEx) {
    // SAFETY: contract: between start and complete.
    unsafe { add(qp, WrOpcode::Send, |_| ()) };
}

unsafe extern "C" fn send_imm(qp: *mut QpEx, imm: u32) {
    // SAFETY: contract: between start and complete.
    unsafe { add(qp, WrOpcode::SendWithImm, |wr| wr.imm = u32::from_be(imm)) };
}

unsafe extern "C" fn send_inv(qp: *mut QpEx, rkey: u32) {
    // SAFETY: contract: between start and complete.
    unsafe { add(qp, WrOpcode::SendWithInv, |wr| wr.imm = rkey) };
}

unsafe extern "C" fn local_inv(qp: *mut QpEx, rkey: u32) {
    // SAFETY: contract: between start and complete.
    unsafe { add(qp, WrOpcode::LocalInv, |wr| wr.imm = rkey) };
}

unsafe extern "C" fn bind_mw(qp: *mut QpEx, mw: *mut Mw, rkey: u32, info: *const MwBindInfo) {
    let finish = |wr: &mut SendWr| {
        // SAFETY: contract: the information is valid.
        let bind_info = *unsafe { given(info) };
        // SAFETY: it was found when the call began.
        let hca = &unsafe { own_ex(qp) }.hca;
        // SAFETY: contract: the window and the region are ours.
        let bound = unsafe { mw::posted(hca, &BindMw { mw, rkey, bind_info }) };
        // A request that cannot be bound stays without data, and posting refuses it.
        if let Ok(bound) = bound {
            wr.data = bound;
        }
    };
    // SAFETY: contract: between start and complete.
    unsafe { add(qp, WrOpcode::BindMw, finish) };
}

unsafe extern "C" fn rdma_write(qp: *mut QpEx, rkey: u32, remote_addr: u64) {
    // SAFETY: contract: between start and complete.
    unsafe { add(qp, WrOpcode::RdmaWrite, |wr| remote(wr, rkey, remote_addr)) };
}

unsafe extern "C" fn rdma_write_imm(qp: *mut QpEx, rkey: u32, remote_addr: u64, imm: u32) {
    let finish = |wr: &mut SendWr| {
        remote(wr, rkey, remote_addr);
        wr.imm = u32::from_be(imm);
    };
    // SAFETY: contract: between start and complete.
    unsafe { add(qp, WrOpcode::RdmaWriteWithImm, finish) };
}

unsafe extern "C" fn rdma_read(qp: *mut QpEx, rkey: u32, remote_addr: u64) {
    // SAFETY: contract: between start and complete.
    unsafe { add(qp, WrOpcode::RdmaRead, |wr| remote(wr, rkey, remote_addr)) };
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut QpEx,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    let finish = |wr: &mut SendWr| {
        remote(wr, rkey, remote_addr);
        (wr.compare_add, wr.swap) = (compare, swap);
    };
    // SAFETY: contract: between start and complete.
    unsafe { add(qp, WrOpcode::AtomicCmpAndSwp, finish) };
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut QpEx, rkey: u32, remote_addr: u64, addend: u64) {
    let finish = |wr: &mut SendWr| {
        remote(wr, rkey, remote_addr);
        wr.compare_add = addend;
    };
    // SAFETY: contract: between start and complete.
    unsafe { add(qp, WrOpcode::AtomicFetchAndAdd, finish) };
}

unsafe extern "C" fn atomic_write(
    qp: *mut QpEx,
    rkey: u32,
    remote_addr: u64,
    value: *const c_void,
) {
    let finish = |wr: &mut SendWr| {
        let mut bytes = SmallVec::new();
        // SAFETY: contract: the value has eight bytes.
        check_there(unsafe { post::append(&mut bytes, room(value.cast_mut().cast()), 8) });
        remote(wr, rkey, remote_addr);
        wr.data = Data::Inline(bytes);
    };
    // SAFETY: contract: between start and complete.
    unsafe { add(qp, WrOpcode::AtomicWrite, finish) };
}

/// Bits of the type of a FLUSH (`enum ibv_placement_type`), and the level that means the whole
/// region.
mod flushed {
    pub(super) const GLOBAL: u8 = 1;
    pub(super) const PERSISTENT: u8 = 1 << 1;
    pub(super) const WHOLE: u8 = 1;
}

unsafe extern "C" fn flush(
    qp: *mut QpEx,
    rkey: u32,
    remote_addr: u64,
    length: size_t,
    placement: u8,
    level: u8,
) {
    let known = flushed::GLOBAL | flushed::PERSISTENT;
    let finish = |wr: &mut SendWr| {
        remote(wr, rkey, remote_addr);
        // An invalid request stays without data, and posting refuses it.
        if let Ok(length) = u32::try_from(length)
            && placement & !known == 0
            && level <= flushed::WHOLE
        {
            wr.data = Data::Flush(Flush {
                length,
                whole: level == flushed::WHOLE,
                global: placement & flushed::GLOBAL != 0,
                persistent: placement & flushed::PERSISTENT != 0,
            });
        }
    };
    // SAFETY: contract: between start and complete.
    unsafe { add(qp, WrOpcode::Flush, finish) };
}

fn remote(wr: &mut SendWr, rkey: u32, remote_addr: u64) {
    (wr.remote_addr, wr.rkey) = (remote_addr, RKey(rkey));
}

unsafe extern "C" fn set_ud_addr(qp: *mut QpEx, ah: *mut Ah, remote_qpn: u32, remote_qkey: u32) {
    let finish = |wr: &mut SendWr| {
        // SAFETY: contract: the handle is one of ours.
        let to = unsafe { post::destination(ah, remote_qpn, remote_qkey) };
        match to {
            Ok(Some(to)) => wr.ud = Some(to),
            Ok(None) => bad("no address handle".to_owned()),
            Err(what) => bad(what),
        }
    };
    // SAFETY: contract: between start and complete.
    unsafe { change(qp, finish) };
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut QpEx, srqn: u32) {
    // SAFETY: contract: between start and complete.
    unsafe { change(qp, |wr| wr.srqn = srqn) };
}

unsafe extern "C" fn set_sge(qp: *mut QpEx, lkey: u32, addr: u64, length: u32) {
    let element = lists::sge(&Sge { addr, length, lkey });
    // SAFETY: contract: between start and complete.
    unsafe { change(qp, |wr| wr.data = Data::Sges(SgList::from_iter([element]))) };
}

unsafe extern "C" fn set_sge_list(qp: *mut QpEx, count: size_t, list: *const Sge) {
    let finish = |wr: &mut SendWr| {
        check_list(count, list);
        let sges = (0..count).map(|place| {
            // SAFETY: contract: the list has `count` elements.
            let c = unsafe { list.add(place) };
            // SAFETY: as above.
            lists::sge(unsafe { &*c })
        });
        wr.data = Data::Sges(sges.collect());
    };
    // SAFETY: contract: between start and complete.
    unsafe { change(qp, finish) };
}

unsafe extern "C" fn set_inline_data(qp: *mut QpEx, addr: *mut c_void, length: size_t) {
    // SAFETY: the same contract.
    unsafe { set_inline_data_list(qp, 1, ptr::from_ref(&DataBuf { addr, length })) };
}

unsafe extern "C" fn set_inline_data_list(qp: *mut QpEx, count: size_t, list: *const DataBuf) {
    let finish = |wr: &mut SendWr| {
        check_list(count, list);
        let mut bytes = SmallVec::new();
        for place in 0..count {
            // SAFETY: contract: the list has `count` elements.
            let c = unsafe { list.add(place) };
            // SAFETY: as above.
            let DataBuf { addr, length } = unsafe { *c };
            if length > 0 {
                // SAFETY: contract: the buffers are the program's own memory.
                check_there(unsafe { post::append(&mut bytes, room(addr.cast()), length) });
            }
        }
        wr.flags.insert(SendFlags::INLINE);
        wr.data = Data::Inline(bytes);
    };
    // SAFETY: contract: between start and complete.
    unsafe { change(qp, finish) };
}

/// Ends a call whose data could not be read.
fn check_there(read: Result<(), c_int>) {
    if read.is_err() {
        bad("the data is not mapped".to_owned());
    }
}

/// Ends a call whose list cannot be valid.
fn check_list<T>(count: size_t, list: *const T) {
    if count > 0 && (list.is_null() || count > lists::MOST_SGES) {
        bad(format!("a list of {count} elements at {list:p}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_each_type() {
        let all = 0x1bff;
        assert!(has_operations(QpType::Rc as u32, all));
        assert!(!has_operations(QpType::Uc as u32, operation::RDMA_READ));
        assert!(has_operations(QpType::Ud as u32, operation::SEND | operation::SEND_WITH_IMM));
        assert!(!has_operations(QpType::Ud as u32, operation::RDMA_WRITE));
        assert!(!has_operations(QpType::Uc as u32, operation::SEND_WITH_INV));
        assert!(!has_operations(QpType::Rc as u32, 1 << 10), "no segmentation");
    }
}

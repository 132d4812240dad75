//! Taking completions, in arrays (`ibv_poll_cq`) and one at a time (`ibv_start_poll`).
//!
//! This is the data path: it logs nothing.

use std::ffi::c_int;

use device::Wc;
use iba::WcFlags;

use super::boundary::{Answer, data};
use super::object::{bad, room};
use super::own::cq::{OwnCq, own};
use super::types::cq::{Cq, CqEx, PollCqAttr, WcTmInfo};
use super::types::wc;

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut Cq, num_entries: c_int, to: *mut wc::Wc) -> c_int {
    data("ibv_poll_cq", -libc::EIO, || {
        // SAFETY: contract: the queue is one of ours.
        let own = unsafe { own(cq) };
        let Ok(room) = usize::try_from(num_entries) else { return -libc::EINVAL };
        if room > 0 && to.is_null() {
            return -libc::EINVAL;
        }
        let mut engine = own.hca.poll(own.id);
        let mut count = 0;
        while count < room {
            // SAFETY: contract: the program has room for `num_entries` completions.
            let place = unsafe { to.add(count) };
            // SAFETY: as above.
            let taken = engine.take_wc(own.id, |wc| unsafe { place.write(completion_of(wc)) });
            if taken.is_none() {
                break;
            }
            count += 1;
        }
        if count == 0 && room > 0 && engine.cq_is_broken(own.id) {
            return -libc::EIO;
        }
        // It is at most `num_entries`.
        count as c_int
    })
}

#[inline]
fn completion_of(from: &Wc) -> wc::Wc {
    wc::Wc {
        wr_id: from.wr_id,
        status: from.status as u32,
        opcode: from.opcode as u32,
        vendor_err: from.vendor_err,
        byte_len: from.byte_len,
        imm_data: imm_of(from),
        qp_num: from.qpn.value(),
        src_qp: from.src_qpn.value(),
        wc_flags: from.flags.bits(),
        pkey_index: 0,
        slid: 0,
        sl: from.sl,
        dlid_path_bits: 0,
    }
}

/// Immediate data goes to the program in network order, an invalidated key as a number.
#[inline]
fn imm_of(wc: &Wc) -> u32 {
    if wc.flags.contains(WcFlags::WITH_IMM) { wc.imm.to_be() } else { wc.imm }
}

/// Sets the pointers through which the header reads a queue. A program reads only the fields that
/// it created the queue for, so all pointers can be set.
pub(crate) fn fill(cq: &mut CqEx) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_zero_u32);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_zero_u8);
    cq.read_completion_ts = Some(read_completion_ts);
    cq.read_tm_info = Some(read_tm_info);
    cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

unsafe extern "C" fn start_poll(cq: *mut CqEx, attr: *mut PollCqAttr) -> c_int {
    data("ibv_start_poll", libc::EIO, || {
        // SAFETY: contract: the options are NULL or valid.
        if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
            return libc::EINVAL;
        }
        // SAFETY: contract: the queue is one of ours.
        let own = unsafe { own(cq.cast()) };
        own.current.begin();
        // SAFETY: the turn began.
        let answer = data("ibv_start_poll", libc::EIO, || unsafe { take(cq) });
        if answer != 0 {
            // The program calls `ibv_end_poll` only after a successful start.
            own.current.end();
        }
        answer
    })
}

unsafe extern "C" fn next_poll(cq: *mut CqEx) -> c_int {
    // SAFETY: contract: the program is between start and end.
    data("ibv_next_poll", libc::EIO, || unsafe { take(cq) })
}

unsafe extern "C" fn end_poll(cq: *mut CqEx) {
    // SAFETY: contract: the queue is one of ours, and its turn began.
    data("ibv_end_poll", (), || unsafe { own(cq.cast()) }.current.end());
}

/// Makes the next completion the current one. The queue is one of ours, and its turn began.
unsafe fn take(cq: *mut CqEx) -> c_int {
    // SAFETY: the caller's promise.
    let own = unsafe { own(cq.cast()) };
    check_turn(own);
    let mut engine = own.hca.poll(own.id);
    let Some(wc) = engine.pop_wc(own.id) else {
        return if engine.cq_is_broken(own.id) { libc::EIO } else { libc::ENOENT };
    };
    drop(engine);
    // SAFETY: the caller's promise: these two fields are written in the turn only.
    unsafe { (*cq).wr_id = wc.wr_id };
    // SAFETY: as above.
    unsafe { (*cq).status = wc.status as u32 };
    // SAFETY: the turn began.
    unsafe { own.current.get() }.0 = Some(wc);
    0
}

/// What `read` finds in the current completion; the default if there is none.
///
/// The queue is one of ours, and its turn began.
#[inline]
unsafe fn read<T: Default + Answer>(cq: *mut CqEx, read: impl FnOnce(&Wc) -> T) -> T {
    data("ibv_wc_read", T::default(), || {
        // SAFETY: the caller's promise.
        let own = unsafe { own(cq.cast()) };
        check_turn(own);
        // SAFETY: it is within its turn.
        let current = unsafe { own.current.get() };
        current.0.as_ref().map(read).unwrap_or_default()
    })
}

#[inline]
fn check_turn(own: &OwnCq) {
    if !own.current.is_taken() {
        bad("no completion is current: ibv_start_poll comes first".to_owned());
    }
}

unsafe extern "C" fn read_opcode(cq: *mut CqEx) -> u32 {
    // SAFETY: contract: between start and end.
    unsafe { read(cq, |wc| wc.opcode as u32) }
}

unsafe extern "C" fn read_vendor_err(cq: *mut CqEx) -> u32 {
    // SAFETY: contract: between start and end.
    unsafe { read(cq, |wc| wc.vendor_err) }
}

unsafe extern "C" fn read_byte_len(cq: *mut CqEx) -> u32 {
    // SAFETY: contract: between start and end.
    unsafe { read(cq, |wc| wc.byte_len) }
}

unsafe extern "C" fn read_imm_data(cq: *mut CqEx) -> u32 {
    // SAFETY: contract: between start and end.
    unsafe { read(cq, imm_of) }
}

unsafe extern "C" fn read_qp_num(cq: *mut CqEx) -> u32 {
    // SAFETY: contract: between start and end.
    unsafe { read(cq, |wc| wc.qpn.value()) }
}

unsafe extern "C" fn read_src_qp(cq: *mut CqEx) -> u32 {
    // SAFETY: contract: between start and end.
    unsafe { read(cq, |wc| wc.src_qpn.value()) }
}

unsafe extern "C" fn read_wc_flags(cq: *mut CqEx) -> u32 {
    // SAFETY: contract: between start and end.
    unsafe { read(cq, |wc| wc.flags.bits()) }
}

/// RoCE has no LIDs.
unsafe extern "C" fn read_zero_u32(_cq: *mut CqEx) -> u32 {
    0
}

/// RoCE has no service level. For a datagram, this is what it came in: 0xa for UDP over IPv4, 0x9
/// over IPv6 (RoCEv2 Annex A17.4.5.1), as mlx5 reports it.
unsafe extern "C" fn read_sl(cq: *mut CqEx) -> u8 {
    // SAFETY: contract: between start and end.
    unsafe { read(cq, |wc| wc.sl) }
}

/// RoCE has no LIDs.
unsafe extern "C" fn read_zero_u8(_cq: *mut CqEx) -> u8 {
    0
}

unsafe extern "C" fn read_completion_ts(cq: *mut CqEx) -> u64 {
    // SAFETY: contract: between start and end.
    unsafe { read(cq, |wc| wc.timestamp) }
}

unsafe extern "C" fn read_tm_info(cq: *mut CqEx, to: *mut WcTmInfo) {
    data("ibv_wc_read_tm_info", (), || {
        let to = room(to);
        // SAFETY: contract: between start and end.
        let tag = unsafe { read(cq, |wc| wc.tm.tag) };
        // SAFETY: as above.
        let private = unsafe { read(cq, |wc| wc.tm.private) };
        // SAFETY: contract: the program has room for the answer.
        unsafe { to.write(WcTmInfo { tag, r#priv: private }) };
    });
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut CqEx) -> u64 {
    data("ibv_wc_read_completion_wallclock_ns", 0, || {
        // SAFETY: contract: the queue is one of ours.
        let own = unsafe { own(cq.cast()) };
        // SAFETY: contract: between start and end.
        let timestamp = unsafe { read(cq, |wc| wc.timestamp) };
        own.hca.lock().wall_nanos(timestamp)
    })
}

//! Posting lists of work requests.
//!
//! A list is posted until one request is refused; `bad_wr` then points to it, and those before it
//! are posted (`ibv_post_send(3)`).

use std::ffi::c_int;
use std::ptr;

use iba::{QKey, QpType, Qpn, RKey, SendFlags, WrOpcode};
use smallvec::SmallVec;
use transport::PostError;
use transport::wr::{self, Data, PlainOneSided, PlainSend, UdDest};
use umem::Foreign;

use super::ah::AhObject;
use super::boundary::data;
use super::lists::{each, extend, length_of, recv_wr, refused, sge};
use super::mw;
use super::own::qp::{self, OwnQp};
use super::srq::SrqObject;
use super::types::ah::Ah;
use super::types::qp::Qp;
use super::types::srq::Srq;
use super::types::wr::{RecvWr, SendWr, Sge};

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut Qp,
    first: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    data("ibv_post_send", libc::EIO, || {
        // SAFETY: contract: the QP is one of ours.
        let own = unsafe { qp::own(qp) };
        // SAFETY: as above.
        let is_ud = unsafe { (*qp).qp_type } == QpType::Ud as u32;
        let mut engine = own.hca.lock_to_post();
        let mut is_queued = false;
        let post = |c: &mut SendWr| {
            let is_only = c.next.is_null() && !is_queued;
            let request = Given { own, c, is_ud };
            let posted = if is_only {
                engine.post_send(own.id, request)
            } else {
                engine.queue_send(own.id, request)
            };
            posted.map_err(|Errno(errno)| errno)?;
            is_queued = !is_only;
            Ok(())
        };
        // SAFETY: contract: the list is valid to its end.
        let answer = unsafe { each(first, bad, post) };
        if is_queued {
            engine.kick(own.id);
        }
        answer
    })
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut Qp,
    first: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    data("ibv_post_recv", libc::EIO, || {
        // SAFETY: contract: the QP is one of ours.
        let own = unsafe { qp::own(qp) };
        let mut engine = own.hca.lock_to_post();
        let post = |c: &mut RecvWr| {
            let posted = engine.post_recv_with(own.id, |to| {
                to.wr_id = c.wr_id;
                // SAFETY: contract: the list that a request names is valid.
                unsafe { extend(&mut to.sges, c.sg_list, c.num_sge) }.map_err(RecvErrno)
            });
            posted.map_err(|RecvErrno(errno)| errno)
        };
        // SAFETY: contract: the list is valid to its end.
        unsafe { each(first, bad, post) }
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut Srq,
    first: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    data("ibv_post_srq_recv", libc::EIO, || {
        // SAFETY: contract: the queue is one of ours.
        let own = unsafe { SrqObject::own(srq) };
        let mut engine = own.hca.lock_to_post();
        let post = |c: &mut RecvWr| {
            // SAFETY: contract: the list that a request names is valid.
            let wr = unsafe { recv_wr(c) }?;
            engine.post_srq_recv(own.id, wr).map_err(|error| refused("receive", &error))
        };
        // SAFETY: contract: the list is valid to its end.
        unsafe { each(first, bad, post) }
    })
}

/// The errno of a request that was not accepted.
struct Errno(c_int);

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        Self(refused("send", &error))
    }
}

/// The same of a receive.
struct RecvErrno(c_int);

impl From<PostError> for RecvErrno {
    fn from(error: PostError) -> Self {
        Self(refused("recv", &error))
    }
}

/// A send request of a program: the lists and handles that it names are valid (`ibv_post_send(3)`).
struct Given<'a> {
    own: &'a OwnQp,
    c: &'a SendWr,
    is_ud: bool,
}

impl wr::Request for Given<'_> {
    type Error = Errno;

    #[inline]
    fn plain(&self) -> Option<PlainSend> {
        let Self { c, is_ud, .. } = *self;
        let flags = SendFlags::from_bits_retain(c.send_flags);
        let is_plain = c.opcode == WrOpcode::Send as u32
            && c.num_sge == 1
            && !is_ud
            && !flags.contains(SendFlags::INLINE);
        // SAFETY: what a `Given` promises.
        let element = unsafe { c.sg_list.as_ref() }.filter(|_| is_plain)?;
        Some(PlainSend { wr_id: c.wr_id, flags, sge: sge(element) })
    }

    #[inline]
    fn plain_one_sided(&self) -> Option<PlainOneSided> {
        let Self { c, .. } = *self;
        let is_read = c.opcode == WrOpcode::RdmaRead as u32;
        let flags = SendFlags::from_bits_retain(c.send_flags);
        let is_plain = (is_read || c.opcode == WrOpcode::RdmaWrite as u32)
            && c.num_sge == 1
            && !flags.contains(SendFlags::INLINE);
        // SAFETY: what a `Given` promises.
        let element = unsafe { c.sg_list.as_ref() }.filter(|_| is_plain)?;
        // SAFETY: the opcode says which member is set.
        let rdma = unsafe { c.wr.rdma };
        Some(PlainOneSided {
            wr_id: c.wr_id,
            is_read,
            flags,
            sge: sge(element),
            remote_addr: rdma.remote_addr,
            rkey: RKey(rdma.rkey),
        })
    }

    #[inline]
    fn fill(self, to: &mut wr::SendWr) -> Result<(), Errno> {
        // SAFETY: what a `Given` promises.
        unsafe { fill(self.own, self.c, self.is_ud, to) }.map_err(Errno)
    }
}

/// Writes a send request in the engine's form over an empty one.
///
/// The lists and handles it names are valid.
#[inline]
unsafe fn fill(own: &OwnQp, c: &SendWr, is_ud: bool, to: &mut wr::SendWr) -> Result<(), c_int> {
    let Some(opcode) = WrOpcode::from_code(c.opcode) else {
        tracing::info!(target: "peerdma::refusal", "ibv_post_send: there is no opcode {}", c.opcode);
        return Err(libc::EINVAL);
    };
    let flags = SendFlags::from_bits_retain(c.send_flags);
    (to.wr_id, to.opcode, to.flags) = (c.wr_id, opcode, flags);
    if opcode == WrOpcode::BindMw {
        // SAFETY: the caller's promise; the opcode says that this is set.
        to.data = unsafe { mw::posted(&own.hca, &c.bind_mw) }?;
    } else if flags.contains(SendFlags::INLINE) {
        // SAFETY: the caller's promise, and the buffers of an inline request are the program's own
        // memory.
        to.data = Data::Inline(unsafe { inline(c.sg_list, c.num_sge) }?);
    } else if let Data::Sges(sges) = &mut to.data {
        // SAFETY: the caller's promise.
        unsafe { extend(sges, c.sg_list, c.num_sge) }?;
    }
    match opcode {
        WrOpcode::RdmaWrite
        | WrOpcode::RdmaWriteWithImm
        | WrOpcode::RdmaRead
        | WrOpcode::AtomicWrite => {
            // SAFETY: the opcode says which member is set.
            let rdma = unsafe { c.wr.rdma };
            (to.remote_addr, to.rkey) = (rdma.remote_addr, RKey(rdma.rkey));
        }
        WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
            // SAFETY: as above.
            let atomic = unsafe { c.wr.atomic };
            (to.remote_addr, to.rkey) = (atomic.remote_addr, RKey(atomic.rkey));
            (to.compare_add, to.swap) = (atomic.compare_add, atomic.swap);
        }
        _ if is_ud => {
            // SAFETY: on a UD QP this is the member that is set.
            let ud = unsafe { c.wr.ud };
            // SAFETY: the caller's promise.
            let found = unsafe { destination(ud.ah, ud.remote_qpn, ud.remote_qkey) };
            to.ud = found.map_err(|what| {
                tracing::info!(target: "peerdma::refusal", "ibv_post_send: {what}");
                libc::EINVAL
            })?;
        }
        _ => {}
    }
    // Only an XRC QP reads it; where a program leaves it unset, any value will do.
    to.srqn = c.qp_type;
    to.imm = match opcode {
        WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm => u32::from_be(c.imm_data),
        _ => c.imm_data,
    };
    Ok(())
}

/// Where a datagram goes. The handle is NULL or one of ours.
#[inline]
pub(crate) unsafe fn destination(
    ah: *mut Ah,
    qpn: u32,
    qkey: u32,
) -> Result<Option<UdDest>, String> {
    if ah.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let av = unsafe { AhObject::find(ah) }?.av;
    Ok(Some(UdDest { av, remote_qpn: Qpn::new(qpn), remote_qkey: QKey(qkey) }))
}

/// The bytes of `count` valid elements, which need no key.
unsafe fn inline(list: *const Sge, count: c_int) -> Result<SmallVec<[u8; 64]>, c_int> {
    let count = length_of(list, count)?;
    let mut bytes = SmallVec::new();
    for place in 0..count {
        // SAFETY: the caller's promise.
        let c = unsafe { list.add(place) };
        // SAFETY: as above.
        let Sge { addr, length, .. } = unsafe { *c };
        if addr == 0 && length > 0 {
            return Err(libc::EINVAL);
        }
        let from = ptr::with_exposed_provenance_mut(addr as usize);
        // SAFETY: the caller's promise: the program's memory.
        unsafe { append(&mut bytes, from, length as usize) }?;
    }
    Ok(bytes)
}

/// Copies a piece of the program's memory to the end of inline data. EFAULT if it is not there.
pub(crate) unsafe fn append(
    bytes: &mut SmallVec<[u8; 64]>,
    from: *mut u8,
    length: usize,
) -> Result<(), c_int> {
    let at = bytes.len();
    if length > MOST_INLINE.saturating_sub(at) {
        // The engine refuses it for its length, whatever the bytes are.
        bytes.resize(MOST_INLINE, 0);
        return Ok(());
    }
    bytes.resize(at + length, 0);
    // SAFETY: the caller's promise. Another thread of the program may change the bytes meanwhile.
    let from = unsafe { Foreign::new(from, length) };
    from.copy_to(&mut bytes[at..]).map_err(|_| libc::EFAULT)
}

/// More than any device of ours can inline.
const MOST_INLINE: usize = 1 << 12;

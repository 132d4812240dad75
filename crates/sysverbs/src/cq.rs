//! Completion channels and completion queues.

use std::ffi::{c_int, c_void};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use iba::{Qpn, RKey, WcFlags, WcOpcode, WcStatus};
use verbs_abi::cq::{CompChannel, Cq as CCq};
use verbs_abi::wc::Wc as CWc;

use crate::context::{Context, readable};
use crate::error::{Error, Result, check};
use crate::queue::QueueId;
use crate::timed::{self, Clock, Timed};

/// A completion channel, whose descriptor does not block. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_comp_channel")]
pub struct Channel(Arc<Events>);

#[derive(Debug)]
struct Events {
    raw: NonNull<CompChannel>,
    context: Context,
}

// SAFETY: libibverbs may be called from any thread, and the descriptor does not change.
unsafe impl Send for Events {}
// SAFETY: as above.
unsafe impl Sync for Events {}

impl Drop for Events {
    fn drop(&mut self) {
        let destroy = self.context.functions().ibv_destroy_comp_channel;
        // SAFETY: every queue of the channel holds it, so none is left.
        unsafe { destroy(self.raw.as_ptr()) };
    }
}

impl Context {
    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_channel(&self) -> Result<Channel> {
        const CALL: &str = "ibv_create_comp_channel";
        let create = self.functions().ibv_create_comp_channel;
        // SAFETY: the context is open.
        let raw = unsafe { create(self.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(CALL))?;
        let channel = Channel(Arc::new(Events { raw, context: self.clone() }));
        rustix::io::ioctl_fionbio(&channel, true)
            .map_err(|errno| Error::new(CALL, errno.raw_os_error()))?;
        Ok(channel)
    }

    /// Creates a completion queue of at least `entries` entries, whose events go to `channel`.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, entries: u32, channel: &Channel) -> Result<Cq> {
        const CALL: &str = "ibv_create_cq";
        if !self.is_same(&channel.0.context) {
            return Err(Error::new(CALL, libc::EINVAL));
        }
        let entries = c_int::try_from(entries).map_err(|_| Error::new(CALL, libc::EINVAL))?;
        let create = self.functions().ibv_create_cq;
        let id = QueueId::new();
        // SAFETY: the context is open and the channel is of it; 0 is the first vector.
        let raw = unsafe { create(self.raw(), entries, id.cookie(), channel.raw(), 0) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(CALL))?;
        Ok(Cq(Arc::new(Queue { raw, id, timed: None, channel: channel.clone() })))
    }

    /// The same, and each completion has its time by a clock.
    ///
    /// # Errors
    ///
    /// ENOSYS or EOPNOTSUPP if the library or the device does not have this, or another of the
    /// library's.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create_timed_cq(&self, entries: u32, channel: &Channel, clock: Clock) -> Result<Cq> {
        if !self.is_same(&channel.0.context) {
            return Err(Error::new("ibv_create_cq_ex", libc::EINVAL));
        }
        let id = QueueId::new();
        let timed = timed::create(self, entries, id, channel, clock)?;
        let raw = timed.raw().cast();
        Ok(Cq(Arc::new(Queue { raw, id, timed: Some(timed), channel: channel.clone() })))
    }
}

impl Channel {
    pub(crate) fn raw(&self) -> *mut CompChannel {
        self.0.raw.as_ptr()
    }

    /// Takes an event, if one waits. It is acknowledged.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias("ibv_get_cq_event", "ibv_ack_cq_events"))]
    pub fn take_event(&self) -> Result<bool> {
        if !readable(self, None)? {
            return Ok(false);
        }
        let functions = self.0.context.functions();
        let (mut cq, mut cookie): (*mut CCq, *mut c_void) = (ptr::null_mut(), ptr::null_mut());
        let get = functions.ibv_get_cq_event;
        // SAFETY: the channel exists, and there is room for two pointers.
        if unsafe { get(self.raw(), &raw mut cq, &raw mut cookie) } != 0 {
            // Another thread may have taken it.
            return match Error::last("ibv_get_cq_event") {
                error if error.errno == libc::EAGAIN => Ok(false),
                error => Err(error),
            };
        }
        // SAFETY: a queue is not destroyed before its events are acknowledged.
        unsafe { (functions.ibv_ack_cq_events)(cq, 1) };
        Ok(true)
    }
}

impl AsFd for Channel {
    /// Readable while an event waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists.
        let fd = unsafe { (*self.0.raw.as_ptr()).fd };
        // SAFETY: the library keeps the descriptor open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

/// A completion queue. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_cq")]
pub struct Cq(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    raw: NonNull<CCq>,
    id: QueueId,
    /// How it is read, if its completions have times.
    timed: Option<Timed>,
    channel: Channel,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        let destroy = self.channel.0.context.functions().ibv_destroy_cq;
        // SAFETY: every QP that completes here holds the queue, so none is left.
        unsafe { destroy(self.raw.as_ptr()) };
    }
}

/// How many completions are asked for at once.
pub(crate) const BATCH: usize = 16;

/// A completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ibv_wc")]
#[non_exhaustive]
pub struct Wc {
    /// The id that the work request was posted with.
    pub wr_id: u64,
    /// The outcome. If it is not success, only `wr_id`, `qpn` and `vendor_err` are valid too.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// The provider's own number for an error.
    pub vendor_err: u32,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The key that the peer invalidated.
    pub invalidated: Option<RKey>,
    /// The local QP.
    pub qpn: Qpn,
    /// The sender of a datagram.
    pub src_qpn: Qpn,
    /// For a datagram: whether the first 40 bytes of the receive's memory are a global route
    /// header. Of other messages it says nothing; rxe sets it for all.
    pub has_grh: bool,
    /// When it completed successfully, by the queue's [`Clock`] if it has one.
    pub time: Option<u64>,
}

impl Cq {
    pub(crate) fn raw(&self) -> *mut CCq {
        self.0.raw.as_ptr()
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        &self.0.channel.0.context
    }

    /// What events name it by.
    pub fn id(&self) -> QueueId {
        self.0.id
    }

    /// The channel that its events go to.
    pub fn channel(&self) -> &Channel {
        &self.0.channel
    }

    /// The oldest completion, if there is one.
    ///
    /// # Errors
    ///
    /// The library's: the queue overran or the device failed.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&self) -> Result<Option<Wc>> {
        const CALL: &str = "ibv_poll_cq";
        if let Some(timed) = &self.0.timed {
            let mut found = None;
            timed.poll(1, |wc| found = Some(wc))?;
            return Ok(found);
        }
        let poll = self.context().ops().poll_cq.ok_or(Error::absent(CALL))?;
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut wc: CWc = unsafe { mem::zeroed() };
        // SAFETY: the queue exists, and there is room for one completion.
        match unsafe { poll(self.raw(), 1, &raw mut wc) } {
            0 => Ok(None),
            1 => Ok(Some(wc_from_c(&wc))),
            negative => Err(Error::new(CALL, negative.checked_neg().unwrap_or(libc::EIO))),
        }
    }

    /// Gives completions to `take`, the oldest first, until there are none or it has had `most`.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll). Completions may have been given before.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll_many(&self, most: usize, mut take: impl FnMut(Wc)) -> Result<()> {
        const CALL: &str = "ibv_poll_cq";
        if let Some(timed) = &self.0.timed {
            return timed.poll(most, take);
        }
        let poll = self.context().ops().poll_cq.ok_or(Error::absent(CALL))?;
        // SAFETY: the structures are made of integers, for which zero is a value.
        let mut wcs: [CWc; BATCH] = unsafe { mem::zeroed() };
        let mut left = most;
        while left > 0 {
            let room = left.min(BATCH);
            // CAST: at most a batch.
            // SAFETY: the queue exists, and there is room for so many completions.
            let count = unsafe { poll(self.raw(), room as c_int, wcs.as_mut_ptr()) };
            let Ok(count) = usize::try_from(count) else {
                return Err(Error::new(CALL, count.checked_neg().unwrap_or(libc::EIO)));
            };
            wcs.iter().take(count).map(wc_from_c).for_each(&mut take);
            if count < room {
                break;
            }
            left -= count;
        }
        Ok(())
    }

    /// Requests one event at the next completion, or at the next solicited one.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        const CALL: &str = "ibv_req_notify_cq";
        let request = self.context().ops().req_notify_cq.ok_or(Error::absent(CALL))?;
        // SAFETY: the queue exists.
        check(CALL, unsafe { request(self.raw(), c_int::from(solicited_only)) })
    }
}

fn wc_from_c(wc: &CWc) -> Wc {
    let flags = WcFlags::from_bits_retain(wc.wc_flags);
    let status = WcStatus::from_code(wc.status).unwrap_or(WcStatus::GeneralErr);
    // What a failed request was is not said.
    let flags = if status == WcStatus::Success { flags } else { WcFlags::empty() };
    Wc {
        wr_id: wc.wr_id,
        status,
        opcode: WcOpcode::from_code(wc.opcode).unwrap_or_default(),
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        imm: flags.contains(WcFlags::WITH_IMM).then_some(u32::from_be(wc.imm_data)),
        invalidated: flags.contains(WcFlags::WITH_INV).then_some(RKey(wc.imm_data)),
        qpn: Qpn::new(wc.qp_num),
        src_qpn: Qpn::new(wc.src_qp),
        has_grh: flags.contains(WcFlags::GRH),
        time: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_and_keys_are_told_apart() {
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut wc: CWc = unsafe { mem::zeroed() };
        wc.opcode = WcOpcode::Recv as u32;
        wc.imm_data = 0x0102_0304_u32.to_be();
        wc.wc_flags = WcFlags::WITH_IMM.bits();
        assert_eq!(wc_from_c(&wc).imm, Some(0x0102_0304));
        wc.imm_data = 77;
        wc.wc_flags = WcFlags::WITH_INV.bits();
        let ours = wc_from_c(&wc);
        assert_eq!((ours.imm, ours.invalidated), (None, Some(RKey(77))));
        // Flags of a failed request mean nothing (`ibv_poll_cq(3)`).
        wc.status = WcStatus::WrFlushErr as u32;
        assert_eq!(wc_from_c(&wc).invalidated, None);
    }
}

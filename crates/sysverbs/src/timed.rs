//! Completion queues whose completions have times: they are read one by one, by functions that the
//! queue itself holds.

use std::mem;
use std::ptr::NonNull;

use iba::{Qpn, RKey, WcFlags, WcOpcode, WcStatus};
use smallvec::SmallVec;
use verbs_abi::cq::{
    CqEx, CqInitAttrEx, EndPoll, NextPoll, PollCqAttr, ReadU32, ReadU64, StartPoll,
};

use crate::context::{Context, later_op};
use crate::cq::{BATCH, Channel, Wc};
use crate::error::{Error, Result};
use crate::queue::QueueId;

/// The clock that completions have their time of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "verbs has these two")]
pub enum Clock {
    /// The NIC's own, in its ticks.
    #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP")]
    Device,
    /// The wall clock, in nanoseconds since 1970.
    #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK")]
    Wall,
}

/// Fields that each completion has: length, immediate data, and both QPs (`enum
/// ibv_create_cq_wc_flags`).
const FIELDS: u64 = 0xf;

impl Clock {
    const fn flag(self) -> u64 {
        match self {
            Self::Device => 1 << 7,
            Self::Wall => 1 << 11,
        }
    }
}

/// How such a queue is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    raw: NonNull<CqEx>,
    start: StartPoll,
    next: NextPoll,
    end: EndPoll,
    opcode: ReadU32,
    vendor_err: ReadU32,
    byte_len: ReadU32,
    imm: ReadU32,
    qpn: ReadU32,
    src_qpn: ReadU32,
    flags: ReadU32,
    time: ReadU64,
}

const CALL: &str = "ibv_create_cq_ex";

/// Creates a queue. It is used as any other, and polled by [`Timed::poll`].
pub(crate) fn create(
    context: &Context,
    entries: u32,
    id: QueueId,
    channel: &Channel,
    clock: Clock,
) -> Result<Timed> {
    let create = later_op!(context, create_cq_ex).ok_or(Error::absent(CALL))?;
    // SAFETY: the structure is made of integers and pointers, for which zero is a value.
    let mut attr: CqInitAttrEx = unsafe { mem::zeroed() };
    attr.cqe = entries;
    attr.cq_context = id.cookie();
    attr.channel = channel.raw();
    attr.wc_flags = FIELDS | clock.flag();
    // SAFETY: the context is open, the channel is of it, and the structure is valid.
    let raw = unsafe { create(context.raw(), &raw mut attr) };
    let raw = NonNull::new(raw).ok_or_else(|| Error::last(CALL))?;
    // SAFETY: the library made it a moment ago, and nothing else has it yet.
    let of = unsafe { raw.as_ref() };
    let timed = || {
        Some(Timed {
            raw,
            start: of.start_poll?,
            next: of.next_poll?,
            end: of.end_poll?,
            opcode: of.read_opcode?,
            vendor_err: of.read_vendor_err?,
            byte_len: of.read_byte_len?,
            imm: of.read_imm_data?,
            qpn: of.read_qp_num?,
            src_qpn: of.read_src_qp?,
            flags: of.read_wc_flags?,
            time: match clock {
                Clock::Device => of.read_completion_ts?,
                Clock::Wall => of.read_completion_wallclock_ns?,
            },
        })
    };
    timed().ok_or_else(|| {
        // SAFETY: as above.
        unsafe { (context.functions().ibv_destroy_cq)(raw.as_ptr().cast()) };
        Error::new(CALL, libc::EOPNOTSUPP)
    })
}

impl Timed {
    pub(crate) fn raw(&self) -> NonNull<CqEx> {
        self.raw
    }

    /// Gives up to `most` completions to `take`.
    pub(crate) fn poll(&self, most: usize, mut take: impl FnMut(Wc)) -> Result<()> {
        let mut left = most;
        while left > 0 {
            let room = left.min(BATCH);
            let mut found = SmallVec::new();
            let polled = self.read(room, &mut found);
            let count = found.len();
            found.into_iter().for_each(&mut take);
            polled?;
            if count < room {
                break;
            }
            left -= count;
        }
        Ok(())
    }

    /// Reads up to `most` completions, at least one. The provider keeps other threads out
    /// meanwhile.
    fn read(&self, most: usize, found: &mut SmallVec<[Wc; BATCH]>) -> Result<()> {
        let cq = self.raw.as_ptr();
        let mut attr = PollCqAttr { comp_mask: 0 };
        // SAFETY: the queue exists, and the structure is valid.
        let mut state = unsafe { (self.start)(cq, &raw mut attr) };
        // Ended only if it was started (`ibv_create_cq_ex(3)`).
        match state {
            0 => {}
            libc::ENOENT => return Ok(()),
            errno => return Err(Error::new("ibv_start_poll", errno)),
        }
        while state == 0 {
            found.push(self.current());
            if found.len() == most {
                break;
            }
            // SAFETY: the queue exists, and is being polled.
            state = unsafe { (self.next)(cq) };
        }
        // SAFETY: as above.
        unsafe { (self.end)(cq) };
        match state {
            0 | libc::ENOENT => Ok(()),
            errno => Err(Error::new("ibv_next_poll", errno)),
        }
    }

    /// The completion that the queue stands at, between the start and the end of a poll.
    fn current(&self) -> Wc {
        let cq = self.raw.as_ptr();
        // SAFETY: the queue exists and stands at a completion.
        let read = |field: ReadU32| unsafe { field(cq) };
        // SAFETY: as above.
        let wr_id = unsafe { (*cq).wr_id };
        // SAFETY: as above.
        let status = unsafe { (*cq).status };
        let status = WcStatus::from_code(status).unwrap_or(WcStatus::GeneralErr);
        let qpn = Qpn::new(read(self.qpn));
        let vendor_err = read(self.vendor_err);
        let mut wc = Wc { wr_id, status, qpn, vendor_err, ..Wc::default() };
        if status != WcStatus::Success {
            return wc;
        }
        let flags = WcFlags::from_bits_retain(read(self.flags));
        let has = |flag| flags.contains(flag);
        wc.opcode = WcOpcode::from_code(read(self.opcode)).unwrap_or_default();
        wc.byte_len = read(self.byte_len);
        wc.has_grh = has(WcFlags::GRH);
        wc.src_qpn = Qpn::new(read(self.src_qpn));
        // The same four bytes are either of the two.
        wc.imm = has(WcFlags::WITH_IMM).then(|| u32::from_be(read(self.imm)));
        wc.invalidated = has(WcFlags::WITH_INV).then(|| RKey(read(self.imm)));
        // SAFETY: as above.
        wc.time = Some(unsafe { (self.time)(cq) });
        wc
    }
}

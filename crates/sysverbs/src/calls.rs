//! FLUSH and ATOMIC WRITE, which no request of `ibv_post_send` is: a QP that was created for them
//! takes them by calls (`ibv_wr_post(3)`). Requests of both kinds share its send queue, in the
//! order in which they are posted.

use std::mem;
use std::ptr::NonNull;

use iba::{QpType, SendFlags, WrOpcode};
use transport::PostError;
use transport::wr::{Data, Flush, SendWr};
use verbs_abi::qp as c;

use crate::context::later_op;
use crate::pd::Pd;

/// `IBV_QP_INIT_ATTR_PD` and `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
const PD_AND_OPERATIONS: u32 = 1 | 1 << 6;
/// `IBV_QP_EX_WITH_FLUSH`.
const WITH_FLUSH: u64 = 1 << 11;
/// `IBV_QP_EX_WITH_ATOMIC_WRITE`.
const WITH_ATOMIC_WRITE: u64 = 1 << 12;

/// Bits of `device_cap_flags_ex`: `IB_UVERBS_DEVICE_FLUSH_GLOBAL` and `_FLUSH_PERSISTENT`.
const FLUSHES: u64 = 1 << 38 | 1 << 39;
/// `IB_UVERBS_DEVICE_ATOMIC_WRITE`.
const WRITES_ATOMICALLY: u64 = 1 << 40;

/// `IBV_FLUSH_GLOBAL` and `IBV_FLUSH_PERSISTENT`.
const GLOBAL: u8 = 1;
const PERSISTENT: u8 = 1 << 1;
/// `IBV_FLUSH_RANGE` and `IBV_FLUSH_MR`.
const RANGE: u8 = 0;
const WHOLE: u8 = 1;

/// Which of the two operations a device with these capabilities has, as bits of `send_ops_flags`.
const fn operations(capabilities: u64) -> u64 {
    let flush = if capabilities & FLUSHES != 0 { WITH_FLUSH } else { 0 };
    let write = if capabilities & WRITES_ATOMICALLY != 0 { WITH_ATOMIC_WRITE } else { 0 };
    flush | write
}

/// Whether a QP of a type may have the operation (`ibv_wr_post(3)`, IBA annex A19).
pub(crate) const fn may_have(qp_type: QpType, opcode: WrOpcode) -> bool {
    matches!(qp_type, QpType::Rc | QpType::XrcSend)
        && matches!(opcode, WrOpcode::Flush | WrOpcode::AtomicWrite)
}

/// The calls of a QP, as its provider set them when it made the QP.
#[derive(Debug)]
pub(crate) struct Calls {
    raw: NonNull<c::QpEx>,
    start: c::WrPlain,
    complete: c::WrComplete,
    flush: Option<c::WrFlush>,
    atomic_write: Option<c::WrAtomicWrite>,
    /// Of an XRC_SEND QP.
    set_xrc_srqn: Option<c::WrU32>,
}

/// Creates a QP for those of the two operations that the device has. `None` if it has neither, or
/// if its library does not make such a QP; then `init` is as it was.
pub(crate) fn create(pd: &Pd, init: &mut c::QpInitAttr) -> Option<(NonNull<c::Qp>, Calls)> {
    let context = pd.context();
    let operations = operations(context.capabilities());
    let qp_type = QpType::from_code(init.qp_type)?;
    if operations == 0 || !may_have(qp_type, WrOpcode::Flush) {
        return None;
    }
    let create = later_op!(context, create_qp_ex)?;
    let to_ex = context.functions().ibv_qp_to_qp_ex?;
    // SAFETY: the structure is made of integers and pointers, for which zero is a value.
    let mut wanted: c::QpInitAttrEx = unsafe { mem::zeroed() };
    wanted.qp_context = init.qp_context;
    wanted.send_cq = init.send_cq;
    wanted.recv_cq = init.recv_cq;
    wanted.srq = init.srq;
    wanted.cap = init.cap;
    wanted.qp_type = init.qp_type;
    wanted.sq_sig_all = init.sq_sig_all;
    wanted.comp_mask = PD_AND_OPERATIONS;
    wanted.pd = pd.raw();
    wanted.send_ops_flags = operations;
    // SAFETY: the context is open, the domain and the queues exist, and the structure is valid.
    let qp = NonNull::new(unsafe { create(context.raw(), &raw mut wanted) })?;
    // SAFETY: the library made it a moment ago.
    let calls = NonNull::new(unsafe { to_ex(qp.as_ptr()) }).and_then(|ex| {
        // SAFETY: a QP that was created for operations has this structure (`ibv_qp_to_qp_ex(3)`),
        // and a library that knows these two has all of its fields. Nothing else has the QP yet.
        let of = unsafe { ex.as_ref() };
        Some(Calls {
            raw: ex,
            start: of.wr_start?,
            complete: of.wr_complete?,
            flush: of.wr_flush.filter(|_| operations & WITH_FLUSH != 0),
            atomic_write: of.wr_atomic_write.filter(|_| operations & WITH_ATOMIC_WRITE != 0),
            set_xrc_srqn: of.wr_set_xrc_srqn.filter(|_| qp_type == QpType::XrcSend),
        })
    });
    let Some(calls) = calls else {
        // SAFETY: the library made it a moment ago, and nothing else has it.
        unsafe { (context.functions().ibv_destroy_qp)(qp.as_ptr()) };
        return None;
    };
    init.cap = wanted.cap;
    Some((qp, calls))
}

impl Calls {
    /// Posts one of the two.
    pub(crate) fn post(&self, wr: &SendWr, max_wr: u32) -> Result<(), PostError> {
        let absent = PostError::Absent(wr.opcode);
        match (&wr.data, wr.opcode) {
            (Data::Flush(reach), WrOpcode::Flush) => {
                let flush = self.flush.ok_or(absent)?;
                self.build(wr, max_wr, |qp| {
                    let (rkey, at) = (wr.rkey.0, wr.remote_addr);
                    let (placement, level) = (placement(reach), level(reach));
                    // SAFETY: the QP was created for this call, and is between start and complete.
                    unsafe { flush(qp, rkey, at, reach.length as usize, placement, level) }
                })
            }
            (Data::Inline(value), WrOpcode::AtomicWrite) if value.len() == 8 => {
                let write = self.atomic_write.ok_or(absent)?;
                self.build(wr, max_wr, |qp| {
                    let (rkey, at) = (wr.rkey.0, wr.remote_addr);
                    // SAFETY: as above, and the value has eight bytes.
                    unsafe { write(qp, rkey, at, value.as_ptr().cast()) }
                })
            }
            _ => Err(PostError::Provider(libc::EINVAL)),
        }
    }

    /// One request: between its start and its end, the provider keeps other threads out.
    fn build(
        &self,
        wr: &SendWr,
        max_wr: u32,
        add: impl FnOnce(*mut c::QpEx),
    ) -> Result<(), PostError> {
        let qp = self.raw.as_ptr();
        // SAFETY: the QP exists.
        unsafe { (self.start)(qp) };
        // SAFETY: the field is the caller's between start and complete.
        unsafe { (*qp).wr_id = wr.wr_id };
        // SAFETY: as above.
        unsafe { (*qp).wr_flags = wr.flags.difference(SendFlags::INLINE).bits() };
        add(qp);
        if let Some(set) = self.set_xrc_srqn {
            // SAFETY: as above, behind the request that it is about.
            unsafe { set(qp, wr.srqn) };
        }
        // SAFETY: it was started above.
        let returned = unsafe { (self.complete)(qp) };
        crate::post::posted(returned, max_wr)
    }
}

const fn placement(reach: &Flush) -> u8 {
    (if reach.global { GLOBAL } else { 0 }) | (if reach.persistent { PERSISTENT } else { 0 })
}

const fn level(reach: &Flush) -> u8 {
    if reach.whole { WHOLE } else { RANGE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_what_its_capabilities_name() {
        assert_eq!(operations(0), 0);
        assert_eq!(operations(1 << 39), WITH_FLUSH);
        assert_eq!(operations(1 << 38 | 1 << 40), WITH_FLUSH | WITH_ATOMIC_WRITE);
        assert_eq!(operations(!(1 << 38 | 1 << 39 | 1 << 40)), 0);
    }

    #[test]
    fn only_types_whose_requests_are_answered_have_them() {
        assert!(may_have(QpType::Rc, WrOpcode::Flush));
        assert!(may_have(QpType::XrcSend, WrOpcode::AtomicWrite));
        assert!(!may_have(QpType::Uc, WrOpcode::Flush));
        assert!(!may_have(QpType::Rc, WrOpcode::Send));
    }

    #[test]
    fn the_reach_of_a_flush_is_two_numbers() {
        let range = Flush { length: 64, whole: false, global: true, persistent: false };
        assert_eq!((placement(&range), level(&range)), (GLOBAL, RANGE));
        let all = Flush { whole: true, persistent: true, ..range };
        assert_eq!((placement(&all), level(&all)), (GLOBAL | PERSISTENT, WHOLE));
    }
}

//! Tag matching: the calls, and how messages are matched.

use iba::{Qpn, RKey, WcOpcode, WcStatus};
use transport::env::{Completion, Reason, Rx, Side};
use transport::tm::{Met, RNDV_BYTES, Rendezvous, TMH_BYTES, Taken, TmInfo};

use super::Engine;
use super::common::Common;
use crate::ids::{CqId, SrqId};
use crate::objects::tags::{TagList, TagOp, TagOpKind};
use crate::payload::InPayload;
use crate::refusal::{Result, refuse};

/// `IBV_TMH_RNDV` and `IBV_TMH_EAGER` of `enum ibv_tmh_op`; all others have no tag.
const RNDV: u8 = 1;
const EAGER: u8 = 3;

/// The contents of a message's first bytes.
enum Head {
    NoTag,
    Eager(TmInfo),
    Rendezvous(TmInfo, Rendezvous),
}

impl Engine {
    /// Turns a shared queue into one with tag matching, with room for this many tags. Everything
    /// completes on `cq`.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn make_srq_tm(
        &mut self,
        srq: SrqId,
        cq: CqId,
        max_num_tags: u32,
        max_ops: u32,
    ) -> Result<()> {
        let caps = self.common.nic.attr.tm;
        if caps.max_num_tags == 0 {
            refuse!(NotSupported, "create_srq: a NIC of this preset matches no tags");
        }
        if max_num_tags == 0 || max_num_tags > caps.max_num_tags || max_ops > caps.max_ops {
            refuse!(
                Invalid,
                "create_srq: {max_num_tags} tags and {max_ops} operations; 1 to {} and at most {} are possible",
                caps.max_num_tags,
                caps.max_ops
            );
        }
        let cq_use = self.cq(cq)?.uses.take();
        let srq = self.srq(srq)?;
        srq.tm = Some(Box::new(TagList::new(cq, max_num_tags)));
        srq.holds.push(cq_use);
        Ok(())
    }

    /// Carries out an operation on a tag list, at once. Returns the handle of a receive that was
    /// added.
    #[doc(alias = "ibv_post_srq_ops")]
    pub fn post_srq_op(&mut self, id: SrqId, op: TagOp) -> Result<Option<u32>> {
        if self.is_dead() {
            refuse!(Io, "post_srq_ops: the device is gone");
        }
        let max_sge = self.common.nic.attr.tm.max_sge;
        let Some(list) = &mut self.srq(id)?.tm else {
            refuse!(Invalid, "post_srq_ops: the queue does not match tags");
        };
        if let TagOpKind::Add { wr, .. } = &op.kind {
            if list.is_full() {
                refuse!(NoMemory, "post_srq_ops: the list holds its {} tags", list.max_num_tags);
            }
            if wr.sges.len() > max_sge as usize {
                let count = wr.sges.len();
                refuse!(Invalid, "post_srq_ops: {count} elements; {max_sge} are possible");
            }
        }
        if let Some(seen) = op.unexpected_cnt {
            list.tell(seen);
        }
        // The entry of a DEL that does not exist.
        let mut missing = None;
        let mut added = None;
        let opcode = match op.kind {
            TagOpKind::Add { wr, tag, mask } => {
                added = Some(list.add(wr, tag, mask));
                WcOpcode::TmAdd
            }
            TagOpKind::Del(handle) => {
                missing = (!list.remove(handle)).then_some(handle);
                WcOpcode::TmDel
            }
            TagOpKind::Sync => WcOpcode::TmSync,
        };
        if op.signaled || missing.is_some() {
            let mut completion = Completion::new(Side::Recv, op.wr_id);
            completion.opcode = opcode;
            if !list.is_in_step() {
                completion.flags |= iba::WcFlags::TM_SYNC_REQ;
            }
            let cq = list.cq;
            self.common.now = self.clock.now();
            if let Some(handle) = missing {
                completion.status = WcStatus::TmErr;
                completion.solicited = true;
                completion.vendor_err = Reason::NoSuchTag as u32;
                self.common.explain_no_such_tag(id, op.wr_id, handle);
            }
            self.common.complete_on(cq, Qpn::default(), &completion, completion.flags);
        }
        Ok(added)
    }
}

impl Common {
    /// Takes a receive of a shared queue for a message that begins with this packet.
    pub(super) fn take_srq_for(&mut self, id: SrqId, rx: &Rx<'_, InPayload<'_>>) -> Option<Taken> {
        let opcode = rx.headers.bth.opcode;
        let list = self.objects.srqs.get_mut(id.index())?.tm.as_mut();
        let Some(list) = list.filter(|_| opcode.operation().is_send()) else {
            return self.take_srq(id).map(Taken::from);
        };
        let head = head_of(rx.payload, opcode.ends_message());
        let matched = match head {
            Head::NoTag => None,
            Head::Eager(info) => list.meet(info.tag).map(|wr| (wr, Met::Eager(info))),
            Head::Rendezvous(info, rendezvous) => {
                list.meet(info.tag).map(|wr| (wr, Met::Rendezvous(info, rendezvous)))
            }
        };
        if let Some((wr, met)) = matched {
            return Some(Taken { wr, met });
        }
        let wr = self.take_srq(id)?;
        if let Head::NoTag = head {
            return Some(Taken { wr, met: Met::NoTag });
        }
        self.objects.srqs.get_mut(id.index())?.tm.as_mut()?.met_none();
        Some(Taken { wr, met: Met::Unexpected })
    }
}

/// Reads the header of a message once, as its sender may change any byte of it at any time. A
/// truncated header counts as none.
fn head_of(payload: &InPayload<'_>, is_whole: bool) -> Head {
    let mut bytes = [0; RNDV_BYTES];
    let length = payload.head(&mut bytes);
    let word =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let long = |at| u64::from(word(at)) << 32 | u64::from(word(at + 4));
    // struct ibv_tmh: opcode, three reserved bytes, app_ctx, tag.
    let info = TmInfo { tag: long(8), private: word(4) };
    match bytes[0] {
        EAGER if length >= TMH_BYTES => Head::Eager(info),
        RNDV if length >= RNDV_BYTES && is_whole => {
            // struct ibv_rvh: va, rkey, len.
            let (addr, rkey, length) = (long(16), RKey(word(24)), word(28));
            Head::Rendezvous(info, Rendezvous { header: bytes, addr, rkey, length })
        }
        _ => Head::NoTag,
    }
}

//! The table of QPs.

use iba::Qpn;
use transport::{Qp, Time};

mod context;

pub(crate) use self::context::{Handle, QpContext, Role};

use crate::ids::{CtxId, QpId};

/// A QP: its protocol, and what the engine keeps besides it.
#[derive(Debug)]
pub(crate) struct QpEntry {
    pub(crate) qp: Qp,
    pub(crate) context: QpContext,
    /// Whether it is in the ready queue.
    pub(crate) queued: bool,
    /// The deadline it has in the timer heap.
    pub(crate) deadline: Option<Time>,
}

impl QpEntry {
    /// The process in whose ring there was no room for its next request, if it has nothing else to
    /// do.
    #[inline]
    pub(crate) fn waits_for_ring(&self) -> Option<u16> {
        self.context.route.peer().filter(|_| self.qp.waits_for_room())
    }

    /// The process in whose ring there must be room for its next request, if it has nothing else to
    /// do.
    #[inline]
    pub(crate) fn needs_ring(&self) -> Option<u16> {
        let needs_room = self.qp.waits_for_room() || self.qp.has_message();
        self.context.route.peer().filter(|_| needs_room)
    }
}

/// QPs by number: 10 bits of VF, 14 bits of index (`docs/ARCHITECTURE.md`).
#[derive(Debug)]
pub(crate) struct QpTable {
    vf: u16,
    slots: Vec<Option<Box<QpEntry>>>,
    free: std::collections::VecDeque<u32>,
    used: usize,
    /// QPs created since the NIC was opened.
    made: u64,
}

/// Bits of a QPN that are the index.
pub(crate) const INDEX_BITS: u32 = 14;
const SLOTS: u32 = 1 << INDEX_BITS;

/// The VF part of a QPN.
pub(crate) const fn vf_of(qpn: Qpn) -> u16 {
    (qpn.value() >> INDEX_BITS) as u16
}

impl QpTable {
    /// An empty table whose first number is at `start`, so that the QPNs of a VF that died rest
    /// before they are reused.
    pub(crate) fn new(vf: u16, start: u32) -> Self {
        // QPNs 0 and 1 are special, and 0xFFFFFF is multicast; indices below 16 and the last one
        // are left out in every VF, to keep one rule.
        let usable = (0..SLOTS)
            .map(|index| (start.wrapping_add(index)) % SLOTS)
            .filter(|index| (16..SLOTS - 1).contains(index));
        Self { vf, slots: Vec::new(), free: usable.collect(), used: 0, made: 0 }
    }

    /// The ordinal of the next QP, from 1 in the order of creation.
    pub(crate) fn next_ordinal(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Reserves a number; the oldest free one, so that numbers are not reused quickly.
    pub(crate) fn reserve(&mut self) -> Option<(QpId, Qpn)> {
        let index = self.free.pop_front()?;
        Some((QpId(index), Qpn::new(u32::from(self.vf) << INDEX_BITS | index)))
    }

    pub(crate) fn insert(&mut self, id: QpId, entry: QpEntry) {
        let index = id.index();
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(Box::new(entry));
        self.used += 1;
    }

    pub(crate) fn remove(&mut self, id: QpId) -> Option<Box<QpEntry>> {
        let entry = self.slots.get_mut(id.index())?.take()?;
        self.free.push_back(id.0);
        self.used -= 1;
        Some(entry)
    }

    pub(crate) fn get(&self, id: QpId) -> Option<&QpEntry> {
        self.slots.get(id.index())?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: QpId) -> Option<&mut QpEntry> {
        self.slots.get_mut(id.index())?.as_deref_mut()
    }

    /// The QP with a number that a packet named.
    pub(crate) fn by_number(&mut self, qpn: Qpn) -> Option<&mut QpEntry> {
        self.get_mut(self.id_of(qpn)?)
    }

    /// Where a QP with a number would be.
    pub(crate) fn id_of(&self, qpn: Qpn) -> Option<QpId> {
        (vf_of(qpn) == self.vf).then(|| QpId(qpn.value() & (SLOTS - 1)))
    }

    /// The port of the QP with a number that a packet named; the first if there is no such QP.
    pub(crate) fn port_of(&mut self, qpn: Qpn) -> u8 {
        self.by_number(qpn).map_or(1, |entry| entry.context.port)
    }

    /// Drops the further handles of QPs that a context has.
    pub(crate) fn forget_handles(&mut self, ctx: CtxId) {
        for entry in self.slots.iter_mut().flatten() {
            entry.context.others.retain(|other| other.ctx != ctx);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &QpEntry> {
        self.slots.iter().flatten().map(AsRef::as_ref)
    }
}

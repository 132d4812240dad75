//! The sender of a packet, and its receiver.

use iba::{Gid, Qpn};

use crate::ids::QpId;
use crate::qp::QpTable;

/// The sender of a packet, to compare with the peer that a QP is connected to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender {
    Own(Qpn),
    Process(u16, Qpn),
    Host(Gid),
}

/// The receiver of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Receiver {
    /// The QP that it names, if that is connected to this sender.
    Named(Sender),
    /// A member of the group that it is for.
    Member(QpId),
}

impl Receiver {
    /// Its number and id among the process's QPs.
    pub(crate) fn find(self, qps: &mut QpTable, named: Qpn) -> Option<(u64, Qpn)> {
        let entry = match self {
            Self::Named(_) => qps.by_number(named),
            Self::Member(id) => qps.get_mut(id),
        };
        entry.map(|entry| (entry.context.ordinal, entry.context.qpn))
    }
}

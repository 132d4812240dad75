//! Packets from one QP of this process to another. They are delivered in the order in which they
//! were sent, before the call that sent them ends.

use std::collections::VecDeque;

use iba::Qpn;
use smallvec::SmallVec;
use transport::env::Skipped;
use wire::Headers;

use crate::payload::{InPayload, Part};

/// What a packet carries.
#[derive(Debug)]
pub(crate) enum LoopPayload {
    /// A copy, if the sender may reuse its memory before the packet arrives.
    Bytes(SmallVec<[u8; 64]>),
    /// A reference, if it must not.
    Parts(SmallVec<[Part; 2]>),
}

impl LoopPayload {
    /// The payload as its receiver gets it.
    pub(crate) fn as_received(&self) -> InPayload<'_> {
        match self {
            Self::Bytes(bytes) => InPayload::Bytes(bytes),
            Self::Parts(parts) => InPayload::Parts(parts),
        }
    }
}

/// A packet.
#[derive(Debug)]
pub(crate) struct LoopPacket {
    pub(crate) headers: Headers,
    pub(crate) payload: LoopPayload,
    pub(crate) length: u32,
    pub(crate) skipped: Skipped,
    pub(crate) source: Qpn,
    pub(crate) grh: Option<[u8; 40]>,
}

/// The packets in flight.
#[derive(Debug, Default)]
pub(crate) struct Loopback(VecDeque<LoopPacket>);

impl Loopback {
    pub(crate) fn push(&mut self, packet: LoopPacket) {
        self.0.push_back(packet);
    }

    pub(crate) fn pop(&mut self) -> Option<LoopPacket> {
        self.0.pop_front()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use iba::Psn;
    use wire::Opcode;

    use super::*;

    #[test]
    fn packets_arrive_in_the_order_in_which_they_were_sent() {
        let mut loopback = Loopback::default();
        for psn in 0..3 {
            let headers = Headers::new(Opcode::UcSendOnly, Qpn::new(17), Psn::new(psn));
            let payload = LoopPayload::Bytes(SmallVec::from_slice(&[psn as u8; 3]));
            let (skipped, source, grh) = (Skipped::default(), Qpn::new(18), None);
            loopback.push(LoopPacket { headers, payload, length: 3, skipped, source, grh });
        }
        for psn in 0..3 {
            let packet = loopback.pop().expect("three were sent");
            assert_eq!(packet.headers.bth.psn, Psn::new(psn));
            assert_eq!(packet.payload.as_received().to_vec(), [psn as u8; 3]);
        }
        assert!(loopback.is_empty());
    }
}

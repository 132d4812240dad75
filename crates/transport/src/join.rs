//! Packets from the middle of a message that arrived in a row: which of them may be handled in one
//! pass.
//!
//! On a wire a long message is cut into packets of a path MTU. Nothing depends on where the cuts
//! are, so a device that holds several of them may pass them to [`Qp::handle_packet`] as one, as a
//! reliable carrier would have. The device makes sure that they have the same headers, apart from
//! consecutive sequence numbers, and the same length.

use iba::{QpType, WrOpcode};
use wire::{Headers, Opcode};

use crate::qp::Qp;
use crate::resp::Message;

impl Qp {
    /// How many packets, beginning with one that has these headers, may be handled as one
    /// ([`Rx::packets`](crate::env::Rx)): as many as are sure to be from the middle of the message
    /// that is arriving. Less than two: each is handled alone.
    pub fn joinable(&self, headers: &Headers) -> u32 {
        let bth = &headers.bth;
        // Packets after one that asks for an acknowledgement are acknowledged separately.
        if self.qp_type != QpType::Rc || self.path.reliable || bth.ackreq {
            return 0;
        }
        let mtu = self.path.path_mtu.bytes();
        match (bth.opcode, self.resp.message) {
            (Opcode::RcWriteMiddle, Message::Write(region)) if bth.psn == self.resp.psn => {
                region.left.saturating_sub(1) / mtu
            }
            (Opcode::RcSendMiddle, Message::Send { received }) if bth.psn == self.resp.psn => {
                let room = self.resp.recv.as_ref().map_or(0, |held| held.room);
                (room.saturating_sub(received.into()) / u64::from(mtu)) as u32
            }
            (Opcode::RcReadResponseMiddle, _) if bth.psn == self.req.una => {
                let front = self.sq.front().filter(|front| front.begun);
                front
                    .filter(|front| front.wr.opcode == WrOpcode::RdmaRead)
                    .map_or(0, |front| front.end().sub(bth.psn.value()).value().saturating_sub(1))
            }
            _ => 0,
        }
    }
}

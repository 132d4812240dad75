//! Congestion: what a QP does about packets that a switch marked, and about a peer that reports
//! marks on the QP's packets.
//!
//! ```text
//!   sender ---- ECT ----> switch ---- CE ----> receiver        the IP header's ECN field (RFC 3168)
//!     ^                                            |
//!     +------------------- CNP --------------------+           opcode 0x81, BECN set (RoCEv2 Annex A17.9)
//! ```
//!
//! The receiver answers marks with congestion notification packets, at most one per interval for
//! each QP. The annex leaves the reaction to the sender. Here its window shrinks in proportion to
//! how frequent marks were lately: the estimate and the recovery are those of DCQCN (Zhu et al.,
//! SIGCOMM 2015), with the window in place of a rate and with windows in place of timers.

mod state;

use core::time::Duration;

use iba::Psn;
use wire::{Headers, Opcode};

use crate::env::{Counter, Env, Rx, Skipped, Source, To, TransmitError};
use crate::qp::{Qp, Sent};
use crate::time::Time;

pub(crate) use self::state::Congestion;

/// The least time between two notifications of one QP, as in DCQCN.
const PAUSE: Duration = Duration::from_micros(50);
/// The reserved bytes after the BTH of a notification.
const RESERVED: [u8; 16] = [0; 16];

impl Qp {
    /// Sets whether the QP answers the marks of switches and obeys the peer's notifications. The
    /// packets of a QP that does neither must be sent as not ECN-capable.
    pub fn set_congestion_control(&mut self, enabled: bool) {
        self.congestion.enabled = enabled;
    }

    /// Notes a mark.
    pub(crate) fn note_mark<E: Env>(&mut self, env: &mut E, now: Time) {
        env.count(Counter::NpEcnMarkedRocePackets);
        let congestion = &mut self.congestion;
        let may = congestion.enabled && self.qp_type.is_connected() && !self.path.reliable;
        if may && now >= congestion.next {
            (congestion.owed, congestion.next) = (true, now + PAUSE);
        }
    }

    /// Handles a notification of the peer. A service without a window (UD, UC) cannot obey it.
    pub(crate) fn handle_cnp<E: Env>(&mut self, env: &mut E, rx: &Rx<'_, E::Payload>) {
        let may = self.congestion.enabled
            && self.qp_type.is_reliable()
            && self.state().receives()
            && rx.headers.bth.opcode == Opcode::Cnp;
        if may && self.window.marked() {
            env.count(Counter::RpCnpHandled);
        } else {
            env.count(Counter::RpCnpIgnored);
        }
    }

    /// Whether the peer is owed a notification, or word of what is kept.
    pub(crate) fn owes_report(&self) -> bool {
        (self.congestion.owed || self.resp.owes_sack) && self.state().receives()
    }

    /// Sends what [`Qp::owes_report`] is about.
    #[cold]
    pub(crate) fn transmit_report<E: Env>(&mut self, env: &mut E) -> Sent {
        if self.congestion.owed && self.transmit_cnp(env) == Sent::Blocked {
            return Sent::Blocked;
        }
        if self.resp.owes_sack { self.transmit_sack(env) } else { Sent::Packets(1) }
    }

    /// Sends the notification that is owed.
    fn transmit_cnp<E: Env>(&mut self, env: &mut E) -> Sent {
        let mut headers = Headers::new(Opcode::Cnp, self.attr.dest_qpn, Psn::new(0));
        headers.bth.becn = true;
        // As on ConnectX.
        headers.bth.migreq = false;
        match env.transmit(To::Peer, &headers, Source::Bytes(&RESERVED), Skipped::default()) {
            Err(TransmitError::Blocked) => return Sent::Blocked,
            Err(_) => env.count(Counter::DroppedPacket),
            Ok(()) => env.count(Counter::NpCnpSent),
        }
        self.congestion.owed = false;
        Sent::Packets(1)
    }
}

//! A fault plan and the datagrams of QP 1.
//!
//! The plan sees them where the communication manager sends one, and where it receives one for this
//! process: a datagram that is only forwarded to another process is not ours. In rules they have
//! `qp = 0` and `opcode = "cm"`.

use ::cm::Transmit;
use fault::{Packet, Verdict, Way};
use iba::{Psn, Qpn};
use wire::{Opcode, Operation, Position, Service};

use super::faults::spoil;
use crate::engine::Engine;
use crate::engine::common::Common;
use crate::mad::Arrived;
use crate::observe::plan::HeldMad;

impl Common {
    /// The plan's verdict on a datagram of QP 1.
    fn judge_mad(&mut self, way: Way) -> Verdict {
        let now = self.now;
        let opcode = Opcode::new(Service::Ud, Operation::Send, Position::Only);
        let (Some(plan), Some(opcode)) = (self.plan(), opcode) else {
            return Verdict::Pass;
        };
        let packet = Packet { way, opcode, qp: 0, qpn: Qpn::GSI, psn: Psn::new(0) };
        let verdict = plan.judge(now, &packet);
        self.counters.first.injected_faults += u64::from(verdict != Verdict::Pass);
        verdict
    }

    /// Holds a datagram back if the verdict asks for it. Returns it if not, or if too many are
    /// held.
    fn hold_mad(&mut self, verdict: Verdict, mad: HeldMad) -> Option<HeldMad> {
        let now = self.now;
        match self.plan() {
            Some(plan) => plan.hold_mad(now, verdict, mad),
            None => Some(mad),
        }
    }

    /// A datagram has passed: those that it had to overtake may be sent.
    fn overtake_mads(&mut self, way: Way) {
        let now = self.now;
        if let Some(plan) = self.plan() {
            plan.overtake_mads(now, way);
        }
    }
}

impl Engine {
    /// Sends a datagram of the communication manager. Returns false if it must wait.
    pub(crate) fn emit_mad(&mut self, mut transmit: Transmit) -> bool {
        if self.common.known_plan().is_none() {
            return self.send_mad(transmit);
        }
        let verdict = self.common.judge_mad(Way::Out);
        match verdict {
            // A wrong ICRC is found at the port that checks it.
            Verdict::Drop | Verdict::Corrupt => return true,
            Verdict::Duplicate => {
                self.send_mad(transmit.clone());
            }
            Verdict::Junk => spoil(&mut transmit.mad[..]),
            _ => match self.common.hold_mad(verdict, HeldMad::Out(transmit)) {
                Some(HeldMad::Out(back)) => transmit = back,
                _ => return true,
            },
        }
        let sent = self.send_mad(transmit);
        self.common.overtake_mads(Way::Out);
        sent
    }

    /// Handles a datagram of ours.
    pub(crate) fn take_mad(&mut self, mut arrived: Arrived) {
        if self.common.known_plan().is_none() {
            return self.handle_mad(arrived);
        }
        let verdict = self.common.judge_mad(Way::In);
        match verdict {
            Verdict::Drop => return,
            Verdict::Corrupt => {
                self.common.counters.first.rx_icrc_encapsulated += 1;
                return;
            }
            Verdict::Duplicate => self.handle_mad(arrived.clone()),
            Verdict::Junk => spoil(&mut arrived.mad[..]),
            _ => match self.common.hold_mad(verdict, HeldMad::In(arrived)) {
                Some(HeldMad::In(back)) => arrived = back,
                _ => return,
            },
        }
        self.handle_mad(arrived);
        self.common.overtake_mads(Way::In);
    }

    /// Releases a datagram that was held back.
    pub(super) fn release_mad(&mut self, held: HeldMad) {
        match held {
            HeldMad::Out(transmit) => {
                self.send_mad(transmit);
            }
            HeldMad::In(arrived) => self.handle_mad(arrived),
        }
    }
}

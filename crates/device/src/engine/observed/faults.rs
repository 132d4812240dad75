//! What a fault plan does to the packets, QPs, queues, regions and the port of this process.
//!
//! The plan sees packets at the two points that all carriers share: where a QP sends one
//! ([`QpEnv::transmit_observed`]) and where one is delivered to a QP ([`deliver_by_plan`]). There
//! is no direct path under a plan, and a packet is never longer than the path MTU, so that a rule
//! means the same on every carrier. Packets that are held back are kept here with their bytes.

use std::sync::OnceLock;

use fault::{GpuStrike, Packet, Span, Strike, Verdict, Way};
use iba::EventType;
use transport::env::{Rx, Skipped, Source, To, TransmitError};
use wire::Headers;

use crate::engine::Engine;
use crate::engine::common::Common;
use crate::engine::env::QpEnv;
use crate::ids::QpId;
use crate::observe::plan::{AGAIN, Held, MAX_HELD, Rest};
use crate::payload::InPayload;
use crate::qp::QpTable;
use crate::receiver::Receiver;

/// Carries out faults of GPUs that packets trigger: devices and GPUs do not know each other.
static WEATHER: OnceLock<fn(GpuStrike)> = OnceLock::new();

/// Sets the function that carries out faults of GPUs that packets trigger. It must return at once,
/// as an engine is locked. The first one stays.
pub fn set_weather(weather: fn(GpuStrike)) {
    WEATHER.get_or_init(|| weather);
}

/// Flips bits of a payload.
pub(super) fn spoil(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 0x55;
    }
}

impl QpEnv<'_, '_> {
    /// Sends a packet that observers see, following the plan if there is one.
    #[cold]
    pub(crate) fn transmit_observed(
        &mut self,
        to: To<'_>,
        headers: &Headers,
        source: Source<'_>,
        skipped: Skipped,
    ) -> Result<(), TransmitError> {
        let now = self.common.now;
        let (qpn, psn, opcode) = (self.context.qpn, headers.bth.psn, headers.bth.opcode);
        let Some(plan) = self.common.plan() else {
            return self.transmit_recorded(to, headers, &source, skipped);
        };
        if plan.is_port_down() {
            self.counters().dropped_packets += 1;
            return Ok(());
        }
        let id = (qpn, psn, opcode);
        let again = plan.undone.take().filter(|(known, _)| *known == id);
        let is_again = again.is_some();
        let verdict = again.map_or_else(
            || {
                let qp = self.context.ordinal;
                plan.judge(now, &Packet { way: Way::Out, opcode, qp, qpn, psn })
            },
            |(_, verdict)| verdict,
        );
        let is_full = plan.held.len() >= MAX_HELD;
        if !is_again {
            self.common.trace_verdict(verdict, (qpn, psn, opcode));
        }
        let done = match verdict {
            Verdict::Drop => Ok(()),
            Verdict::Corrupt => self.send_spoilt(to, headers, &source, skipped),
            Verdict::Duplicate => {
                let sent = self.transmit_recorded(to, headers, &source, skipped);
                if sent.is_ok() {
                    // If there is no room for the second one, it is lost, as on any network.
                    let _ = self.transmit_recorded(to, headers, &source, skipped);
                }
                sent
            }
            Verdict::Junk | Verdict::Delay(_) | Verdict::Reorder(_)
                if !is_full && self.is_readable(&source) =>
            {
                let mut bytes = vec![0; source.len() as usize];
                self.gather(&source, &mut bytes);
                if verdict == Verdict::Junk {
                    spoil(&mut bytes);
                    self.transmit_recorded(to, headers, &Source::Bytes(&bytes), skipped)
                } else {
                    let av = match to {
                        To::Peer => None,
                        To::Av(av) => Some(*av),
                    };
                    let rest = Rest::Out { id: self.context.id, av, skipped };
                    let (way, headers) = (Way::Out, *headers);
                    let held = Held { qpn, way, due: now, behind: 0, headers, bytes, rest };
                    if let Some(plan) = self.common.plan() {
                        plan.hold(now, verdict, held);
                    }
                    self.counters().injected_faults += 1;
                    return Ok(());
                }
            }
            _ => self.transmit_recorded(to, headers, &source, skipped),
        };
        let Some(plan) = self.common.plan() else { return done };
        if done.is_err() {
            plan.undone = Some((id, verdict));
        } else {
            plan.overtake(now, qpn, Way::Out);
        }
        self.counters().injected_faults += u64::from(verdict != Verdict::Pass && !is_again);
        done
    }

    /// Sends a packet whose ICRC is wrong. In memory there is no ICRC: the packet is lost, as it
    /// would be at the port that checks it.
    fn send_spoilt(
        &mut self,
        to: To<'_>,
        headers: &Headers,
        source: &Source<'_>,
        skipped: Skipped,
    ) -> Result<(), TransmitError> {
        if self.route_of(to, headers.bth.dest_qp).is_udp() {
            self.transmit_recorded(to, headers, source, skipped)?;
            self.common.out.udp.spoil_last();
        }
        Ok(())
    }
}

/// Gives a packet to its receiver, following the plan.
#[cold]
pub(super) fn deliver_by_plan(
    common: &mut Common,
    qps: &mut QpTable,
    to: Receiver,
    rx: &Rx<'_, InPayload<'_>>,
) -> Option<QpId> {
    let now = common.now;
    let Some(plan) = common.plan() else { return to.give(common, qps, rx) };
    if plan.is_port_down() {
        common.counters_at(qps, rx.headers.bth.dest_qp).dropped_packets += 1;
        return None;
    }
    let Some((qp, qpn)) = to.find(qps, rx.headers.bth.dest_qp) else {
        return to.give(common, qps, rx);
    };
    let (opcode, psn) = (rx.headers.bth.opcode, rx.headers.bth.psn);
    let verdict = plan.judge(now, &Packet { way: Way::In, opcode, qp, qpn, psn });
    let is_full = plan.held.len() >= MAX_HELD;
    common.trace_verdict(verdict, (qpn, psn, opcode));
    common.counters_at(qps, qpn).injected_faults += u64::from(verdict != Verdict::Pass);
    let delivered = match verdict {
        Verdict::Drop => return None,
        Verdict::Corrupt => {
            common.counters_at(qps, qpn).rx_icrc_encapsulated += 1;
            return None;
        }
        Verdict::Duplicate => {
            let first = to.give(common, qps, rx);
            to.give(common, qps, rx).or(first)
        }
        Verdict::Junk => {
            let mut bytes = rx.payload.to_vec();
            spoil(&mut bytes);
            to.give(common, qps, &Rx { payload: &InPayload::Bytes(&bytes), ..*rx })
        }
        Verdict::Mark => to.give(common, qps, &Rx { marked: true, ..*rx }),
        Verdict::Delay(_) | Verdict::Reorder(_) if !is_full => {
            let rest =
                Rest::In { to, skipped: rx.skipped, grh: rx.grh.copied(), marked: rx.marked };
            let (bytes, headers) = (rx.payload.to_vec(), *rx.headers);
            let held = Held { qpn, way: Way::In, due: now, behind: 0, headers, bytes, rest };
            if let Some(plan) = common.plan() {
                plan.hold(now, verdict, held);
            }
            return None;
        }
        Verdict::NotReady | Verdict::Refuse => {
            if let Some(plan) = common.plan() {
                (plan.withholds, plan.refuses) =
                    (verdict == Verdict::NotReady, verdict == Verdict::Refuse);
            }
            let delivered = to.give(common, qps, rx);
            if let Some(plan) = common.plan() {
                (plan.withholds, plan.refuses) = (false, false);
            }
            delivered
        }
        Verdict::Pass | Verdict::Delay(_) | Verdict::Reorder(_) => to.give(common, qps, rx),
    };
    if let Some(plan) = common.plan() {
        plan.overtake(now, qpn, Way::In);
    }
    delivered
}

impl Engine {
    /// Carries out what the plan has for this time. Returns whether there was anything.
    #[cold]
    pub(super) fn run_plan(&mut self) -> bool {
        let now = self.common.now;
        let Some(plan) = self.common.plan() else { return false };
        if plan.deadline().is_none_or(|at| at > now) {
            return false;
        }
        let due: Vec<Held> = plan.held.extract_if(.., |held| held.due <= now).collect();
        let mads: Vec<_> = plan.held_mads.extract_if(.., |(due, ..)| *due <= now).collect();
        let age = plan.age(now);
        let strikes: Vec<Strike> = plan.injector.strikes(age).collect();
        if plan.port_down_until.take_if(|until| *until <= now).is_some() {
            tracing::debug!(target: "peerdma::fault-plan", "the port is up again");
            if self.common.nic.port.active {
                self.common.raise_port(EventType::PortActive);
            }
        }
        for held in due {
            self.release(held);
        }
        for (.., mad) in mads {
            self.release_mad(mad);
        }
        for strike in strikes {
            self.strike(strike);
        }
        self.transmit_touched();
        true
    }

    /// Releases a packet that was held back.
    fn release(&mut self, held: Held) {
        let now = self.common.now;
        let Self { common, qps, schedule, .. } = self;
        match &held.rest {
            Rest::In { to, skipped, grh, marked } => {
                let rx = Rx {
                    headers: &held.headers,
                    payload: &InPayload::Bytes(&held.bytes),
                    length: held.bytes.len() as u32,
                    skipped: *skipped,
                    grh: grh.as_ref(),
                    packets: 1,
                    marked: *marked,
                };
                common.trace_received(qps, *to, &rx);
                schedule.touched.extend(to.give(common, qps, &rx));
                common.trace_handled();
            }
            Rest::Out { id, av, skipped } => {
                let found = qps.get_mut(*id).filter(|entry| entry.context.qpn == held.qpn);
                // Its QP has gone in the meantime.
                let Some(entry) = found else { return };
                let mut env = QpEnv::new(common, &mut entry.context);
                let to = av.as_ref().map_or(To::Peer, To::Av);
                let source = Source::Bytes(&held.bytes);
                if env.transmit_recorded(to, &held.headers, &source, *skipped).is_err()
                    && let Some(plan) = common.plan()
                {
                    plan.held.push(Held { due: now + AGAIN, ..held });
                }
            }
        }
    }

    fn strike(&mut self, strike: Strike) {
        self.common.counters.first.injected_faults += 1;
        tracing::debug!(target: "peerdma::fault-plan", "{strike:?}");
        self.common.trace_strike(&strike);
        match strike {
            Strike::QpError(qps) => {
                for id in self.in_span(qps) {
                    self.fail_qp(id);
                }
            }
            Strike::CqOverrun(qps) => {
                for id in self.in_span(qps) {
                    let Some(entry) = self.qps.get(id) else { continue };
                    for cq in [entry.context.send_cq, entry.context.recv_cq] {
                        if let Some(cq) = self.common.objects.cqs.get_mut(cq.index()) {
                            cq.is_to_overrun = true;
                        }
                    }
                }
            }
            Strike::PortDown(lasts) => {
                let now = self.common.now;
                if let Some(plan) = self.common.plan() {
                    plan.port_down_until = Some(now + lasts);
                }
                if self.common.nic.port.active {
                    self.common.raise_port(EventType::PortErr);
                }
            }
            Strike::Gpu(strike) => {
                if let Some(weather) = WEATHER.get() {
                    weather(strike);
                }
            }
            Strike::Revoke(ordinal) => {
                let ids: Vec<_> = match ordinal {
                    Some(ordinal) => {
                        self.common.memory.mrs.by_ordinal(ordinal).into_iter().collect()
                    }
                    None => self.common.memory.mrs.ids().collect(),
                };
                for id in ids {
                    self.common.revoke(id);
                }
            }
        }
    }

    fn in_span(&self, qps: Span) -> Vec<QpId> {
        let context = self.qps.iter().map(|entry| &entry.context);
        context.filter(|context| qps.contains(context.ordinal)).map(|context| context.id).collect()
    }
}

#[cfg(test)]
mod tests;

//! A fault plan at work: what it does to the packets, QPs, queues, regions and the port of this
//! process.
//!
//! Packets are met at the two doors that every carrier shares: where a QP hands one over
//! ([`QpEnv::transmit_injected`]) and where one is handed to a QP ([`deliver_injected`]). There is
//! no direct path under a plan, and a packet is never longer than the path MTU, so that a rule
//! means the same on every carrier. What is held back is kept here with its bytes.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use environment::NamedFile;
use fault::{GpuStrike, Injector, Packet, Plan, Span, Strike, Verdict, Way, Who};
use iba::{Av, EventType, Psn, Qpn};
use transport::Time;
use transport::env::{Rx, Skipped, Source, To, TransmitError};
use wire::{Headers, Opcode};

use super::Engine;
use super::cm::HeldMad;
use super::core::Core;
use super::deliver::{Sender, deliver_now};
use super::env::QpEnv;
use super::multicast::deliver_to_member;
use crate::config::NicConfig;
use crate::ids::QpId;
use crate::payload::InPayload;
use crate::qp::QpTable;
use crate::refusal::{Kind, Refusal, Result};

/// Who does to GPUs what packets trigger: devices and GPUs do not know each other.
static WEATHER: OnceLock<fn(GpuStrike)> = OnceLock::new();

/// Has faults of GPUs that packets trigger done by `weather`, which returns at once: an engine is
/// held. The first one stays.
pub fn set_weather(weather: fn(GpuStrike)) {
    WEATHER.get_or_init(|| weather);
}

/// Packets held back at once; the others pass.
const MAX_HELD: usize = 1 << 16;
/// The same of datagrams of QP 1.
const MAX_HELD_MADS: usize = 1 << 10;
/// How long a packet that is to be overtaken waits for those that overtake it.
const OVERTAKING: Duration = Duration::from_millis(20);
/// When a packet whose carrier had no room is tried again.
const AGAIN: Duration = Duration::from_millis(1);

/// A plan at work on a NIC.
#[derive(Debug)]
pub(crate) struct Injected {
    injector: Injector,
    opened: Time,
    /// What was decided on a packet that its carrier had no room for: it comes again.
    undone: Option<(Id, Verdict)>,
    held: Vec<Held>,
    /// Datagrams of QP 1: when each is to go, how many are still to overtake it, and what it is.
    held_mads: Vec<(Time, u32, HeldMad)>,
    port_down_until: Option<Time>,
    /// Whether the packet at hand is to find no receive.
    pub(super) withholds: bool,
    /// Whether the request at hand is to be refused.
    pub(super) refuses: bool,
    title: String,
    is_reported: bool,
    /// Where the report goes; standard error if nowhere else.
    report: Option<PathBuf>,
}

/// By what a packet is known again: our QP, its sequence number, and what it is.
type Id = (Qpn, Psn, Opcode);

/// A packet held back.
#[derive(Debug)]
struct Held {
    qpn: Qpn,
    way: Way,
    due: Time,
    /// How many packets are still to overtake it.
    behind: u32,
    headers: Headers,
    bytes: Vec<u8>,
    rest: Rest,
}

/// What else belongs to it, by its way.
#[derive(Debug)]
enum Rest {
    Out { id: QpId, av: Option<Av>, skipped: Skipped },
    In { to: Receiver, skipped: Skipped, grh: Option<[u8; 40]>, marked: bool },
}

/// Who receives a packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Receiver {
    /// The QP that it names, if that is connected to this sender.
    Named(Sender),
    /// A member of the group that it is for.
    Member(QpId),
}

impl Receiver {
    /// Its number and place among the process's QPs.
    fn find(self, qps: &mut QpTable, named: Qpn) -> Option<(u64, Qpn)> {
        let entry = match self {
            Self::Named(_) => qps.by_number(named),
            Self::Member(id) => qps.get_mut(id),
        };
        entry.map(|entry| (entry.context.ordinal, entry.context.qpn))
    }

    fn give(self, core: &mut Core, qps: &mut QpTable, rx: &Rx<'_, InPayload<'_>>) -> Option<QpId> {
        match self {
            Self::Named(sender) => deliver_now(core, qps, sender, rx),
            Self::Member(id) => {
                deliver_to_member(core, qps, id, rx);
                Some(id)
            }
        }
    }
}

impl Injected {
    /// The plan that the configuration names, if it has a rule for this NIC and process.
    pub(crate) fn open(config: &NicConfig, now: Time) -> Result<Option<Box<Self>>> {
        let Some(path) = &config.fault else { return Ok(None) };
        let refused = |what| Refusal::new(Kind::NoDevice, format!("fault plan {what}"));
        let file = NamedFile::read(path)
            .map_err(|error| refused(format!("{}: {error}", path.display())))?;
        let plan = Plan::parse(file.text()).map_err(|error| refused(file.blame(&error)))?;
        Ok(Self::new(&plan, path, config, now))
    }

    /// A plan, if it has a rule for this NIC and process.
    fn new(plan: &Plan, path: &Path, config: &NicConfig, now: Time) -> Option<Box<Self>> {
        let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let who = Who { nic: config.name.clone(), program: program.trim_end().to_owned() };
        let injector = Injector::new(plan, &who);
        if injector.is_empty() {
            return None;
        }
        let title = format!(
            "fault plan {} (seed {}) in {}, pid {}, on {}",
            path.display(),
            plan.seed,
            who.program,
            std::process::id(),
            who.nic
        );
        Some(Box::new(Self {
            injector,
            opened: now,
            undone: None,
            held: Vec::new(),
            held_mads: Vec::new(),
            port_down_until: None,
            withholds: false,
            refuses: false,
            title,
            is_reported: false,
            report: config.fault_report.clone(),
        }))
    }

    fn age(&self, now: Time) -> Duration {
        now.since(self.opened)
    }

    /// How much longer a page fault takes now.
    pub(crate) fn page_fault(&self, now: Time) -> Duration {
        self.injector.page_fault(self.age(now))
    }

    /// A page fault began.
    pub(crate) fn page_faulted(&mut self, now: Time) {
        self.injector.page_faulted(self.age(now));
    }

    /// Whether the port is down.
    fn is_port_down(&self) -> bool {
        self.port_down_until.is_some()
    }

    /// When something is to be done next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let held = self.held.iter().map(|held| held.due);
        let mads = self.held_mads.iter().map(|(due, ..)| *due);
        let strike = self.injector.deadline().map(|age| self.opened + age);
        held.chain(mads).chain(strike).chain(self.port_down_until).min()
    }

    pub(super) fn judge(&mut self, now: Time, packet: &Packet) -> Verdict {
        let verdict = self.injector.packet(self.age(now), packet);
        if verdict != Verdict::Pass {
            tracing::debug!(
                target: "peerdma::fault-plan", qpn = %packet.qpn, psn = %packet.psn,
                "{verdict:?}: {} on its way {:?}", packet.opcode, packet.way
            );
        }
        verdict
    }

    /// A packet of this QP passed: those that it was to overtake may go.
    fn overtake(&mut self, now: Time, qpn: Qpn, way: Way) {
        for held in self.held.iter_mut().filter(|held| held.qpn == qpn && held.way == way) {
            held.behind = held.behind.saturating_sub(1);
            if held.behind == 0 {
                held.due = held.due.min(now);
            }
        }
    }

    fn hold(&mut self, now: Time, verdict: Verdict, mut held: Held) {
        (held.due, held.behind) = wait(now, verdict).unwrap_or((now, 0));
        self.held.push(held);
    }

    /// Holds a datagram of QP 1 back, if the verdict has it so and not too many are held: else it
    /// comes back.
    pub(super) fn hold_mad(
        &mut self,
        now: Time,
        verdict: Verdict,
        mad: HeldMad,
    ) -> Option<HeldMad> {
        match wait(now, verdict) {
            Some((due, behind)) if self.held_mads.len() < MAX_HELD_MADS => {
                self.held_mads.push((due, behind, mad));
                None
            }
            _ => Some(mad),
        }
    }

    /// A datagram of QP 1 passed: those that it was to overtake may go.
    pub(super) fn overtake_mads(&mut self, now: Time, way: Way) {
        for (due, behind, _) in self.held_mads.iter_mut().filter(|(.., mad)| mad.way() == way) {
            *behind = behind.saturating_sub(1);
            if *behind == 0 {
                *due = (*due).min(now);
            }
        }
    }

    /// Says what fired, in words; once.
    fn report(&mut self) {
        if std::mem::replace(&mut self.is_reported, true) {
            return;
        }
        let mut words = format!("{}:\n", self.title);
        for fired in self.injector.report() {
            let _ = writeln!(words, "  {fired}");
        }
        let appended = self.report.as_ref().map(|path| {
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path)?;
            file.write_all(words.as_bytes())
        });
        match appended {
            Some(Ok(())) => {}
            // Who reads standard error learns what fired. If that is closed nobody reads it.
            None => drop(std::io::stderr().write_all(format!("peerdma: {words}").as_bytes())),
            Some(Err(error)) => {
                tracing::error!(target: "peerdma::fault-plan", "no report: {error}; {words}");
            }
        }
    }
}

impl Core {
    /// Whether a plan holds the port down.
    pub(crate) fn is_port_down(&self) -> bool {
        self.injected.as_ref().is_some_and(|injected| injected.is_port_down())
    }

    /// Ends the records of this NIC: the capture, and the report of the plan. Once.
    pub(crate) fn finish_records(&mut self) {
        if let Some(tap) = &mut self.tap {
            tap.finish();
        }
        if let Some(injected) = &mut self.injected {
            injected.report();
        }
    }
}

/// Until when a packet is held back, and how many are to overtake it.
fn wait(now: Time, verdict: Verdict) -> Option<(Time, u32)> {
    match verdict {
        Verdict::Delay(wait) => Some((now + wait, u32::MAX)),
        Verdict::Reorder(behind) => Some((now + OVERTAKING, behind)),
        _ => None,
    }
}

/// Flips bits of a payload.
pub(super) fn spoil(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 0x55;
    }
}

impl QpEnv<'_, '_> {
    /// [`Env::transmit`] under a plan.
    #[cold]
    pub(crate) fn transmit_injected(
        &mut self,
        to: To<'_>,
        headers: &Headers,
        source: Source<'_>,
        skipped: Skipped,
    ) -> std::result::Result<(), TransmitError> {
        let now = self.core.now;
        let (qpn, psn, opcode) = (self.context.qpn, headers.bth.psn, headers.bth.opcode);
        let Some(injected) = &mut self.core.injected else { return Ok(()) };
        if injected.is_port_down() {
            self.core.counters.dropped_packets += 1;
            return Ok(());
        }
        let id = (qpn, psn, opcode);
        let again = injected.undone.take().filter(|(known, _)| *known == id);
        let is_again = again.is_some();
        let verdict = again.map_or_else(
            || {
                let qp = self.context.ordinal;
                injected.judge(now, &Packet { way: Way::Out, opcode, qp, qpn, psn })
            },
            |(_, verdict)| verdict,
        );
        let is_full = injected.held.len() >= MAX_HELD;
        let done = match verdict {
            Verdict::Drop => Ok(()),
            Verdict::Corrupt => self.send_spoilt(to, headers, &source, skipped),
            Verdict::Duplicate => {
                let sent = self.transmit_now(to, headers, &source, skipped);
                if sent.is_ok() {
                    // Where there is no room for the second it is lost, as on any network.
                    let _ = self.transmit_now(to, headers, &source, skipped);
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
                    self.transmit_now(to, headers, &Source::Bytes(&bytes), skipped)
                } else {
                    let av = match to {
                        To::Peer => None,
                        To::Av(av) => Some(*av),
                    };
                    let rest = Rest::Out { id: self.context.id, av, skipped };
                    let (way, headers) = (Way::Out, *headers);
                    let held = Held { qpn, way, due: now, behind: 0, headers, bytes, rest };
                    if let Some(injected) = &mut self.core.injected {
                        injected.hold(now, verdict, held);
                    }
                    self.core.counters.injected_faults += 1;
                    return Ok(());
                }
            }
            _ => self.transmit_now(to, headers, &source, skipped),
        };
        let Some(injected) = &mut self.core.injected else { return done };
        if done.is_err() {
            injected.undone = Some((id, verdict));
        } else {
            injected.overtake(now, qpn, Way::Out);
        }
        self.core.counters.injected_faults += u64::from(verdict != Verdict::Pass && !is_again);
        done
    }

    /// Sends a packet whose ICRC is wrong. In memory there is none that could be: the packet is
    /// lost as it would be at the port that checks it.
    fn send_spoilt(
        &mut self,
        to: To<'_>,
        headers: &Headers,
        source: &Source<'_>,
        skipped: Skipped,
    ) -> std::result::Result<(), TransmitError> {
        let route = match to {
            To::Peer => self.context.route,
            To::Av(av) => self.core.route(av, headers.bth.dest_qp),
        };
        if route.is_udp() {
            self.transmit_now(to, headers, source, skipped)?;
            self.core.out.udp.spoil_last();
        }
        Ok(())
    }
}

/// Gives a packet to its receiver under a plan.
#[cold]
pub(super) fn deliver_injected(
    core: &mut Core,
    qps: &mut QpTable,
    to: Receiver,
    rx: &Rx<'_, InPayload<'_>>,
) -> Option<QpId> {
    let now = core.now;
    let Some(injected) = &mut core.injected else { return to.give(core, qps, rx) };
    if injected.is_port_down() {
        core.counters.dropped_packets += 1;
        return None;
    }
    let Some((qp, qpn)) = to.find(qps, rx.headers.bth.dest_qp) else {
        return to.give(core, qps, rx);
    };
    let (opcode, psn) = (rx.headers.bth.opcode, rx.headers.bth.psn);
    let verdict = injected.judge(now, &Packet { way: Way::In, opcode, qp, qpn, psn });
    core.counters.injected_faults += u64::from(verdict != Verdict::Pass);
    let delivered = match verdict {
        Verdict::Drop => return None,
        Verdict::Corrupt => {
            core.counters.rx_icrc_encapsulated += 1;
            return None;
        }
        Verdict::Duplicate => {
            let first = to.give(core, qps, rx);
            to.give(core, qps, rx).or(first)
        }
        Verdict::Junk => {
            let mut bytes = rx.payload.to_vec();
            spoil(&mut bytes);
            to.give(core, qps, &Rx { payload: &InPayload::Bytes(&bytes), ..*rx })
        }
        Verdict::Mark => to.give(core, qps, &Rx { marked: true, ..*rx }),
        Verdict::Delay(_) | Verdict::Reorder(_) if injected.held.len() < MAX_HELD => {
            let rest =
                Rest::In { to, skipped: rx.skipped, grh: rx.grh.copied(), marked: rx.marked };
            let (bytes, headers) = (rx.payload.to_vec(), *rx.headers);
            let held = Held { qpn, way: Way::In, due: now, behind: 0, headers, bytes, rest };
            injected.hold(now, verdict, held);
            return None;
        }
        Verdict::NotReady | Verdict::Refuse => {
            (injected.withholds, injected.refuses) =
                (verdict == Verdict::NotReady, verdict == Verdict::Refuse);
            let delivered = to.give(core, qps, rx);
            if let Some(injected) = &mut core.injected {
                (injected.withholds, injected.refuses) = (false, false);
            }
            delivered
        }
        Verdict::Pass | Verdict::Delay(_) | Verdict::Reorder(_) => to.give(core, qps, rx),
    };
    if let Some(injected) = &mut core.injected {
        injected.overtake(now, qpn, Way::In);
    }
    delivered
}

impl Engine {
    /// Does what the plan has for this time. Says whether that was anything.
    #[cold]
    pub(super) fn run_plan(&mut self) -> bool {
        let now = self.core.now;
        let Some(injected) = &mut self.core.injected else { return false };
        if injected.deadline().is_none_or(|at| at > now) {
            return false;
        }
        let due: Vec<Held> = injected.held.extract_if(.., |held| held.due <= now).collect();
        let mads: Vec<_> = injected.held_mads.extract_if(.., |(due, ..)| *due <= now).collect();
        let age = injected.age(now);
        let strikes: Vec<Strike> = injected.injector.strikes(age).collect();
        if injected.port_down_until.take_if(|until| *until <= now).is_some() {
            tracing::debug!(target: "peerdma::fault-plan", "the port is up again");
            if self.core.nic.port.active {
                self.core.raise_port(EventType::PortActive);
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

    /// Lets a packet go that was held back.
    fn release(&mut self, held: Held) {
        let now = self.core.now;
        let Self { core, qps, schedule, .. } = self;
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
                schedule.touched.extend(to.give(core, qps, &rx));
            }
            Rest::Out { id, av, skipped } => {
                let found = qps.get_mut(*id).filter(|entry| entry.context.qpn == held.qpn);
                // Its QP went meanwhile.
                let Some(entry) = found else { return };
                let mut env = QpEnv::new(core, &mut entry.context);
                let to = av.as_ref().map_or(To::Peer, To::Av);
                let source = Source::Bytes(&held.bytes);
                if env.transmit_now(to, &held.headers, &source, *skipped).is_err()
                    && let Some(injected) = &mut core.injected
                {
                    injected.held.push(Held { due: now + AGAIN, ..held });
                }
            }
        }
    }

    fn strike(&mut self, strike: Strike) {
        self.core.counters.injected_faults += 1;
        tracing::debug!(target: "peerdma::fault-plan", "{strike:?}");
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
                        if let Some(cq) = self.core.objects.cqs.get_mut(cq.index()) {
                            cq.is_to_overrun = true;
                        }
                    }
                }
            }
            Strike::PortDown(lasts) => {
                let now = self.core.now;
                if let Some(injected) = &mut self.core.injected {
                    injected.port_down_until = Some(now + lasts);
                }
                if self.core.nic.port.active {
                    self.core.raise_port(EventType::PortErr);
                }
            }
            Strike::Gpu(strike) => {
                if let Some(weather) = WEATHER.get() {
                    weather(strike);
                }
            }
            Strike::Revoke(ordinal) => {
                let ids: Vec<_> = match ordinal {
                    Some(ordinal) => self.core.memory.mrs.by_ordinal(ordinal).into_iter().collect(),
                    None => self.core.memory.mrs.ids().collect(),
                };
                for id in ids {
                    self.core.revoke(id);
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

//! A plan at work on a NIC.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use iba::{Psn, Qpn};
use wire::Opcode;

use crate::gpu::GpuStrike;
use crate::plan::{Action, Plan, Rule, Way, Who};
use crate::quantity::{Every, Span};
use crate::report::Fired;

/// The parts of a packet that rules examine.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "the device fills it in")]
pub struct Packet {
    /// Its direction.
    pub way: Way,
    /// What it is.
    pub opcode: Opcode,
    /// The QP of this process, counted from 1 in the order of creation; 0 for QP 1.
    pub qp: u64,
    /// Its number.
    pub qpn: Qpn,
    /// The packet's sequence number.
    pub psn: Psn,
}

/// What to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the caller carries out each")]
pub enum Verdict {
    /// Nothing.
    Pass,
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It arrives after this many later packets of its QP.
    Reorder(u32),
    /// It arrives later.
    Delay(Duration),
    /// It arrives with a wrong ICRC.
    Corrupt,
    /// It arrives with a wrong payload.
    Junk,
    /// It arrives with a congestion mark.
    Mark,
    /// It finds no receive.
    NotReady,
    /// It is refused access.
    Refuse,
}

/// An action on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the caller carries out each")]
pub enum Strike {
    /// These QPs fail.
    QpError(Span),
    /// The completion queues of these QPs overrun.
    CqOverrun(Span),
    /// The port goes down for this long.
    PortDown(Duration),
    /// The region with this number in the order of registration, from 1, is revoked; every region
    /// if none is given.
    Revoke(Option<u64>),
    /// Something is done to GPUs.
    Gpu(GpuStrike),
}

/// In the words of plans.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self {
            Self::Pass => return f.write_str("pass"),
            Self::Drop => Action::Drop,
            Self::Duplicate => Action::Duplicate,
            Self::Reorder(behind) => return write!(f, "{} by {behind}", Action::Reorder),
            Self::Delay(time) => return write!(f, "{} by {time:?}", Action::Delay),
            Self::Corrupt => Action::Corrupt,
            Self::Junk => Action::Junk,
            Self::Mark => Action::Mark,
            Self::NotReady => Action::NotReady,
            Self::Refuse => Action::Refuse,
        };
        write!(f, "{action}")
    }
}

/// In the words of plans.
impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QpError(qps) => write!(f, "{}, QPs {qps}", Action::QpError),
            Self::CqOverrun(qps) => write!(f, "{}, QPs {qps}", Action::CqOverrun),
            Self::PortDown(time) => write!(f, "{} for {time:?}", Action::PortDown),
            Self::Revoke(None) => write!(f, "{} of every region", Action::Revoke),
            Self::Revoke(Some(region)) => write!(f, "{} of region {region}", Action::Revoke),
            Self::Gpu(strike) => write!(f, "{} ({})", strike.act.action(), strike.name),
        }
    }
}

/// Every QP.
const ALL: Span = Span { first: 1, last: u64::MAX };
/// How many packets of the same QP overtake one, if the rule does not say.
const BEHIND: u32 = 1;
/// The most strikes that may wait for their time; a rule does not fire on a packet that would add
/// one more.
const MAX_WAITING: usize = 1 << 10;

/// A rule and its progress.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) rule: Rule,
    /// Its number in the file, which its decisions depend on.
    pub(crate) index: u64,
    /// Packets that met its conditions, by QP.
    met: HashMap<u64, u64>,
    pub(crate) fired: Fired,
}

/// A strike that a packet triggered and that has not happened yet.
#[derive(Clone, Debug)]
struct Waiting {
    /// When.
    due: Duration,
    /// The index of its rule among the states.
    state: usize,
    strike: Strike,
}

/// A plan at work on one NIC of one process.
#[derive(Clone, Debug)]
pub struct Injector {
    seed: u64,
    states: Vec<State>,
    waiting: Vec<Waiting>,
}

impl Injector {
    /// Selects the rules of the plan for this NIC and process.
    pub fn new(plan: &Plan, who: &Who) -> Self {
        let rules = (0..).zip(&plan.rules).filter(|(_, rule)| rule.is_for(who));
        let states = rules.map(|(index, rule)| State::new(index, rule));
        Self { seed: plan.seed, states: states.collect(), waiting: Vec::new() }
    }

    /// Whether no rule is left for this NIC and process.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// The verdict on a packet, `now` after the device was opened. Call this once for every packet.
    pub fn packet(&mut self, now: Duration, packet: &Packet) -> Verdict {
        let Self { seed, states, waiting } = self;
        let mut verdict = Verdict::Pass;
        for (place, state) in states.iter_mut().enumerate() {
            // Every rule counts every packet, so that no rule changes the count of another.
            if !state.is_hit(*seed, now, packet) || verdict != Verdict::Pass {
                continue;
            }
            if let Some(strike) = state.strike(packet.qp) {
                if waiting.len() >= MAX_WAITING {
                    continue;
                }
                let due = now + state.rule.by.unwrap_or_default();
                waiting.push(Waiting { due, state: place, strike });
                state.fired.waiting += 1;
            } else {
                verdict = state.verdict();
            }
            let Packet { opcode, qpn, psn, .. } = packet;
            state.fired.fire(now, Some(format!("{opcode}, QP {qpn}, PSN {psn}")));
        }
        verdict
    }

    /// The additional time of a page fault now.
    pub fn page_fault(&self, now: Duration) -> Duration {
        let slow = self.states.iter().filter(|state| state.slows(now));
        slow.filter_map(|state| state.rule.by).sum()
    }

    /// Notes that a page fault began, which takes longer by the result of [`Self::page_fault`].
    pub fn page_faulted(&mut self, now: Duration) {
        for state in self.states.iter_mut().filter(|state| state.slows(now)) {
            state.fired.fire(now, None);
        }
    }

    /// When the next action is due that no packet triggers.
    pub fn deadline(&self) -> Option<Duration> {
        let alone = self.states.iter().filter(|state| state.waits_for_time());
        let at = alone.map(|state| state.rule.from.unwrap_or_default());
        at.chain(self.waiting.iter().map(|waiting| waiting.due)).min()
    }

    /// The actions on objects that are due now.
    pub fn strikes(&mut self, now: Duration) -> impl Iterator<Item = Strike> {
        let Self { states, waiting, .. } = self;
        let mut due: Vec<_> = waiting.extract_if(.., |waiting| waiting.due <= now).collect();
        // Of those that are due together, the one triggered first comes first.
        due.sort_by_key(|waiting| waiting.due);
        for Waiting { state, .. } in &due {
            states[*state].fired.waiting -= 1;
        }
        let mut strikes: Vec<_> = due.into_iter().map(|waiting| waiting.strike).collect();
        for state in states {
            if state.waits_for_time()
                && state.is_in_time(now)
                && let Some(strike) = state.strike(0)
            {
                state.fired.fire(now, None);
                strikes.push(strike);
            }
        }
        strikes.into_iter()
    }

    /// What fired, rule by rule.
    pub fn report(&self) -> impl Iterator<Item = &Fired> {
        self.states.iter().map(|state| &state.fired)
    }
}

impl State {
    pub(crate) fn new(index: u64, rule: &Rule) -> Self {
        Self { rule: rule.clone(), index, met: HashMap::new(), fired: Fired::new(rule) }
    }

    pub(crate) fn is_in_time(&self, now: Duration) -> bool {
        self.rule.from.is_none_or(|from| from <= now)
            && self.rule.until.is_none_or(|until| now <= until)
    }

    pub(crate) fn is_used_up(&self) -> bool {
        self.rule.times.is_some_and(|times| self.fired.times >= times)
    }

    fn slows(&self, now: Duration) -> bool {
        self.rule.action == Action::SlowFaults && self.is_in_time(now) && !self.is_used_up()
    }

    /// Whether it happens once, at its time.
    fn waits_for_time(&self) -> bool {
        self.rule.action.is_strike() && !self.rule.is_of_packets() && self.fired.times == 0
    }

    fn is_hit(&mut self, seed: u64, now: Duration, packet: &Packet) -> bool {
        let rule = &self.rule;
        let is_in = |span: Option<Span>, number: u64| span.is_none_or(|span| span.contains(number));
        let is_met = rule.action != Action::SlowFaults
            && (!rule.action.is_strike() || rule.is_of_packets())
            && rule.way == packet.way
            && rule.opcode.include(packet.opcode, packet.qpn == Qpn::GSI)
            && is_in(rule.qp, packet.qp)
            && is_in(rule.qpn, packet.qpn.value().into())
            && is_in(rule.psn, packet.psn.value().into())
            && self.is_in_time(now);
        is_met && self.is_chosen(seed, packet.qp)
    }

    /// Counts a packet that met the other conditions, one of `of`, and returns whether it is hit.
    pub(crate) fn is_chosen(&mut self, seed: u64, of: u64) -> bool {
        self.fired.met += 1;
        let met = self.met.entry(of).or_default();
        *met += 1;
        let nth = *met;
        let is_every = match self.rule.every {
            Some(Every::Nth(every)) => nth.is_multiple_of(every),
            Some(Every::Time(_)) | None => true,
        };
        let share = |share| share_of(&[seed, self.index, of, nth]) < share;
        self.rule.nth.is_none_or(|span| span.contains(nth))
            && is_every
            && self.rule.probability.is_none_or(share)
            && !self.is_used_up()
    }

    fn verdict(&self) -> Verdict {
        match self.rule.action {
            Action::Drop => Verdict::Drop,
            Action::Duplicate => Verdict::Duplicate,
            Action::Reorder => Verdict::Reorder(self.rule.behind.unwrap_or(BEHIND)),
            Action::Delay => Verdict::Delay(self.rule.by.unwrap_or_default()),
            Action::Corrupt => Verdict::Corrupt,
            Action::Junk => Verdict::Junk,
            Action::Mark => Verdict::Mark,
            Action::NotReady => Verdict::NotReady,
            Action::Refuse => Verdict::Refuse,
            Action::QpError
            | Action::CqOverrun
            | Action::PortDown
            | Action::Revoke
            | Action::SlowFaults
            | Action::Move
            | Action::Evict
            | Action::Fill
            | Action::Reset
            | Action::Unplug
            | Action::Throttle => Verdict::Pass,
        }
    }

    /// Its action on an object; the packet determines the QP, or a rule without packets names the
    /// QPs.
    fn strike(&self, qp: u64) -> Option<Strike> {
        let one = Span { first: qp, last: qp };
        let qps = if qp > 0 { one } else { self.rule.qp.unwrap_or(ALL) };
        Some(match self.rule.action {
            Action::QpError => Strike::QpError(qps),
            Action::CqOverrun => Strike::CqOverrun(qps),
            Action::PortDown => Strike::PortDown(self.rule.lasts.unwrap_or_default()),
            Action::Revoke if !self.rule.is_of_gpus() => Strike::Revoke(self.rule.mr),
            _ => Strike::Gpu(self.rule.gpu_strike(self.index)?),
        })
    }
}

/// A number from 0 up to 1 that is a function of these.
fn share_of(parts: &[u64]) -> f64 {
    let mixed = parts.iter().fold(0, |sum: u64, part| mix(sum.wrapping_add(*part)));
    // CAST: a double holds 53 bits.
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

/// A step of SplitMix64.
const fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;

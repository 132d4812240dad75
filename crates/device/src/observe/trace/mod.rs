//! The trace of a NIC: the life of each work request, as Perfetto shows it.
//!
//! ```text
//!   process
//!     peerdma0            the NIC: packets sent and received, memory, events, fault plan
//!       QP 0x0041a2 RC    requests, each a slice from its post to its end
//!       CQ 1              completions
//! ```
//!
//! Two kinds of flows: that of a request goes from its slice through its packets to its completion,
//! and that of a packet from its sender to its receiver, in whatever process, and on to the
//! completion that it causes there. The number of the latter is made of what both know: the QPs and
//! the PSN.
//!
//! As for a capture, each packet of the path MTU is one, and the direct path is not used.

mod names;
mod packets;
mod queue;
mod requests;

use std::collections::BTreeMap;
use std::time::Duration;

use iba::Qpn;
use perfetto::{Kind, Trace};
use transport::Time;

pub(crate) use self::names::Event;
use self::names::{Arg, Category};
use self::queue::Queue;
use crate::clock::Clock;
use crate::config::NicConfig;
use crate::ids::{CqId, SrqId};

/// The longest time until an event is in the file.
const LATENESS: Duration = Duration::from_millis(1);

/// Writes what happens on a NIC.
#[derive(Debug)]
pub(crate) struct Tracer {
    trace: Trace,
    times: Times,
    tracks: Tracks,
    qps: BTreeMap<Qpn, OfQp>,
    srqs: BTreeMap<SrqId, Queue>,
    cqs: BTreeMap<CqId, u64>,
    /// Requests posted so far.
    posted: u64,
    /// The flow of the packet that a QP is handling.
    handled: Option<u64>,
    /// Why the request failed whose completion follows.
    why: Option<String>,
}

/// The device's time as that of the trace.
#[derive(Debug)]
struct Times {
    /// The time of the trace at the beginning of the device's.
    origin: u64,
    /// That of the last event. The engine reads its clock once for many packets, and a post reads
    /// it again: none may seem to be earlier than one before it.
    last: u64,
    /// When waiting events must be written.
    deadline: Option<Time>,
}

/// The tracks of the NIC.
#[derive(Debug)]
struct Tracks {
    nic: u64,
    sent: u64,
    received: u64,
    memory: u64,
    events: u64,
    plan: u64,
}

/// What is kept of a QP.
#[derive(Debug)]
struct OfQp {
    sends: Queue,
    receives: Queue,
}

impl Times {
    /// Compares the clocks. What another process sent must not seem to be later than what we
    /// received, so the best of several readings counts: one during which nothing else ran.
    fn compare(clock: &Clock) -> Self {
        let readings = (0..8).map(|_| {
            let before = clock.now().as_nanos();
            let trace = perfetto::now();
            let took = clock.now().as_nanos() - before;
            (took, trace.saturating_sub(before + took / 2))
        });
        let origin = readings.min().map_or(0, |(_, origin)| origin);
        Self { origin, last: 0, deadline: None }
    }

    fn at(&mut self, now: Time) -> u64 {
        self.deadline.get_or_insert(now + LATENESS);
        self.last = self.last.max(self.origin + now.as_nanos());
        self.last
    }
}

impl Tracks {
    fn of(trace: &mut Trace, name: &str) -> Self {
        let nic = trace.track(trace.process(), name, 0);
        let mut part = |name| trace.track(nic, name, 0);
        Self {
            nic,
            sent: part("packets sent"),
            received: part("packets received"),
            memory: part("memory regions"),
            events: part("asynchronous events"),
            plan: part("fault plan"),
        }
    }
}

impl Tracer {
    /// A tracer if the configuration names a file. If it cannot be written, the log says so, and
    /// there is no trace: the program must not fail for that.
    pub(super) fn open(config: &NicConfig, clock: &Clock) -> Option<Box<Self>> {
        let path = config.trace.as_ref()?;
        let opened = names::with_all(|names| Trace::open(path, names));
        let mut trace = opened
            .inspect_err(|error| {
                let path = path.display();
                tracing::error!(target: "peerdma::trace", "no trace in {path}: {error}");
            })
            .ok()?;
        let tracks = Tracks::of(&mut trace, &config.name);
        let mut tracer = Self {
            trace,
            times: Times::compare(clock),
            tracks,
            qps: BTreeMap::new(),
            srqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            posted: 0,
            handled: None,
            why: None,
        };
        // A trace shows that the device was opened, even if nothing follows.
        tracer.flush(clock.now()).then_some(Box::new(tracer))
    }

    /// Something happened to the memory of a region.
    pub(crate) fn memory(
        &mut self,
        now: Time,
        event: Event,
        (key, address, count): (u32, u64, u64),
        words: &str,
    ) {
        let at = self.times.at(now);
        let mut event = self.trace.event(at, Kind::Instant, self.tracks.memory, event as u64);
        event.category(Category::Memory as u64).hex(Arg::Key as u64, key.into());
        if count > 0 {
            event.hex(Arg::Address as u64, address).number(Arg::Count as u64, count);
        }
        if !words.is_empty() {
            event.text(Arg::Why as u64, words);
        }
    }

    /// An asynchronous event was raised.
    pub(crate) fn event(&mut self, now: Time, what: &str) {
        let at = self.times.at(now);
        self.trace
            .event(at, Kind::Instant, self.tracks.events, Event::Async as u64)
            .category(Category::Event as u64)
            .text(Arg::What as u64, what);
    }

    /// A fault plan acts, on a packet of a QP if one is given.
    pub(crate) fn plan(&mut self, now: Time, what: &str, packet: Option<(Qpn, u32)>) {
        let at = self.times.at(now);
        let mut event =
            self.trace.event(at, Kind::Instant, self.tracks.plan, Event::FaultPlan as u64);
        event.category(Category::FaultPlan as u64).text(Arg::What as u64, what);
        if let Some((qpn, psn)) = packet {
            event.hex(Arg::Qp as u64, qpn.value().into()).number(Arg::Psn as u64, psn.into());
        }
    }

    /// When waiting events must be written.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.times.deadline
    }

    /// Whether enough events wait that they should be written.
    pub(crate) fn is_full(&self) -> bool {
        self.trace.is_full()
    }

    /// In a forked child, closes what belongs to the parent.
    pub(super) fn abandon_in_child(self) {
        self.trace.abandon_in_child();
    }

    /// Writes waiting events. Returns false if the file cannot be written and the trace ends.
    #[must_use]
    pub(super) fn flush(&mut self, now: Time) -> bool {
        let flushed = self.trace.flush();
        self.times.deadline = (!self.trace.is_empty()).then(|| now + LATENESS);
        if let Err(error) = &flushed {
            tracing::error!(target: "peerdma::trace", "the trace ends here: {error}");
        }
        flushed.is_ok()
    }

    /// Writes waiting events, at the end.
    pub(super) fn finish(&mut self) {
        if let Err(error) = self.trace.finish() {
            tracing::error!(target: "peerdma::trace", "the trace lacks the last events: {error}");
        }
    }
}

//! Observers of each packet: a recorder, a tracer, and a fault plan.
//!
//! They are chosen when a device is opened. Without observers, packets take paths that none could
//! follow: several in one record, directly into a peer's memory, or without parsed headers.
//! `engine::observed` calls them.

pub(crate) mod plan;
pub(crate) mod tap;
pub(crate) mod trace;

use transport::Time;

use self::plan::Injected;
use self::tap::Tap;
use self::trace::Tracer;
use crate::carrier::udp::queue::Batch;
use crate::clock::Clock;
use crate::config::NicConfig;
use crate::refusal::Result;

/// What stands around the carriers of a NIC: nothing, or observers.
#[derive(Debug, Default)]
pub(crate) struct Observed(Option<Box<Observers>>);

/// The observers of a NIC's packets.
#[derive(Debug)]
pub(crate) struct Observers {
    /// Records every packet, if the configuration names a file for it.
    pub(crate) tap: Option<Box<Tap>>,
    /// Writes a trace, if the configuration names a file for it.
    pub(crate) tracer: Option<Box<Tracer>>,
    /// The faults to inject, if the configuration names a plan.
    pub(crate) plan: Option<Box<Injected>>,
}

impl Observed {
    /// With the observers that the configuration names; plain if it names none.
    pub(crate) fn open(config: &NicConfig, vf: u16, clock: &Clock) -> Result<Self> {
        let (tap, plan) = (Tap::open(config, vf), Injected::open(config, clock.now())?);
        Ok(Self::by(Observers { tap, tracer: Tracer::open(config, clock), plan }))
    }

    /// With these observers; plain if there are none.
    pub(crate) fn by(observers: Observers) -> Self {
        let Observers { tap, tracer, plan } = &observers;
        let is_any = tap.is_some() || tracer.is_some() || plan.is_some();
        Self(is_any.then(|| Box::new(observers)))
    }

    /// Whether there are no observers. Then packets may take paths that none could follow.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&Observers> {
        self.0.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self) -> Option<&mut Observers> {
        self.0.as_deref_mut()
    }

    /// In a forked child, closes what belongs to the parent. The parent reports what fired.
    pub(crate) fn abandon_in_child(&mut self) {
        let Some(observers) = self.0.take() else { return };
        if let Some(tap) = observers.tap {
            tap.abandon_in_child();
        }
        if let Some(tracer) = observers.tracer {
            tracer.abandon_in_child();
        }
    }
}

impl Observers {
    /// When one of them next has something to do.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let capture = self.tap.as_ref().and_then(|tap| tap.deadline());
        let plan = self.plan.as_ref().and_then(|plan| plan.deadline());
        let trace = self.tracer.as_ref().and_then(|tracer| tracer.deadline());
        capture.into_iter().chain(trace).chain(plan).min()
    }

    /// Notes that a train of datagrams was sent from this port.
    #[cold]
    pub(crate) fn sent(&mut self, now: Time, batch: &Batch, from: u16) {
        if let Some(tap) = &mut self.tap {
            tap.batch(now, batch, from);
        }
    }

    /// Writes what was recorded, if it is due. A capture or a trace that cannot be written ends.
    pub(crate) fn flush(&mut self, now: Time) {
        let is_due = |deadline: Option<Time>| deadline.is_some_and(|at| at <= now);
        let writes =
            |tap: &mut Box<Tap>| !(tap.is_full() || is_due(tap.deadline())) || tap.flush(now);
        if !self.tap.as_mut().is_none_or(writes) {
            self.tap = None;
        }
        let writes = |tracer: &mut Box<Tracer>| {
            !(tracer.is_full() || is_due(tracer.deadline())) || tracer.flush(now)
        };
        if !self.tracer.as_mut().is_none_or(writes) {
            self.tracer = None;
        }
    }

    /// Ends the records of the NIC, once: the capture, the trace, and the report of the plan.
    pub(crate) fn finish(&mut self) {
        if let Some(tap) = &mut self.tap {
            tap.finish();
        }
        if let Some(tracer) = &mut self.tracer {
            tracer.finish();
        }
        if let Some(plan) = &mut self.plan {
            plan.report();
        }
    }
}

//! Observers of each packet: a recorder, and a fault plan.
//!
//! They are chosen when a device is opened. Without observers, packets take paths that none could
//! follow: several in one record, directly into a peer's memory, or without parsed headers.
//! `engine::observed` calls them.

pub(crate) mod plan;
pub(crate) mod tap;

use transport::Time;

use self::plan::Injected;
use self::tap::Tap;
use crate::carrier::udp::queue::Batch;
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
    /// The faults to inject, if the configuration names a plan.
    pub(crate) plan: Option<Box<Injected>>,
}

impl Observed {
    /// With the observers that the configuration names; plain if it names none.
    pub(crate) fn open(config: &NicConfig, vf: u16, now: Time) -> Result<Self> {
        Ok(Self::by(Observers { tap: Tap::open(config, vf), plan: Injected::open(config, now)? }))
    }

    /// With these observers; plain if there are none.
    pub(crate) fn by(observers: Observers) -> Self {
        let is_any = observers.tap.is_some() || observers.plan.is_some();
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
        if let Some(tap) = self.0.take().and_then(|observers| observers.tap) {
            tap.abandon_in_child();
        }
    }
}

impl Observers {
    /// When one of them next has something to do.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let capture = self.tap.as_ref().and_then(|tap| tap.deadline());
        let plan = self.plan.as_ref().and_then(|plan| plan.deadline());
        capture.into_iter().chain(plan).min()
    }

    /// Notes that a train of datagrams was sent from this port.
    #[cold]
    pub(crate) fn sent(&mut self, now: Time, batch: &Batch, from: u16) {
        if let Some(tap) = &mut self.tap {
            tap.batch(now, batch, from);
        }
    }

    /// Writes what was recorded. A capture that cannot be written ends.
    pub(crate) fn flush(&mut self, now: Time) {
        if !self.tap.as_mut().is_none_or(|tap| tap.flush(now)) {
            self.tap = None;
        }
    }

    /// Ends the records of the NIC, once: the capture, and the report of the plan.
    pub(crate) fn finish(&mut self) {
        if let Some(tap) = &mut self.tap {
            tap.finish();
        }
        if let Some(plan) = &mut self.plan {
            plan.report();
        }
    }
}

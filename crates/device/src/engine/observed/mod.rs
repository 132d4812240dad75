//! The points at which observers see packets ([`crate::observe`]): where a QP passes a packet to a
//! carrier, where one is passed to a QP, where datagrams and those of QP 1 come and go, and where
//! their timers fire.
//!
//! The rest of the engine knows of them only by [`Common::is_plain`], which is then false.

mod faults;
mod mads;
mod records;
mod traces;

use std::time::Duration;

use transport::Time;
use transport::env::{Rx, Skipped, Source, To, TransmitError};
use wire::Headers;

pub use self::faults::set_weather;

use self::traces::deliver_observed;
use super::Engine;
use super::common::Common;
use super::env::QpEnv;
use crate::carrier::udp::{self, UdpQueue};
use crate::ids::QpId;
use crate::observe::plan::Injected;
use crate::observe::tap::Tap;
use crate::payload::InPayload;
use crate::qp::QpTable;
use crate::receiver::Receiver;

/// Gives a packet to its receiver.
#[inline]
pub(super) fn deliver(
    common: &mut Common,
    qps: &mut QpTable,
    to: Receiver,
    rx: &Rx<'_, InPayload<'_>>,
) -> Option<QpId> {
    if common.is_plain() { to.give(common, qps, rx) } else { deliver_observed(common, qps, to, rx) }
}

impl QpEnv<'_, '_> {
    /// Sends a packet, and records that it was sent.
    fn transmit_recorded(
        &mut self,
        to: To<'_>,
        headers: &Headers,
        source: &Source<'_>,
        skipped: Skipped,
    ) -> Result<(), TransmitError> {
        self.transmit_now(to, headers, source, skipped)?;
        self.record_sent(to, headers, source);
        self.trace_sent(to, headers, source);
        Ok(())
    }
}

impl Common {
    /// Whether no observer records packets, tampers with them, or sees each with its time.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.observed.is_plain()
    }

    fn tap(&mut self) -> Option<&mut Tap> {
        self.observed.get_mut()?.tap.as_deref_mut()
    }

    fn plan(&mut self) -> Option<&mut Injected> {
        self.observed.get_mut()?.plan.as_deref_mut()
    }

    fn known_plan(&self) -> Option<&Injected> {
        self.observed.get()?.plan.as_deref()
    }

    /// Whether a plan lets the current packet find no receive.
    #[inline]
    pub(super) fn withholds_receives(&self) -> bool {
        self.known_plan().is_some_and(|plan| plan.withholds)
    }

    /// Whether a plan refuses the current request.
    #[inline]
    pub(super) fn refuses_request(&self) -> bool {
        self.known_plan().is_some_and(|plan| plan.refuses)
    }

    /// Whether a plan holds the port down.
    pub(super) fn is_port_down(&self) -> bool {
        self.known_plan().is_some_and(Injected::is_port_down)
    }

    /// How long a page fault takes, by the configuration and a plan.
    pub(super) fn fault_latency(&self) -> Duration {
        let usual = Duration::from_micros(self.nic.config.fault_us);
        self.known_plan().map_or(usual, |plan| usual + plan.page_fault(self.now))
    }

    /// A page fault began.
    pub(super) fn page_faulted(&mut self) {
        let now = self.now;
        if let Some(plan) = self.plan() {
            plan.page_faulted(now);
        }
    }

    /// Ends the records of this NIC, once.
    pub(crate) fn finish_records(&mut self) {
        if let Some(observers) = self.observed.get_mut() {
            observers.finish();
        }
    }

    /// In a forked child, closes what belongs to the parent.
    pub(super) fn abandon_records(&mut self) {
        self.observed.abandon_in_child();
    }

    /// Sends the trains that are due.
    #[inline]
    pub(super) fn send_trains(
        &mut self,
        udp: &mut udp::Receiver,
        is_due: impl Fn(&UdpQueue) -> bool,
    ) {
        let Self { out, counters, observed, now, .. } = self;
        udp.flush(&mut out.udp, is_due, counters, |batch, from| {
            if let Some(observers) = observed.get_mut() {
                observers.sent(*now, batch, from);
            }
        });
    }

    /// When an observer next has something to do.
    #[inline]
    pub(super) fn observers_deadline(&self) -> Option<Time> {
        self.observed.get()?.deadline()
    }
}

impl Engine {
    /// Does what is due for the observers. Returns whether there was anything.
    #[inline]
    pub(super) fn run_observers(&mut self) -> bool {
        if self.common.is_plain() {
            return false;
        }
        let fired = self.run_plan();
        let now = self.common.now;
        if let Some(observers) = self.common.observed.get_mut() {
            observers.flush(now);
        }
        fired
    }
}

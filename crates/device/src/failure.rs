//! A panic fails the device, as crashed firmware fails hardware.
//!
//! An engine that a panic passed through may be in the middle of a change, so it is not used any
//! more: every context gets `IBV_EVENT_DEVICE_FATAL`, to peers it looks as if the process had died,
//! calls are refused with the reason, and destroying the program's objects succeeds and touches
//! nothing.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use iba::EventType;

use crate::engine::state::Life;
use crate::engine::{AsyncEvent, Engine, EventSource};
use crate::panics::words;
use crate::refusal::{Result, refuse};
use crate::{EngineGuard, Hca, hca};

impl Hca {
    /// Locks the engine, unless the device failed. Use [`Hca::lock`] to destroy objects and to take
    /// events.
    pub fn alive(&self) -> Result<EngineGuard<'_>> {
        let engine = self.lock();
        if let Some(why) = engine.failure() {
            refuse!(Io, "the device failed: {why}");
        }
        Ok(engine)
    }

    /// Makes the device fail, once.
    fn fail(&self, why: &str) {
        // Whatever state it is in: this is its last use.
        let failing = catch_unwind(AssertUnwindSafe(|| self.lock().fail(why)));
        if let Err(panic) = failing {
            tracing::error!(target: "peerdma::panic", "another panic while the device failed: {}", words(&*panic));
        }
    }
}

/// Fails every device that this process has open, since a panic passed through `call`, and it is
/// not known which device was concerned.
pub fn fail_all(call: &str, panic: &(dyn Any + Send)) {
    let why = format!("{call} panicked: {}", words(panic));
    tracing::error!(target: "peerdma::panic", "{why}");
    for hca in hca::open_hcas() {
        hca.fail(&why);
    }
}

impl Engine {
    /// Why the device failed, if it did.
    pub fn failure(&self) -> Option<&str> {
        match &self.life {
            Life::Failed(why) => Some(why),
            _ => None,
        }
    }

    /// Whether objects can only be destroyed.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.life != Life::Alive
    }

    pub(crate) fn fail(&mut self, why: &str) {
        if self.is_dead() {
            return;
        }
        self.life = Life::Failed(why.into());
        // Before anything that might panic again.
        for (_, ctx) in &mut self.common.objects.ctxs {
            let (event, source) = (EventType::DeviceFatal, EventSource::Device);
            let event = AsyncEvent { event, source, cookie: 0 };
            ctx.events.push(event, &mut self.common.objects.bells);
        }
        self.cm.fail(&mut self.common.objects.bells);
        self.stop();
        self.withdraw_everything();
        self.receivers.close();
        self.common.out.shm.close();
    }
}

#[cfg(test)]
mod tests {
    use iba::QpType;

    use super::*;
    use crate::rig::{self, Objects, Process, run};
    use crate::{Kind, Refusal};

    #[test]
    fn a_failed_device_reports_it_once_refuses_everything_and_can_be_destroyed() {
        let hca = Hca::start(&rig::nic("failure-calls")).expect("a VF is free");
        let mut engine = hca.lock();
        let objects = Objects::new(&mut engine);
        let (qp, _) = objects.qp(&mut engine, QpType::Rc);
        let other = engine.open_ctx().expect("descriptors");
        drop(engine);
        hca.fail("a test");
        hca.fail("another test");

        let mut engine = hca.lock();
        for ctx in [objects.ctx, other] {
            let event = engine.take_async_event(ctx).expect("every context is told");
            assert_eq!((event.event, event.source), (EventType::DeviceFatal, EventSource::Device));
            assert_eq!(engine.take_async_event(ctx), None, "once");
        }
        let refused = engine.post_send(qp, rig::send(1, None));
        assert_eq!(refused, Err(transport::PostError::Dead));
        assert!(engine.cq_is_broken(objects.cq));
        drop(engine);

        let is_why = |refusal: Refusal| {
            assert_eq!(refusal.kind(), Kind::Io);
            assert!(refusal.what().contains("a test"), "{refusal}");
        };
        is_why(hca.alive().expect_err("it failed"));
        is_why(hca.req_notify_cq(objects.cq, false).expect_err("it failed"));
        is_why(hca.rereg_mr(objects.mr.id, crate::Rereg::default()).expect_err("it failed"));

        hca.destroy_qp(qp).expect("destroying succeeds");
        hca.dereg_mr(objects.mr.id).expect("destroying succeeds");
        let mut engine = hca.lock();
        engine.destroy_cq(objects.cq).expect("destroying succeeds");
        engine.dealloc_pd(objects.pd).expect("destroying succeeds");
        drop(engine);
        hca.close_ctx(objects.ctx);
    }

    /// To its peers it looks as if its process had died: they reach their retry limits instead of
    /// waiting forever.
    #[test]
    fn the_peers_of_a_failed_device_see_it_go() {
        let [mut ours, mut theirs] =
            Process::pair(&rig::nic("failure-peers"), QpType::Rc).map(|process| process.engine);
        run(&mut [&mut ours, &mut theirs]);
        let vf = ours.common.nic.vf;
        assert!(theirs.common.out.shm.has(vf) && theirs.receivers.shm.len() > 0);
        ours.fail("a test");
        run(&mut [&mut theirs]);
        assert!(!theirs.common.out.shm.has(vf) && theirs.receivers.shm.len() == 0);
    }
}

//! What happens when a CQ overruns.
//!
//! A completion that found no room is lost, and its operation with it. `mlx5` and similar NICs stop
//! a QP that cannot complete, and report it (IBA 11.6.3.1, `IBV_EVENT_QP_FATAL`); the kernel's rxe
//! raises the event of the CQ and continues.
//!
//! A completion is created while its QP is borrowed, so the QPs end a moment later: at the next
//! deadline, which is now.

use iba::{AttrMask, QpAttr, QpEvent, QpState};
use transport::env::Env;

use super::Engine;
use super::common::Common;
use super::env::QpEnv;
use crate::config::Preset;
use crate::ids::{CqId, QpId};

impl Common {
    /// Notes that a CQ overran for the first time.
    #[cold]
    pub(super) fn note_overrun(&mut self, id: CqId) {
        if self.nic.config.preset != Preset::Rxe {
            self.objects.due.overruns.push(id);
        }
    }
}

impl Engine {
    /// Ends the QPs that complete on a CQ that overran. Returns whether there was one.
    pub(super) fn end_qps_of_overruns(&mut self) -> bool {
        let overruns = std::mem::take(&mut self.common.objects.due.overruns);
        if overruns.is_empty() {
            return false;
        }
        let has_gone = |cq: CqId| overruns.contains(&cq);
        let context = self.qps.iter().map(|entry| &entry.context);
        let hit = context.filter(|context| has_gone(context.send_cq) || has_gone(context.recv_cq));
        for id in hit.map(|context| context.id).collect::<Vec<_>>() {
            self.fail_qp(id);
        }
        true
    }

    /// A catastrophic error of a QP: it stops by itself, and reports it (IBA 11.6.3.1).
    pub(super) fn fail_qp(&mut self, id: QpId) {
        let Self { common, qps, .. } = self;
        let Some(entry) = qps.get_mut(id) else { return };
        if matches!(entry.qp.state(), QpState::Reset | QpState::Err) {
            return;
        }
        let mut env = QpEnv::new(common, &mut entry.context);
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        if entry.qp.modify(&mut env, &attr, AttrMask::STATE).is_ok() {
            env.event(QpEvent::Fatal);
        }
        self.make_ready(id);
    }
}

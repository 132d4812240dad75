//! Rules: which frames go to which QPs.

use iba::QpType;

use super::Engine;
use crate::flow::FlowAttr;
use crate::ids::{CtxId, FlowId, QpId};
use crate::objects::flows::Flow;
use crate::refusal::{Result, refuse};

/// The most rules of one process.
const MOST_FLOWS: usize = 1 << 16;

impl Engine {
    /// Directs the frames that a rule describes to a raw packet QP. All rules of the process are
    /// checked in the order of their kinds and priorities; see [`FlowAttr`].
    ///
    /// Refused as [`Invalid`](crate::Kind::Invalid) for a QP of another type and for a rule that no
    /// frame can match; as [`NotPermitted`](crate::Kind::NotPermitted) without CAP_NET_RAW.
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow(&mut self, qp: QpId, attr: FlowAttr) -> Result<FlowId> {
        let charge = self.common.charges.object("create_flow")?;
        let Some(entry) = self.qps.get(qp) else {
            refuse!(Invalid, "create_flow: there is no QP {}", qp.handle());
        };
        let context = &entry.context;
        let (ctx, qpn, qp_type) = (context.ctx, context.qpn, context.qp_type);
        if qp_type != QpType::RawPacket || context.is_wq() {
            refuse!(Invalid, "create_flow: QP {qpn} is {qp_type}; only RAW_PACKET receives frames");
        }
        attr.check()?;
        if self.common.objects.flows.rules.len() >= MOST_FLOWS {
            refuse!(NoMemory, "create_flow: the process has {MOST_FLOWS} rules");
        }
        self.listen()?;
        let flows = &mut self.common.objects.flows;
        let id = flows.rules.insert(Flow { ctx, qp, attr, _charge: charge });
        flows.sort();
        Ok(id.into())
    }

    /// Removes a rule.
    #[doc(alias = "ibv_destroy_flow")]
    pub fn destroy_flow(&mut self, id: FlowId) -> Result<()> {
        if self.failure().is_some() {
            return Ok(());
        }
        let flows = &mut self.common.objects.flows;
        if flows.rules.try_remove(id.index()).is_none() {
            refuse!(Invalid, "destroy_flow: there is no rule {}", id.handle());
        }
        self.rules_went();
        Ok(())
    }

    /// How many rules lead to a QP. While there are any, it cannot be destroyed (`ib_destroy_qp` of
    /// the kernel).
    pub(crate) fn flows_of(&self, id: QpId) -> usize {
        self.common.objects.flows.rules.iter().filter(|(_, flow)| flow.qp == id).count()
    }

    /// Removes the rules of a context.
    pub(crate) fn drop_flows(&mut self, ctx: CtxId) {
        self.common.objects.flows.rules.retain(|_, flow| flow.ctx != ctx);
        self.rules_went();
    }

    /// Sorts the remaining rules. Without any, frames are not examined.
    fn rules_went(&mut self) {
        self.common.objects.flows.sort();
        if self.common.objects.flows.rules.is_empty() {
            self.receivers.frames = None;
        }
    }
}

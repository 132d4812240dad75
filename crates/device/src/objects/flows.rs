//! Rules: which frames go to which QPs.

use link::ether::Passed;
use slab::Slab;
use smallvec::SmallVec;
use wire::frame::Frame;

use super::charges::Charge;
use super::uses::{Use, Uses};
use crate::flow::{FlowAttr, FlowKind};
use crate::ids::{CtxId, QpId};

/// The rules of a process.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    pub(crate) rules: Slab<Flow>,
    /// In the order in which frames meet them.
    order: Vec<usize>,
}

/// A rule, and its QP.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) ctx: CtxId,
    pub(crate) qp: QpId,
    pub(crate) attr: FlowAttr,
    pub(crate) _charge: Charge,
}

/// Work queues to choose from; their number is a power of two.
#[derive(Debug)]
pub(crate) struct RwqTable {
    pub(crate) ctx: CtxId,
    pub(crate) queues: Vec<QpId>,
    /// The uses of the queues.
    pub(crate) _holds: Vec<Use>,
    /// The QPs that use it.
    pub(crate) uses: Uses,
    pub(crate) _charge: Charge,
}

impl Flows {
    /// Sorts the rules: sniffers, normal ones by priority, and those for the remaining frames.
    pub(crate) fn sort(&mut self) {
        let place = |index: usize| {
            let attr = &self.rules[index].attr;
            match attr.kind {
                FlowKind::Sniffer => (0, 0, index),
                FlowKind::Normal => (1, attr.priority, index),
                FlowKind::McDefault => (2, 0, index),
                FlowKind::AllDefault => (3, 0, index),
            }
        };
        let mut order: Vec<usize> = self.rules.iter().map(|(index, _)| index).collect();
        order.sort_by_key(|index| place(*index));
        self.order = order;
    }

    /// The QPs that get a frame, each once. `own` is the address of the port.
    pub(crate) fn takers(
        &self,
        frame: &Frame,
        passed: Passed,
        own: [u8; 6],
    ) -> SmallVec<[QpId; 4]> {
        let mut takers = SmallVec::new();
        let is_to_group = frame.is_to_group();
        // Frames that the port would have taken from the wire, or its switch looped back.
        let is_ours = match passed {
            Passed::In => true,
            Passed::Astray => false,
            Passed::Out => is_to_group || frame.dst == own,
        };
        // Where the frame was consumed: other rules of that kind and priority get it as well, and
        // none after them.
        let mut ended: Option<(FlowKind, u16)> = None;
        for index in &self.order {
            let Flow { qp, attr, .. } = &self.rules[*index];
            let place = match attr.kind {
                FlowKind::Normal => (attr.kind, attr.priority),
                kind => (kind, 0),
            };
            let fits = match attr.kind {
                FlowKind::Sniffer => true,
                FlowKind::Normal => is_ours && attr.fits(frame),
                FlowKind::McDefault => is_ours && is_to_group,
                FlowKind::AllDefault => is_ours,
            };
            if ended.is_some_and(|ended| ended != place) {
                break;
            }
            if !fits {
                continue;
            }
            if !takers.contains(qp) {
                takers.push(*qp);
            }
            if attr.kind != FlowKind::Sniffer && !attr.goes_on {
                ended = Some(place);
            }
        }
        takers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];

    fn flows(rules: &[(FlowKind, u16, bool)]) -> Flows {
        let mut flows = Flows::default();
        for (qp, (kind, priority, goes_on)) in rules.iter().enumerate() {
            let attr =
                FlowAttr { kind: *kind, priority: *priority, goes_on: *goes_on, layers: vec![] };
            let (ctx, qp) = (CtxId(0), QpId(qp as u32));
            flows.rules.insert(Flow { ctx, qp, attr, _charge: Charge::none() });
        }
        flows.sort();
        flows
    }

    fn takers(rules: &[(FlowKind, u16, bool)], dst: [u8; 6], passed: Passed) -> Vec<u32> {
        let frame = Frame { dst, src: [0; 6], vlan: None, ether_type: 0, ip: None, ports: None };
        flows(rules).takers(&frame, passed, OWN).into_iter().map(|qp| qp.0).collect()
    }

    #[test]
    fn the_first_priority_that_matches_gets_the_frame_and_shares_it() {
        use FlowKind::{AllDefault, Normal};
        let rules =
            [(Normal, 7, false), (Normal, 3, false), (Normal, 3, false), (AllDefault, 0, false)];
        assert_eq!(takers(&rules, OWN, Passed::In), [1, 2]);
    }

    #[test]
    fn a_rule_that_does_not_trap_lets_others_see_the_frame() {
        use FlowKind::{AllDefault, Normal};
        let rules = [(Normal, 1, true), (Normal, 2, false), (AllDefault, 0, false)];
        assert_eq!(takers(&rules, OWN, Passed::In), [0, 1]);
        // The QPs have the numbers of their rules.
        assert_eq!(takers(&[rules[0], rules[2]], OWN, Passed::In), [0, 1]);
    }

    #[test]
    fn default_rules_get_the_remaining_frames() {
        use FlowKind::{AllDefault, McDefault};
        let rules = [(AllDefault, 0, false), (McDefault, 0, false)];
        assert_eq!(takers(&rules, GROUP, Passed::In), [1]);
        assert_eq!(takers(&rules, OWN, Passed::In), [0]);
    }

    #[test]
    fn outgoing_frames_come_back_to_groups_and_to_the_port_itself() {
        use FlowKind::{AllDefault, Normal, Sniffer};
        for kind in [Normal, AllDefault] {
            let rules = [(kind, 0, false)];
            assert_eq!(takers(&rules, GROUP, Passed::Out), [0]);
            assert_eq!(takers(&rules, OWN, Passed::Out), [0]);
            assert!(takers(&rules, [2; 6], Passed::Out).is_empty());
            assert!(takers(&rules, [2; 6], Passed::Astray).is_empty());
        }
        let rules = [(Sniffer, 0, false), (Normal, 0, false)];
        assert_eq!(takers(&rules, [2; 6], Passed::Out), [0]);
        assert_eq!(takers(&rules, GROUP, Passed::Out), [0, 1]);
    }
}

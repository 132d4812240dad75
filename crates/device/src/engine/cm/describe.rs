//! What the endpoints look like to others.

use super::endpoint::{Endpoint, Role};
use super::service::CmService;
use crate::ids::CmId;

/// `enum rdma_cm_state` of the kernel.
mod state {
    pub(super) const IDLE: u8 = 0;
    pub(super) const ADDR_RESOLVED: u8 = 2;
    pub(super) const ROUTE_RESOLVED: u8 = 4;
    pub(super) const CONNECT: u8 = 5;
    pub(super) const DISCONNECT: u8 = 6;
    pub(super) const ADDR_BOUND: u8 = 7;
    pub(super) const LISTEN: u8 = 8;
}

impl CmService {
    /// Every endpoint, by its number.
    pub(crate) fn describe(&self) -> impl Iterator<Item = view::CmId> {
        let mut all: Vec<_> = self.endpoints.iter().collect();
        all.sort_unstable_by_key(|(id, _)| **id);
        all.into_iter().map(|(id, endpoint)| describe(*id, endpoint))
    }
}

fn describe(id: CmId, endpoint: &Endpoint) -> view::CmId {
    let state = match endpoint.role {
        Role::Listener(_) => state::LISTEN,
        Role::Conn(_) => state::CONNECT,
        Role::Over => state::DISCONNECT,
        Role::Idle if endpoint.path.is_some() => state::ROUTE_RESOLVED,
        Role::Idle if endpoint.remote.is_some() => state::ADDR_RESOLVED,
        Role::Idle if endpoint.local.is_some() => state::ADDR_BOUND,
        Role::Idle => state::IDLE,
    };
    let qpn = endpoint.local_qpn.value();
    view::CmId {
        id: id.handle(),
        port_space: endpoint.spec.port_space as u32,
        state,
        kind: endpoint.spec.qp_type as u8,
        qpn: (qpn != 0).then_some(qpn),
        local: endpoint.local.map(Into::into),
        remote: endpoint.remote.map(Into::into),
    }
}

//! The handshake of a connection: asking for one, accepting a request, refusing it, and the terms
//! on which the two sides agree.

use device::rdma_cm::{ConnParam, Ece, RejReason};

use super::Answer;
use super::endpoint::Endpoint;
use super::qp_state::{MOST, Modify, to_error, to_rts};
use super::state::{Inner, State};

/// How many READs and atomics a side starts and serves at a time. [`MOST`] stands for "as many as
/// possible".
#[derive(Clone, Copy)]
pub(super) struct Depths {
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
}

impl Depths {
    /// The two numbers; none for "as many as possible".
    fn numbers(depths: Option<Self>) -> (Option<u8>, Option<u8>) {
        let number = |number: u8| Some(number).filter(|number| *number != MOST);
        let depth = depths.and_then(|depths| number(depths.initiator_depth));
        (depth, depths.and_then(|depths| number(depths.responder_resources)))
    }
}

/// Asks the peer for a connection.
///
/// # Errors
/// EINVAL unless the route is resolved.
pub(super) fn ask(inner: &mut Inner, depths: Option<Depths>, all: ConnParam) -> Answer {
    inner.expect("rdma_connect", &[State::RouteResolved])?;
    let end = inner.end("rdma_connect")?;
    let (depth, resources) = Depths::numbers(depths);
    inner.terms.initiator_depth = depth.unwrap_or(end.nic.max_initiator_depth);
    inner.terms.responder_resources = resources.unwrap_or(end.nic.max_responder_resources);
    let all = ConnParam { ece: inner.terms.local_ece, ..agreed(inner, all) };
    end.nic.hca.alive()?.cm_connect(end.id, &all)?;
    // For the answer, and many programs wait by poll(2).
    end.nic.hca.about_to_wait();
    inner.state = State::Connecting;
    inner.terms.connect_data.clear();
    Ok(())
}

/// Accepts the request for which the endpoint was made. `modify` is of its QP, if it has one.
///
/// # Errors
/// EINVAL if it was not made for a request.
pub(super) fn answer(
    endpoint: &Endpoint,
    inner: &mut Inner,
    depths: Option<Depths>,
    all: ConnParam,
    modify: Option<Modify<'_>>,
) -> Answer {
    inner.expect("rdma_accept", &[State::Connecting])?;
    let end = inner.end("rdma_accept")?;
    let (depth, resources) = Depths::numbers(depths);
    let (wanted, most) = (inner.terms.initiator_depth, end.nic.max_initiator_depth);
    inner.terms.initiator_depth = depth.unwrap_or_else(|| wanted.min(most));
    let (wanted, most) = (inner.terms.responder_resources, end.nic.max_responder_resources);
    inner.terms.responder_resources = resources.unwrap_or_else(|| wanted.min(most));
    if let Some(modify) = modify
        && !inner.is_ud()
    {
        to_rts(inner, modify, inner.terms.responder_resources, inner.terms.initiator_depth)?;
    }
    // The vendor is the one that asked (librdmacm: `ucma_copy_ece_param_to_kern_rep`).
    let ece = Ece { vendor_id: inner.terms.remote_ece.vendor_id, ..inner.terms.local_ece };
    let all = ConnParam { ece, ..agreed(inner, all) };
    // Events of the connection may come before the call returns.
    endpoint.set_open(true);
    let accepted = end.nic.hca.alive().and_then(|mut engine| engine.cm_accept(end.id, &all));
    if let Err(refusal) = accepted {
        endpoint.set_open(false);
        if let Some(modify) = modify {
            to_error(modify);
        }
        return Err(refusal.into());
    }
    // The peer's first message comes with its confirmation.
    end.nic.hca.about_to_wait();
    Ok(())
}

/// The parameters with the numbers of READs and atomics that are known by now.
fn agreed(inner: &Inner, all: ConnParam) -> ConnParam {
    ConnParam {
        responder_resources: inner.terms.responder_resources,
        initiator_depth: inner.terms.initiator_depth,
        ..all
    }
}

/// Refuses the request for which the endpoint was made.
pub(super) fn refuse(call: &str, inner: &Inner, reason: RejReason, data: &[u8]) -> Answer {
    inner.expect(call, &[State::Connecting])?;
    let end = inner.end(call)?;
    end.nic.hca.alive()?.cm_reject(end.id, reason, &[], data)?;
    Ok(())
}

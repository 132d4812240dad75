//! Moves the QP of an identifier to RTS, and to the error state. The QP may be a program's or the
//! library's own: the caller says how it is modified.

use device::rdma_cm::Ece;
use iba::{AttrMask, QpAttr, QpState};

use super::endpoint::Endpoint;
use super::state::Inner;
use super::{Answer, Failure};

/// "As many as possible", of READs and atomics.
#[doc(alias("RDMA_MAX_RESP_RES", "RDMA_MAX_INIT_DEPTH"))]
pub(super) const MOST: u8 = 0xff;

/// Modifies the QP.
pub(super) type Modify<'a> = &'a dyn Fn(&QpAttr, AttrMask) -> Answer;

/// What a QP is to be set to for `state`.
pub(super) fn attr_for(inner: &Inner, state: QpState) -> Answer<(QpAttr, AttrMask)> {
    let end = inner.end("rdma_init_qp_attr")?;
    let (mut attr, mask) = end.nic.hca.alive()?.cm_qp_attr(end.id, state)?;
    attr.state = state;
    Ok((attr, mask))
}

fn go(
    inner: &Inner,
    modify: Modify<'_>,
    state: QpState,
    change: impl FnOnce(&mut QpAttr),
) -> Answer {
    let (mut attr, mask) = attr_for(inner, state)?;
    change(&mut attr);
    modify(&attr, mask)
}

/// A new QP is ready for receives; one of datagrams for everything.
pub(super) fn prepare(inner: &Inner, modify: Modify<'_>) -> Answer {
    go(inner, modify, QpState::Init, |_| {})?;
    if !inner.is_ud() {
        return Ok(());
    }
    let to = |state| QpAttr { state, ..QpAttr::default() };
    modify(&to(QpState::Rtr), AttrMask::STATE)?;
    modify(&to(QpState::Rts), AttrMask::STATE | AttrMask::SQ_PSN)
}

/// Moves a QP by INIT and RTR to RTS. INIT again, since what it allows may have become known since
/// (`ucma_modify_qp_rtr`).
pub(super) fn to_rts(inner: &Inner, modify: Modify<'_>, resources: u8, depth: u8) -> Answer {
    go(inner, modify, QpState::Init, |_| {})?;
    go(inner, modify, QpState::Rtr, |attr| {
        if resources != MOST {
            attr.max_dest_rd_atomic = resources;
        }
    })?;
    go(inner, modify, QpState::Rts, |attr| {
        if depth != MOST {
            attr.max_rd_atomic = depth;
        }
    })
}

/// Moves a QP to the error state: what is posted is flushed.
pub(super) fn to_error(modify: Modify<'_>) {
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    // A QP in RESET refuses, and has nothing to flush.
    let _ = modify(&attr, AttrMask::STATE);
}

/// The QP of the active side follows the response: to RTS, and the peer is told.
pub(super) fn follow(endpoint: &Endpoint, modify: Option<Modify<'_>>, ece: Ece) -> Answer {
    let followed = followed(&mut endpoint.inner(), modify, ece);
    if let (Err(_), Some(modify)) = (&followed, modify) {
        to_error(modify);
    }
    followed
}

fn followed(inner: &mut Inner, modify: Option<Modify<'_>>, ece: Ece) -> Answer {
    // The answer must be of the vendor that was asked (librdmacm: `ucma_process_conn_resp_ece`).
    if ece.vendor_id != 0 && ece.vendor_id != inner.terms.local_ece.vendor_id {
        let what = format!("rdma_get_cm_event: the peer answers for vendor {:#x}", ece.vendor_id);
        return Err(Failure::new(libc::EINVAL, what));
    }
    inner.terms.remote_ece = ece;
    let end = inner.end("rdma_get_cm_event")?;
    if let Some(modify) = modify {
        to_rts(inner, modify, MOST, MOST)?;
    }
    Ok(end.nic.hca.alive()?.cm_ready(end.id, &[])?)
}

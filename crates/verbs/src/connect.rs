//! How a QP is brought from RESET to RTS: for those with queues and for an XRC_RECV QP alike.

use iba::{Access, AttrMask, Av, Psn, QKey, QpAttr, QpState, QpType, Qpn};

use crate::{ConnectOptions, Context, Endpoint, Kind, Refusal, Result};

/// The key of datagram QPs that [`Qp::to_rts`](crate::Qp::to_rts) sets up.
pub const DEFAULT_QKEY: u32 = 0x1111_1111;

/// A QP that is connected.
pub(crate) trait Connect {
    fn context(&self) -> &Context;
    fn qp_type(&self) -> QpType;
    fn number(&self) -> Qpn;
    /// The first sequence number that it sends.
    fn psn(&self) -> Psn;
    fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()>;
}

/// Where a peer reaches it, at the port's default GID.
pub(crate) fn endpoint(qp: &impl Connect) -> Result<Endpoint> {
    let Some(first) = qp.context().default_gid() else {
        return Err(Refusal::new(Kind::NotFound, "endpoint: the port has no GID"));
    };
    Ok(Endpoint { gid: first.gid, qpn: qp.number(), psn: qp.psn() })
}

/// The same at another GID of the port's table.
pub(crate) fn endpoint_at(qp: &impl Connect, gid_index: u8) -> Result<Endpoint> {
    let gids = qp.context().gids();
    let Some(found) = gids.iter().find(|gid| gid.index == u32::from(gid_index)) else {
        let what = format!("endpoint: the port has no GID of index {gid_index}");
        return Err(Refusal::new(Kind::NotFound, what));
    };
    Ok(Endpoint { gid: found.gid, qpn: qp.number(), psn: qp.psn() })
}

/// From RESET to INIT, where its peer may do what `access` says.
pub(crate) fn to_init(qp: &impl Connect, access: Access) -> Result<()> {
    let attr = QpAttr {
        state: QpState::Init,
        port_num: qp.context().port(),
        access_flags: access,
        qkey: QKey(DEFAULT_QKEY),
        ..QpAttr::default()
    };
    let own = if qp.qp_type() == QpType::Ud { AttrMask::QKEY } else { AttrMask::ACCESS_FLAGS };
    qp.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | own)
}

/// From INIT to RTS, with a peer.
pub(crate) fn connect(qp: &impl Connect, peer: &Endpoint, options: &ConnectOptions) -> Result<()> {
    use AttrMask as A;
    let context = qp.context();
    // The GID that `endpoint` gives the peer.
    let usual = context.av_to(peer.gid);
    let mut attr = QpAttr {
        state: QpState::Rtr,
        path_mtu: options.mtu.unwrap_or_else(|| context.port_attr().active_mtu),
        dest_qpn: peer.qpn,
        rq_psn: peer.psn,
        av: Av {
            sgid_index: options.gid_index.unwrap_or(usual.sgid_index),
            hop_limit: options.hop_limit,
            traffic_class: options.traffic_class,
            sl: options.service_level,
            ..usual
        },
        max_dest_rd_atomic: options.responder_resources,
        max_rd_atomic: options.initiator_depth,
        min_rnr_timer: options.min_rnr_timer,
        timeout: options.timeout,
        retry_cnt: options.retry_count,
        rnr_retry: options.rnr_retry_count,
        sq_psn: qp.psn(),
        ..QpAttr::default()
    };
    let (responds, requests) = match qp.qp_type() {
        QpType::Rc => (true, true),
        QpType::XrcRecv => (true, false),
        QpType::XrcSend => (false, true),
        _ => (false, false),
    };
    let mut mask = A::STATE | A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN;
    if responds {
        mask |= A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER;
    }
    qp.modify(&attr, mask)?;
    attr.state = QpState::Rts;
    mask = A::STATE | A::SQ_PSN;
    if qp.qp_type().is_reliable() {
        mask |= A::TIMEOUT;
    }
    if requests {
        mask |= A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC;
    }
    qp.modify(&attr, mask)
}

//! What the owner specifies when it connects, accepts or asks.

use iba::{Gid, Guid, Mtu, PKey, Psn, QKey, QpType, Qpn};

use crate::SidrStatus;

/// Where messages of a connection come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Peer {
    /// Our address.
    pub local: Gid,
    /// The peer's address.
    pub remote: Gid,
    /// Which process of the host at that address, where several share it and this is known.
    pub via: Option<u16>,
}

/// Where a message came from, as its carrier knows it and not as the message claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin {
    remote: Gid,
    via: Option<u16>,
}

impl Peer {
    pub(crate) fn origin(&self) -> Origin {
        Origin { remote: self.remote, via: self.via }
    }
}

/// The path that a REQ proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct PathParam {
    /// The path MTU.
    pub mtu: Mtu,
    /// IP type of service.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// IP time to live.
    pub hop_limit: u8,
    /// How long a packet lives: `4.096 us * 2^code`.
    pub packet_life_time: u8,
}

/// How long answers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Patience {
    /// How long either side may take to answer: `4.096 us * 2^code`.
    pub response_timeout: u8,
    /// How often a message is sent again, 0 to 15.
    pub max_retries: u8,
}

/// What a vendor's two ends agree on (enhanced connection establishment). Nothing here interprets
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias("ibv_ece", "rdma_ucm_ece"))]
#[expect(clippy::exhaustive_structs, reason = "the two fields of IBA")]
pub struct Ece {
    /// The vendor, by its IEEE company id of 24 bits; 0 for none.
    pub vendor_id: u32,
    /// The vendor's options.
    pub attr_mod: u32,
}

/// What a REQ says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ib_cm_req_param")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct ReqParam {
    /// Whom to ask.
    pub peer: Peer,
    /// For what.
    pub service_id: u64,
    /// RC, UC, or the sending half of XRC.
    pub qp_type: QpType,
    /// Our QP.
    pub qpn: Qpn,
    /// The first PSN that the peer must send.
    pub starting_psn: Psn,
    /// The path.
    pub path: PathParam,
    /// How long to wait.
    pub patience: Patience,
    /// READs and atomics that we accept at once.
    pub responder_resources: u8,
    /// READs and atomics that we have outstanding at once.
    pub initiator_depth: u8,
    /// Whether our QP has end-to-end flow control.
    pub flow_control: bool,
    /// Transport retries, 3 bits.
    pub retry_count: u8,
    /// RNR retries, 3 bits.
    pub rnr_retry_count: u8,
    /// Whether our QP has a shared receive queue.
    pub srq: bool,
    /// What we ask of a peer by the same vendor.
    pub ece: Ece,
    /// At most 92 bytes.
    pub private_data: Vec<u8>,
}

/// What a REP says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ib_cm_rep_param")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct RepParam {
    /// Our QP.
    pub qpn: Qpn,
    /// The first PSN that the peer must send.
    pub starting_psn: Psn,
    /// READs and atomics that we accept at once.
    pub responder_resources: u8,
    /// READs and atomics that we have outstanding at once.
    pub initiator_depth: u8,
    /// Whether our QP has end-to-end flow control.
    pub flow_control: bool,
    /// RNR retries, 3 bits.
    pub rnr_retry_count: u8,
    /// Whether our QP has a shared receive queue.
    pub srq: bool,
    /// What we grant a peer by the same vendor.
    pub ece: Ece,
    /// At most 196 bytes.
    pub private_data: Vec<u8>,
}

/// What a SIDR_REQ says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ib_cm_sidr_req_param")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct SidrReqParam {
    /// Whom to ask.
    pub peer: Peer,
    /// For what.
    pub service_id: u64,
    /// How long to wait.
    pub patience: Patience,
    /// At most 216 bytes.
    pub private_data: Vec<u8>,
}

/// What a SIDR_REP says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ib_cm_sidr_rep_param")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct SidrRepParam {
    /// What came of it.
    pub status: SidrStatus,
    /// The QP of the service.
    pub qpn: Qpn,
    /// The Q_Key of that QP.
    pub qkey: QKey,
    /// At most 136 bytes.
    pub private_data: Vec<u8>,
}

/// What the communication manager knows of the adapter it acts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Local {
    /// The channel adapter.
    pub ca_guid: Guid,
    /// How long it takes to acknowledge: `4.096 us * 2^code`.
    pub ack_delay: u8,
    /// The partition.
    pub pkey: PKey,
    /// The high bits of every communication id, by which messages find their way here.
    pub prefix: u32,
    /// How many low bits are left to count in.
    pub index_bits: u8,
    /// Where counting begins.
    pub start: u32,
}

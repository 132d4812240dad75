//! The parameters of connecting, accepting and resolving.

use iba::{Gid, Guid, Mtu, PKey, Psn, QKey, QpType, Qpn};

use crate::SidrStatus;

/// The two ends of a connection's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Peer {
    /// Our address.
    pub local: Gid,
    /// The peer's address.
    pub remote: Gid,
    /// The process at that address, if several share it and this one is known.
    pub via: Option<u16>,
}

/// The sender of a message, as its carrier knows it and not as the message claims.
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

/// The options that two ends of one vendor agree on (enhanced connection establishment). Nothing
/// here interprets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias("ibv_ece", "rdma_ucm_ece"))]
#[expect(clippy::exhaustive_structs, reason = "the two fields of IBA")]
pub struct Ece {
    /// The vendor, by its IEEE company id of 24 bits; 0 for none.
    pub vendor_id: u32,
    /// The vendor's options.
    pub attr_mod: u32,
}

/// The contents of a REQ.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ib_cm_req_param")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct ReqParam {
    /// The peer.
    pub peer: Peer,
    /// The service.
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
    /// What we request from a peer of the same vendor.
    pub ece: Ece,
    /// At most 92 bytes.
    pub private_data: Vec<u8>,
}

/// The contents of a REP.
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
    /// What we grant to a peer of the same vendor.
    pub ece: Ece,
    /// At most 196 bytes.
    pub private_data: Vec<u8>,
}

/// The contents of a SIDR_REQ.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ib_cm_sidr_req_param")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct SidrReqParam {
    /// The peer.
    pub peer: Peer,
    /// The service.
    pub service_id: u64,
    /// How long to wait.
    pub patience: Patience,
    /// At most 216 bytes.
    pub private_data: Vec<u8>,
}

/// The contents of a SIDR_REP.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ib_cm_sidr_rep_param")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct SidrRepParam {
    /// The outcome.
    pub status: SidrStatus,
    /// The QP of the service.
    pub qpn: Qpn,
    /// The Q_Key of that QP.
    pub qkey: QKey,
    /// At most 136 bytes.
    pub private_data: Vec<u8>,
}

/// What the communication manager knows about the adapter that it acts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Local {
    /// The channel adapter.
    pub ca_guid: Guid,
    /// How long it takes to acknowledge: `4.096 us * 2^code`.
    pub ack_delay: u8,
    /// The partition.
    pub pkey: PKey,
    /// The high bits of every communication id, which lead messages here.
    pub prefix: u32,
    /// How many low bits are left to count in.
    pub index_bits: u8,
    /// Where counting begins.
    pub start: u32,
}

//! QP types, states, attributes, and which attributes each transition takes.

use core::fmt;

use bitflags::bitflags;

use crate::{Access, AckTimeout, Av, Mtu, Psn, QKey, Qpn, RnrTimer};

/// A transport service, with the values of `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_qp_type")]
#[non_exhaustive]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Raw Ethernet frames.
    RawPacket = 8,
    /// The sending half of an extended reliable connection.
    XrcSend = 9,
    /// The receiving half of an extended reliable connection.
    XrcRecv = 10,
}

impl QpType {
    /// The type that `value` encodes, if any.
    pub fn from_code(value: u32) -> Option<Self> {
        Some(match value {
            2 => Self::Rc,
            3 => Self::Uc,
            4 => Self::Ud,
            8 => Self::RawPacket,
            9 => Self::XrcSend,
            10 => Self::XrcRecv,
            _ => return None,
        })
    }

    /// Whether a QP of this type has one peer.
    pub const fn is_connected(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::XrcSend | Self::XrcRecv)
    }

    /// Whether packets are acknowledged.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::RawPacket => "RAW_PACKET",
            Self::XrcSend => "XRC_SEND",
            Self::XrcRecv => "XRC_RECV",
        })
    }
}

/// The state of a QP, with the values of `enum ibv_qp_state` (IBA 10.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_qp_state")]
#[expect(clippy::exhaustive_enums, reason = "IBA 10.3.1 defines exactly these")]
#[repr(u8)]
pub enum QpState {
    /// Nothing is accepted; packets are dropped.
    #[default]
    Reset = 0,
    /// Receives may be posted; packets are dropped.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained: begun work finishes, new work waits.
    Sqd = 4,
    /// Send queue error: sends are flushed, receiving continues (UC and UD only).
    Sqe = 5,
    /// Error: everything is flushed.
    Err = 6,
}

impl QpState {
    /// Every state, in the order of their values.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// The state that `value` encodes, if any.
    pub fn from_code(value: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u32 == value)
    }

    /// Whether packets for the QP are processed in this state.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether send work requests may be posted in this state (IBA 10.8.2, C10-96). In the error
    /// states they are accepted and flushed.
    pub const fn accepts_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Err)
    }

    /// Whether receive work requests may be posted in this state (IBA C10-97).
    pub const fn accepts_receives(self) -> bool {
        !matches!(self, Self::Reset)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

bitflags! {
    /// Which fields of a [`QpAttr`] are given, with the values of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_qp_attr_mask")]
    pub struct AttrMask: u32 {
        /// [`QpAttr::state`].
        const STATE = 1;
        /// [`QpAttr::cur_state`].
        const CUR_STATE = 1 << 1;
        /// [`QpAttr::en_sqd_async_notify`].
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// [`QpAttr::access_flags`].
        const ACCESS_FLAGS = 1 << 3;
        /// [`QpAttr::pkey_index`].
        const PKEY_INDEX = 1 << 4;
        /// [`QpAttr::port_num`].
        const PORT = 1 << 5;
        /// [`QpAttr::qkey`].
        const QKEY = 1 << 6;
        /// [`QpAttr::av`].
        const AV = 1 << 7;
        /// [`QpAttr::path_mtu`].
        const PATH_MTU = 1 << 8;
        /// [`QpAttr::timeout`].
        const TIMEOUT = 1 << 9;
        /// [`QpAttr::retry_cnt`].
        const RETRY_CNT = 1 << 10;
        /// [`QpAttr::rnr_retry`].
        const RNR_RETRY = 1 << 11;
        /// [`QpAttr::rq_psn`].
        const RQ_PSN = 1 << 12;
        /// [`QpAttr::max_rd_atomic`].
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// [`QpAttr::alt_av`].
        const ALT_PATH = 1 << 14;
        /// [`QpAttr::min_rnr_timer`].
        const MIN_RNR_TIMER = 1 << 15;
        /// [`QpAttr::sq_psn`].
        const SQ_PSN = 1 << 16;
        /// [`QpAttr::max_dest_rd_atomic`].
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// [`QpAttr::path_mig_state`].
        const PATH_MIG_STATE = 1 << 18;
        /// The capacities of the queues.
        const CAP = 1 << 19;
        /// [`QpAttr::dest_qpn`].
        const DEST_QPN = 1 << 20;
        /// A packet pacing rate.
        const RATE_LIMIT = 1 << 25;
        const _ = !0;
    }
}

/// The capacities of a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ibv_qp_cap")]
#[expect(clippy::exhaustive_structs, reason = "the five capacities of IBA")]
pub struct QpCap {
    /// Sends that can be outstanding.
    pub max_send_wr: u32,
    /// Receives that can be outstanding.
    pub max_recv_wr: u32,
    /// Elements of a send.
    pub max_send_sge: u32,
    /// Elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

/// The attributes of a QP that a transition sets and a query returns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_qp_attr")]
#[expect(clippy::exhaustive_structs, reason = "callers fill in what the mask names")]
pub struct QpAttr {
    /// The state to move to, or the state now.
    pub state: QpState,
    /// The state that the caller expects the QP to be in.
    pub cur_state: QpState,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// Path migration state: 0 migrated, 1 rearm, 2 armed.
    pub path_mig_state: u8,
    /// The QP's key for datagrams.
    pub qkey: QKey,
    /// The first PSN expected from the peer.
    pub rq_psn: Psn,
    /// The first PSN to send.
    pub sq_psn: Psn,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// What the peer may do.
    pub access_flags: Access,
    /// The path to the peer.
    pub av: Av,
    /// The alternate path.
    pub alt_av: Av,
    /// Index into the partition table.
    pub pkey_index: u16,
    /// The same for the alternate path.
    pub alt_pkey_index: u16,
    /// Whether entering SQD raises an event once drained.
    pub en_sqd_async_notify: bool,
    /// Whether the send queue is draining (query only).
    pub sq_draining: bool,
    /// READs and atomics the QP may have outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics the QP holds as responder.
    pub max_dest_rd_atomic: u8,
    /// How long the peer waits after our receiver-not-ready NAK.
    pub min_rnr_timer: RnrTimer,
    /// The port, from 1.
    pub port_num: u8,
    /// The local ACK timeout.
    pub timeout: AckTimeout,
    /// Retries after a timeout or a sequence NAK, up to 7.
    pub retry_cnt: u8,
    /// Retries after a receiver-not-ready NAK; 7 means without limit.
    pub rnr_retry: u8,
    /// The alternate port.
    pub alt_port_num: u8,
    /// The ACK timeout of the alternate path.
    pub alt_timeout: AckTimeout,
    /// Packet pacing in kbit/s; 0 means no limit.
    pub rate_limit: u32,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            path_mtu: Mtu::Mtu256,
            path_mig_state: 0,
            qkey: QKey(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            dest_qpn: Qpn::new(0),
            access_flags: Access::empty(),
            av: Av::default(),
            alt_av: Av::default(),
            pkey_index: 0,
            alt_pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer::default(),
            port_num: 0,
            timeout: AckTimeout::default(),
            retry_cnt: 0,
            rnr_retry: 0,
            alt_port_num: 0,
            alt_timeout: AckTimeout::default(),
            rate_limit: 0,
        }
    }
}

/// What one transition takes: attributes that must be given, and attributes that may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transition {
    /// Attributes that must be given.
    pub required: AttrMask,
    /// Attributes that may be given.
    pub optional: AttrMask,
}

/// Why a transition is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransitionError {
    /// The states are not connected for this type.
    NoSuchTransition {
        /// From.
        from: QpState,
        /// To.
        to: QpState,
    },
    /// Required attributes are missing.
    Missing(AttrMask),
    /// Attributes are given that the transition does not take.
    Refused(AttrMask),
}

impl fmt::Display for TransitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchTransition { from, to } => write!(f, "no transition from {from} to {to}"),
            Self::Missing(mask) => write!(f, "the transition needs {mask:?} as well"),
            Self::Refused(mask) => write!(f, "the transition does not take {mask:?}"),
        }
    }
}

impl core::error::Error for TransitionError {}

/// What moving a QP of type `qp_type` from `from` to `to` takes, or `None` if that is not possible
/// (IBA table 91; the kernel's `qp_state_table` in `drivers/infiniband/core/verbs.c`).
pub fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    use AttrMask as A;
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{RawPacket, Rc, Uc, Ud, XrcRecv, XrcSend};

    let set = |required, optional| Some(Transition { required, optional });
    let none = A::empty();
    let connected = A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS;
    let path = A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN;
    let migration = A::CUR_STATE | A::ALT_PATH | A::ACCESS_FLAGS | A::PATH_MIG_STATE;

    match (from, to) {
        (_, Reset | Err) => set(none, none),
        (Reset, Init) => match qp_type {
            Ud => set(A::PKEY_INDEX | A::PORT | A::QKEY, none),
            RawPacket => set(A::PORT, none),
            Rc | Uc | XrcSend | XrcRecv => set(connected, none),
        },
        (Init, Init) => match qp_type {
            Ud => set(none, A::PKEY_INDEX | A::PORT | A::QKEY),
            RawPacket => set(none, A::PORT),
            Rc | Uc | XrcSend | XrcRecv => set(none, connected),
        },
        (Init, Rtr) => {
            let optional = A::ALT_PATH | A::ACCESS_FLAGS | A::PKEY_INDEX;
            match qp_type {
                Ud => set(none, A::PKEY_INDEX | A::QKEY),
                RawPacket => set(none, none),
                Uc | XrcSend => set(path, optional),
                Rc | XrcRecv => set(path | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER, optional),
            }
        }
        (Rtr, Rts) => {
            let retries =
                A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC | A::SQ_PSN;
            match qp_type {
                Ud => set(A::SQ_PSN, A::CUR_STATE | A::QKEY),
                RawPacket => set(none, A::RATE_LIMIT),
                Uc => set(A::SQ_PSN, migration),
                Rc => set(retries, migration | A::MIN_RNR_TIMER | A::RATE_LIMIT),
                XrcSend => set(retries, migration),
                XrcRecv => set(A::TIMEOUT | A::SQ_PSN, migration | A::MIN_RNR_TIMER),
            }
        }
        (Rts, Rts) => match qp_type {
            Ud => set(none, A::CUR_STATE | A::QKEY),
            RawPacket => set(none, A::RATE_LIMIT),
            Uc | XrcSend => set(none, migration),
            Rc => set(none, migration | A::MIN_RNR_TIMER | A::RATE_LIMIT),
            XrcRecv => set(none, migration | A::MIN_RNR_TIMER),
        },
        (Rts, Sqd) if qp_type != RawPacket => set(none, A::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Rts) => match qp_type {
            Ud => set(none, A::CUR_STATE | A::QKEY),
            RawPacket => None,
            Uc | XrcSend => set(none, migration),
            Rc | XrcRecv => set(none, migration | A::MIN_RNR_TIMER),
        },
        (Sqd, Sqd) => {
            let path = A::AV | A::ALT_PATH | A::ACCESS_FLAGS | A::PKEY_INDEX | A::PATH_MIG_STATE;
            let responder = A::PORT | A::TIMEOUT | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER;
            let requester = A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC;
            match qp_type {
                Ud => set(none, A::PKEY_INDEX | A::QKEY),
                RawPacket => None,
                Uc => set(none, path),
                Rc => set(none, path | responder | requester),
                XrcSend => set(none, path | A::PORT | A::TIMEOUT | requester),
                XrcRecv => set(none, path | responder),
            }
        }
        (Sqe, Rts) => match qp_type {
            Ud => set(none, A::CUR_STATE | A::QKEY),
            Uc => set(none, A::CUR_STATE | A::ACCESS_FLAGS),
            Rc | RawPacket | XrcSend | XrcRecv => None,
        },
        _ => None,
    }
}

/// Checks `mask` against [`transition`], as `ib_modify_qp_is_ok` of the kernel does: every required
/// attribute must be given, and nothing besides required and optional ones.
pub fn check_transition(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    mask: AttrMask,
) -> Result<(), TransitionError> {
    let Some(Transition { required, optional }) = transition(qp_type, from, to) else {
        return Err(TransitionError::NoSuchTransition { from, to });
    };
    let missing = required.difference(mask);
    if !missing.is_empty() {
        return Err(TransitionError::Missing(missing));
    }
    let refused = mask.difference(required | optional | AttrMask::STATE);
    if !refused.is_empty() {
        return Err(TransitionError::Refused(refused));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn can(qp_type: QpType, from: QpState, to: QpState) -> bool {
        transition(qp_type, from, to).is_some()
    }

    /// The whole matrix for the three basic types: a row per state, a mark per state it can move
    /// to.
    #[test]
    fn transitions_are_those_of_the_standard() {
        let matrix = |qp_type| {
            QpState::ALL.map(|from| {
                QpState::ALL
                    .map(|to| if can(qp_type, from, to) { 'x' } else { '.' })
                    .iter()
                    .collect()
            })
        };
        let rc: [String; 7] = matrix(QpType::Rc);
        assert_eq!(
            rc,
            //RIRRSSE
            ["xx....x", "xxx...x", "x..x..x", "x..xx.x", "x..xx.x", "x.....x", "x.....x"]
        );
        for qp_type in [QpType::Uc, QpType::Ud] {
            let other: [String; 7] = matrix(qp_type);
            assert_eq!(other[..5], rc[..5]);
            assert_eq!(other[5], "x..x..x", "an SQE QP of type {qp_type} can be recovered");
        }
    }

    #[test]
    fn rc_to_rtr_names_what_is_missing_and_what_is_too_much() {
        use AttrMask as A;
        let check = |mask| check_transition(QpType::Rc, QpState::Init, QpState::Rtr, mask);
        let all = A::STATE
            | A::AV
            | A::PATH_MTU
            | A::DEST_QPN
            | A::RQ_PSN
            | A::MAX_DEST_RD_ATOMIC
            | A::MIN_RNR_TIMER;
        assert_eq!(check(all), Ok(()));
        assert_eq!(check(all | A::PKEY_INDEX), Ok(()));
        assert_eq!(check(all.difference(A::AV)), Err(TransitionError::Missing(A::AV)));
        assert_eq!(check(all | A::SQ_PSN), Err(TransitionError::Refused(A::SQ_PSN)));
    }

    #[test]
    fn ud_needs_a_qkey_and_no_access_flags() {
        use AttrMask as A;
        let check = |mask| check_transition(QpType::Ud, QpState::Reset, QpState::Init, mask);
        assert_eq!(check(A::STATE | A::PKEY_INDEX | A::PORT | A::QKEY), Ok(()));
        assert_eq!(
            check(A::STATE | A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS | A::QKEY),
            Err(TransitionError::Refused(A::ACCESS_FLAGS))
        );
    }
}

//! How the QPs of a test are set up.

use iba::{
    Access, AckTimeout, AttrMask, Mtu, Psn, QKey, QpAttr, QpCap, QpState, QpType, Qpn, RnrTimer,
};
use transport::{Early, Env, PathCaps, Qp, QpInit};

use crate::host::Host;
use crate::link::Link;

/// The QP under test in a [`Station`](crate::Station), and the first of a [`Net`](crate::Net).
pub const QPN: Qpn = Qpn::new(0x11);
/// Its peer.
pub const PEER: Qpn = Qpn::new(0x12);
/// The first sequence number that the QP under test sends.
pub const SQ_PSN: Psn = Psn::new(0x100);
/// The first sequence number that its peer sends.
pub const RQ_PSN: Psn = Psn::new(0x200);
/// The key of the region that every host has.
pub const KEY: u32 = 0x1234;
/// Where that region begins.
pub const BASE: u64 = 0x1000;
/// The key that datagram QPs start with.
pub const QKEY: QKey = QKey(0x1111_1111);

/// How the QPs of a test are set up. Start from [`Options::rc`], [`Options::uc`] or
/// [`Options::ud`].
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "tests change what they test")]
pub struct Options {
    /// The transport service.
    pub qp_type: QpType,
    /// The path MTU.
    pub mtu: Mtu,
    /// How much a packet holds on a reliable carrier.
    pub segment: Option<u32>,
    /// Whether the carrier lets the initiator reach the peer's memory.
    pub direct: bool,
    /// Whether every send completes visibly.
    pub sq_sig_all: bool,
    /// Whether receives come from a shared queue.
    pub has_srq: bool,
    /// Retries after a timeout.
    pub retry_cnt: u8,
    /// Retries after "receiver not ready".
    pub rnr_retry: u8,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding, as requester and as responder.
    pub rd_atomic: u8,
    /// What the peer may do.
    pub access: Access,
    /// Whether it takes part in congestion control.
    pub ecn: bool,
    /// Whether its hosts keep packets that overtook a lost one.
    pub keeps_early: bool,
    /// The network, for a [`Net`](crate::Net).
    pub link: Link,
    /// Its seed.
    pub seed: u64,
    /// Bytes of memory in every host.
    pub memory: usize,
    /// The first sequence number of the QP under test.
    pub sq_psn: Psn,
    /// Whether the second end of a [`Net`](crate::Net) stays in RTR, where it receives alone.
    pub only_receives: bool,
}

impl Options {
    /// A reliable connection over a good wire of 256-byte packets, with every right, and every send
    /// signaled.
    pub fn rc() -> Self {
        Self {
            qp_type: QpType::Rc,
            mtu: Mtu::Mtu256,
            segment: None,
            direct: false,
            sq_sig_all: true,
            has_srq: false,
            retry_cnt: 7,
            rnr_retry: 7,
            timeout: 1,
            min_rnr_timer: 1,
            rd_atomic: 4,
            access: Access::REMOTE | Access::LOCAL_WRITE,
            ecn: false,
            keeps_early: true,
            link: Link::GOOD,
            seed: 1,
            memory: 1 << 16,
            sq_psn: SQ_PSN,
            only_receives: false,
        }
    }

    /// The same with an unreliable connection.
    pub fn uc() -> Self {
        Self { qp_type: QpType::Uc, ..Self::rc() }
    }

    /// The same with datagrams.
    pub fn ud() -> Self {
        Self { qp_type: QpType::Ud, ..Self::rc() }
    }

    /// The same on a reliable carrier whose packets hold `segment` bytes.
    #[must_use]
    pub fn over_memory(self, segment: u32) -> Self {
        Self { segment: Some(segment), ..self }
    }

    /// The path that these options describe.
    pub fn path(&self) -> PathCaps {
        match self.segment {
            Some(segment) => PathCaps::memory(self.mtu, segment),
            None => PathCaps::wire(self.mtu),
        }
    }

    /// What keeps the packets of a QP that come early, if anything does.
    pub(crate) fn early<P>(&self) -> Option<Early<P>> {
        self.keeps_early.then(Early::default)
    }

    /// A QP in RESET.
    pub fn qp(&self, qpn: Qpn) -> Qp {
        let cap = QpCap {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let (qp_type, sq_sig_all, has_srq) = (self.qp_type, self.sq_sig_all, self.has_srq);
        let mut qp = Qp::new(QpInit { qpn, qp_type, sq_sig_all, cap, has_srq });
        qp.set_congestion_control(self.ecn);
        qp
    }

    /// A host with one region, which grants every right.
    pub fn host(&self) -> Host {
        let host = Host::default();
        let access = Access::REMOTE | Access::LOCAL_WRITE;
        host.memory.borrow_mut().register(KEY, BASE, self.memory, access);
        host
    }

    /// Moves a QP to `state`, through the states before it.
    ///
    /// # Panics
    ///
    /// If it cannot get there.
    #[track_caller]
    pub fn bring_to<E: Env>(
        &self,
        qp: &mut Qp,
        host: &mut E,
        state: QpState,
        peer: Qpn,
        sq_psn: Psn,
        rq_psn: Psn,
    ) {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd] {
            let attr = QpAttr {
                state: to,
                port_num: 1,
                access_flags: self.access,
                qkey: QKEY,
                path_mtu: self.mtu,
                dest_qpn: peer,
                sq_psn,
                rq_psn,
                retry_cnt: self.retry_cnt,
                rnr_retry: self.rnr_retry,
                timeout: AckTimeout::from_code(self.timeout).expect("a five-bit code"),
                min_rnr_timer: RnrTimer::from_code(self.min_rnr_timer).expect("a five-bit code"),
                max_rd_atomic: self.rd_atomic,
                max_dest_rd_atomic: self.rd_atomic,
                ..QpAttr::default()
            };
            let needed = iba::qp::transition(self.qp_type, qp.state(), to)
                .expect("each state leads to the next");
            qp.modify(host, &attr, AttrMask::STATE | needed.required)
                .expect("the options fit the transition");
            if to == QpState::Rtr {
                qp.set_path(self.path());
            }
            if to == state {
                return;
            }
        }
        panic!("{state} is not on the path");
    }
}

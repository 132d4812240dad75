//! A test rig: engines of several "processes" in one process, joined by real rings, and driven by
//! hand.
//!
//! Each has a VF of its own on one NIC, so that they treat each other as other processes of the
//! host. The kernel reports that they have the same user and the same pid, and everything that
//! depends on it works as it does between two processes.

mod port;
pub(crate) mod user;

use std::sync::Arc;
use std::time::{Duration, Instant};

use iba::{
    Access, AckTimeout, AttrMask, Av, Gid, Mtu, Psn, QKey, QpAttr, QpCap, QpState, QpType, Qpn,
    RnrTimer, SendFlags, WrOpcode,
};
use smallvec::SmallVec;
use transport::wr::{Data, RecvWr, SendWr, SgList, Sge, UdDest};
use umem::{HostBuf, Umem};

use crate::config::NicConfig;
use crate::engine::Turn;
use crate::engine::{Engine, QpSpec, Wc};
use crate::hca::build::build_engine;
use crate::ids::{CqId, CtxId, PdId, QpId};
use crate::nic::{NicInfo, gid_entries, look, port_attr};
use crate::waits::Waits;
use crate::{EngineGuard, Hca, MrInfo};

/// The key of every datagram QP.
pub(crate) const QKEY: QKey = QKey(0x1234);

/// A generator of numbers that look random and repeat with the seed, without another crate.
#[derive(Debug)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A NIC for one test, over `lo`, with a UDP port of its own.
pub(crate) fn nic(test: &str) -> NicInfo {
    let config = NicConfig {
        name: format!("{test}-{}", std::process::id()),
        netdev: Some("lo".to_owned()),
        udp_port: port::lease(),
        ..NicConfig::default()
    };
    let (guid, port) = look(&config, 0).expect("there is a lo");
    NicInfo { config, guid, port: port_attr(&port), gids: gid_entries(&port), index: 0 }
}

/// A separate engine on a NIC, with the clock stopped.
pub(crate) fn engine(nic: &NicInfo) -> Engine {
    let waits = Arc::new(Waits::new().expect("descriptors"));
    let mut engine = build_engine(nic, &waits).expect("a VF is free");
    engine.clock.pass(Duration::ZERO);
    engine.common.out.shm.table().inspect(|table| table.pretend_mark(true));
    engine
}

/// Objects that most tests need, in an engine.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) ctx: CtxId,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) buffer: HostBuf,
    pub(crate) mr: MrInfo,
}

impl Objects {
    pub(crate) fn new(engine: &mut Engine) -> Self {
        let ctx = engine.open_ctx().expect("descriptors");
        let pd = engine.alloc_pd(ctx).expect("below max_pd");
        let cq = engine.create_cq(ctx, 64, None, 0, 0).expect("below max_cq");
        let buffer = HostBuf::memfd("peerdma-test", 1 << 16).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mr = engine.reg_mr(pd, Umem::host(&buffer), 0, access).expect("good memory");
        Self { ctx, pd, cq, buffer, mr }
    }

    pub(crate) fn qp(&self, engine: &mut Engine, qp_type: QpType) -> (QpId, Qpn) {
        self.qp_with(engine, qp_type, true)
    }

    /// A QP whose sends all complete, or only those that are signaled.
    pub(crate) fn qp_with(
        &self,
        engine: &mut Engine,
        qp_type: QpType,
        sq_sig_all: bool,
    ) -> (QpId, Qpn) {
        let cap = QpCap {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let spec = QpSpec {
            pd: self.pd,
            qp_type,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            cap,
            sq_sig_all,
            cookie: 0,
            xrcd: None,
        };
        engine.create_qp(&spec).expect("a good spec")
    }

    /// A receive into the start of the buffer.
    pub(crate) fn recv(&self, wr_id: u64) -> RecvWr {
        RecvWr { wr_id, sges: self.sges(4096) }
    }

    fn sges(&self, length: u32) -> SgList {
        SgList::from_iter([Sge { addr: 0, length, lkey: iba::LKey(self.mr.lkey) }])
    }
}

/// A process with one QP.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) engine: Engine,
    pub(crate) objects: Objects,
    pub(crate) qp: QpId,
    pub(crate) qpn: Qpn,
    qp_type: QpType,
}

impl Process {
    pub(crate) fn new(nic: &NicInfo, qp_type: QpType) -> Self {
        Self::new_with(nic, qp_type, true)
    }

    fn new_with(nic: &NicInfo, qp_type: QpType, sq_sig_all: bool) -> Self {
        let mut engine = engine(nic);
        let objects = Objects::new(&mut engine);
        let (qp, qpn) = objects.qp_with(&mut engine, qp_type, sq_sig_all);
        Self { engine, objects, qp, qpn, qp_type }
    }

    /// Two processes on one NIC, whose QPs send to each other.
    pub(crate) fn pair(nic: &NicInfo, qp_type: QpType) -> [Self; 2] {
        Self::pair_with(nic, qp_type, true)
    }

    /// The same, if only signaled sends complete.
    pub(crate) fn pair_with(nic: &NicInfo, qp_type: QpType, sq_sig_all: bool) -> [Self; 2] {
        let [mut one, mut other] = [(); 2].map(|()| Self::new_with(nic, qp_type, sq_sig_all));
        one.connect(nic, other.qpn);
        other.connect(nic, one.qpn);
        [one, other]
    }

    /// Brings the QP to RTS.
    pub(crate) fn connect(&mut self, nic: &NicInfo, peer: Qpn) {
        self.connect_on(1, nic, peer);
    }

    /// The same on another port.
    pub(crate) fn connect_on(&mut self, port: u8, nic: &NicInfo, peer: Qpn) {
        to_rts_on(port, &mut self.engine, self.qp, self.qp_type, nic, peer);
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64) {
        let wr = self.objects.recv(wr_id);
        self.engine.post_recv(self.qp, wr).expect("room for it");
    }

    pub(crate) fn post(&mut self, wr: SendWr) {
        post(&mut self.engine, self.qp, wr);
    }

    pub(crate) fn send(&mut self, wr_id: u64) {
        self.post(send(wr_id, None));
    }

    pub(crate) fn completed(&mut self) -> Vec<u64> {
        completed(&mut self.engine, self.objects.cq)
    }
}

/// A device with a background thread, its objects, and a QP of it that is connected to a process
/// without a thread.
pub(crate) fn hca_and_peer(nic: &NicInfo) -> (Hca, Objects, QpId, Process) {
    let hca = Hca::start(nic).expect("a VF is free");
    let objects = Objects::new(&mut hca.lock());
    let (qp, qpn) = objects.qp(&mut hca.lock(), QpType::Rc);
    let mut peer = Process::new(nic, QpType::Rc);
    to_rts(&mut hca.lock(), qp, QpType::Rc, nic, peer.qpn);
    peer.connect(nic, qpn);
    (hca, objects, qp, peer)
}

/// A send of a few bytes.
pub(crate) fn send(wr_id: u64, ud: Option<UdDest>) -> SendWr {
    let data = Data::Inline(SmallVec::from_slice(&wr_id.to_be_bytes()));
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    SendWr { ud, ..SendWr::new(wr_id, WrOpcode::Send, flags, data) }
}

/// The address vector of a NIC's port.
pub(crate) fn av(nic: &NicInfo) -> Av {
    let dgid: Gid = nic.gids.first().expect("lo has an address").gid;
    Av { dgid, is_global: true, port_num: 1, hop_limit: 64, ..Av::default() }
}

/// Brings a QP to RTS, connected to `peer` if its type is connected.
pub(crate) fn to_rts(engine: &mut Engine, id: QpId, qp_type: QpType, nic: &NicInfo, peer: Qpn) {
    to_rts_on(1, engine, id, qp_type, nic, peer);
}

/// The same on another port.
pub(crate) fn to_rts_on(
    port_num: u8,
    engine: &mut Engine,
    id: QpId,
    qp_type: QpType,
    nic: &NicInfo,
    peer: Qpn,
) {
    to_rts_with(engine, id, qp_type, nic, peer, |attr| attr.port_num = port_num);
}

/// The same with other attributes.
pub(crate) fn to_rts_with(
    engine: &mut Engine,
    id: QpId,
    qp_type: QpType,
    nic: &NicInfo,
    peer: Qpn,
    change: impl FnOnce(&mut QpAttr),
) {
    use AttrMask as A;
    let mut attr = QpAttr {
        state: QpState::Init,
        port_num: 1,
        qkey: QKEY,
        access_flags: Access::LOCAL_WRITE | Access::REMOTE,
        path_mtu: Mtu::Mtu1024,
        dest_qpn: peer,
        rq_psn: Psn::new(0),
        sq_psn: Psn::new(0),
        av: av(nic),
        max_dest_rd_atomic: 16,
        max_rd_atomic: 16,
        min_rnr_timer: RnrTimer::from_code(1).expect("below 32"),
        timeout: AckTimeout::from_code(14).expect("below 32"),
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    change(&mut attr);
    let is_rc = qp_type == QpType::Rc;
    let (mut init, mut rtr, mut rts) = (A::PKEY_INDEX | A::PORT, A::empty(), A::SQ_PSN);
    init |= if qp_type == QpType::Ud { A::QKEY } else { A::ACCESS_FLAGS };
    if qp_type.is_connected() {
        rtr |= A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN;
    }
    if is_rc {
        attr.access_flags |= Access::REMOTE_ATOMIC;
        rtr |= A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER;
        rts |= A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC;
    }
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
        attr.state = state;
        let _ = engine.modify_qp(id, &attr, mask | A::STATE).expect("a good transition");
    }
}

/// A datagram to a QP of this NIC.
pub(crate) fn datagram(wr_id: u64, nic: &NicInfo, to: Qpn) -> SendWr {
    send(wr_id, Some(UdDest { av: av(nic), remote_qpn: to, remote_qkey: QKEY }))
}

/// Posts and sends.
pub(crate) fn post(engine: &mut Engine, id: QpId, wr: SendWr) {
    engine.post_send(id, wr).expect("a good request");
}

/// Lets the engines run until nothing moves.
pub(crate) fn run(engines: &mut [&mut Engine]) {
    let mut idle = 0;
    while idle < 3 {
        let moved = engines.iter_mut().fold(false, |moved, e| moved | e.progress(Turn::Everything));
        idle = if moved { 0 } else { idle + 1 };
    }
}

/// Sends a message from the first process, and lets both run until it has been sent and received.
pub(crate) fn exchange([one, other]: &mut [Process; 2], wr_id: u64) {
    /// Longer than any message takes.
    const LONG: Duration = Duration::from_secs(30);
    other.post_recv(wr_id);
    // The program has polled since the message before.
    one.engine.held.note_poll();
    one.send(wr_id);
    let (mut sent, mut received) = (false, false);
    let began = Instant::now();
    while !(sent && received) {
        assert!(began.elapsed() < LONG, "message {wr_id}: {sent} {received}");
        for process in [&mut *one, &mut *other] {
            process.engine.progress(Turn::Everything);
        }
        sent |= one.completed().contains(&wr_id);
        received |= other.completed().contains(&wr_id);
    }
}

/// The `wr_id`s of a CQ's completions, which are all successes.
pub(crate) fn completed(engine: &mut Engine, cq: CqId) -> Vec<u64> {
    std::iter::from_fn(|| engine.pop_wc(cq))
        .map(|wc: Wc| {
            assert_eq!(wc.status, iba::WcStatus::Success);
            wc.wr_id
        })
        .collect()
}

/// Locks an engine that nobody may keep locked for long. A test that would hang fails instead.
#[track_caller]
pub(crate) fn lock_soon(hca: &Hca) -> EngineGuard<'_> {
    hca.try_lock_for(Duration::from_secs(30)).expect("the engine is not kept locked")
}

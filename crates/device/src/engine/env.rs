//! The engine, as one QP sees it during a call.

use iba::{Access, Av, CompCntrOps, QpEvent, Qpn, RKey, SendFlags, WcStatus};
use smallvec::SmallVec;
use transport::env::{
    AtomicOp, Completion, Counter, Direct, Env, LocalError, OneSided, RemoteError, Rx, Side,
    Skipped, Source, To, TransmitError,
};
use transport::tm::Taken;
use transport::wr::{Bind, Sge};
use transport::{Account, Early, Ended, FastPacket};
use wire::{Headers, Opcode};

use super::common::Common;
use crate::carrier::Route;
use crate::carrier::fast_path::Prefix;
use crate::carrier::loopback::{LoopPacket, LoopPayload};
use crate::carrier::shm::PushError;
use crate::carrier::shm::record::{MAX_PREFIX, Record, write_prefix};
use crate::carrier::udp::ecn;
use crate::counters::{Counters, STAYS};
use crate::ids::PdId;
use crate::memory::BroughtIn;
use crate::objects::EventSource;
use crate::payload::{
    Gather, InPayload, Part, check_readable, for_each_sge, in_one_piece, local_fault, remote_fault,
};
use crate::qp::QpContext;

/// The environment of one QP.
pub(super) struct QpEnv<'a, 'p> {
    pub(super) common: &'a mut Common,
    pub(super) context: &'a mut QpContext,
    pub(crate) payload: core::marker::PhantomData<&'p ()>,
}

impl<'a> QpEnv<'a, '_> {
    /// The counters of its port.
    #[inline]
    pub(super) fn counters(&mut self) -> &mut Counters {
        self.common.counters.of(self.context.port)
    }

    pub(super) fn new(common: &'a mut Common, context: &'a mut QpContext) -> Self {
        Self { common, context, payload: core::marker::PhantomData }
    }

    /// The protection domain of the bytes of a packet.
    fn pd_for(&self, source: &Source<'_>) -> PdId {
        match *source {
            Source::Remote { rkey, .. } => self.common.answering_pd(self.context, rkey),
            _ => self.context.pd,
        }
    }

    /// The carrier of a packet to `dest`.
    pub(super) fn route_of(&self, to: To<'_>, dest: Qpn) -> Route {
        match to {
            To::Peer => self.context.route,
            To::Av(av) => self.common.route(av, dest),
        }
    }

    /// Whether the bytes of a packet can be taken now.
    pub(super) fn is_readable(&self, source: &Source<'_>) -> bool {
        self.loop_payload(source).is_ok()
    }

    /// The payload of a loopback packet: a copy if the work request completes before the packet has
    /// arrived.
    fn loop_payload(&self, source: &Source<'_>) -> Result<LoopPayload, TransmitError> {
        let by_reference = self.context.qp_type.is_reliable();
        match *source {
            Source::Empty => Ok(LoopPayload::Bytes(SmallVec::new())),
            Source::Bytes(bytes) => Ok(LoopPayload::Bytes(SmallVec::from_slice(bytes))),
            Source::Sges { sges, offset, length } => {
                let mut parts = SmallVec::new();
                let mut bytes: SmallVec<[u8; 64]> = SmallVec::new();
                for_each_sge(
                    &self.common.memory.mrs,
                    self.context.pd,
                    sges,
                    offset,
                    length,
                    Access::empty(),
                    |umem, at, piece| {
                        if by_reference {
                            check_readable(umem, at, piece).map_err(|fault| local_fault(&fault))?;
                            parts.push(Part { umem: umem.clone(), offset: at, length: piece });
                            return Ok(());
                        }
                        let start = bytes.len();
                        bytes.resize(start + piece as usize, 0);
                        umem.read(at, &mut bytes[start..]).map_err(|fault| local_fault(&fault))
                    },
                )
                .map_err(TransmitError::Memory)?;
                Ok(if by_reference { LoopPayload::Parts(parts) } else { LoopPayload::Bytes(bytes) })
            }
            Source::Remote { rkey, addr, length } => {
                let (umem, offset) = self
                    .common
                    .memory
                    .mrs
                    .remote(
                        self.common.answering_pd(self.context, rkey),
                        rkey,
                        addr,
                        u64::from(length),
                        Access::REMOTE_READ,
                    )
                    .map_err(TransmitError::Remote)?;
                check_readable(umem, offset, length)
                    .map_err(|fault| TransmitError::Remote(remote_fault(&fault)))?;
                let part = Part { umem: umem.clone(), offset, length };
                Ok(LoopPayload::Parts(SmallVec::from_iter([part])))
            }
        }
    }

    /// The same; absent memory is faulted in first, if that is possible now.
    pub(super) fn loop_payload_present(
        &mut self,
        source: &Source<'_>,
    ) -> Result<LoopPayload, TransmitError> {
        self.with_payload(source, |env| env.loop_payload(source))
    }

    /// Runs `act` on a payload; absent memory of it is faulted in first, if that is possible now.
    fn with_payload<T>(
        &mut self,
        source: &Source<'_>,
        attempt: impl Fn(&mut Self) -> Result<T, TransmitError>,
    ) -> Result<T, TransmitError> {
        let done = attempt(self);
        let refused = match &done {
            Err(TransmitError::Memory(LocalError::NotPresent)) => {
                TransmitError::Memory(LocalError::Fault)
            }
            Err(TransmitError::Remote(RemoteError::NotPresent)) => {
                TransmitError::Remote(RemoteError::Fault)
            }
            _ => return done,
        };
        match self.bring_in_source(source) {
            BroughtIn::Here => attempt(self),
            BroughtIn::NotYet => done,
            BroughtIn::Refused => Err(refused),
        }
    }

    fn send_loopback(
        &mut self,
        headers: &Headers,
        source: &Source<'_>,
        skipped: Skipped,
        grh: Option<[u8; 40]>,
    ) -> Result<(), TransmitError> {
        let payload = self.loop_payload(source)?;
        self.common.out.loopback.push(LoopPacket {
            headers: *headers,
            payload,
            length: source.len(),
            skipped,
            source: self.context.qpn,
            grh,
        });
        Ok(())
    }

    fn send_shm(
        &mut self,
        vf: u16,
        headers: &Headers,
        source: &Source<'_>,
        skipped: Skipped,
        grh: Option<&[u8; 40]>,
    ) -> Result<(), TransmitError> {
        let record =
            Record { headers, length: source.len(), skipped, grh, source: self.context.qpn };
        let mut prefix = [0; MAX_PREFIX];
        let size = write_prefix(&mut prefix, &record);
        self.push_shm(vf, &prefix[..size], source, record.length)
    }

    /// Pushes a record: its prefix, and its payload.
    #[inline]
    fn push_shm(
        &mut self,
        vf: u16,
        prefix: &[u8],
        source: &Source<'_>,
        length: u32,
    ) -> Result<(), TransmitError> {
        let pd = self.pd_for(source);
        let Common { out, memory, .. } = &mut *self.common;
        let mrs = &memory.mrs;
        let pushed = out.shm.push_after(vf, prefix, length as usize, |room| match *source {
            Source::Empty => Ok(()),
            Source::Bytes(bytes) => {
                // A page of the ring itself is absent: this is not a fault of the program's memory.
                room.copy_from(bytes).map_err(|_| TransmitError::Blocked)
            }
            Source::Sges { sges, offset, length } => {
                let mut at = 0;
                for_each_sge(mrs, pd, sges, offset, length, Access::empty(), |umem, from, piece| {
                    let to = room.slice(at, piece as usize).ok_or(LocalError::Fault)?;
                    at += piece as usize;
                    umem.read_to(from, to).map_err(|fault| local_fault(&fault))
                })
                .map_err(TransmitError::Memory)
            }
            Source::Remote { rkey, addr, length } => {
                let (umem, from) = mrs
                    .remote(pd, rkey, addr, u64::from(length), Access::REMOTE_READ)
                    .map_err(TransmitError::Remote)?;
                umem.read_to(from, room)
                    .map_err(|fault| TransmitError::Remote(remote_fault(&fault)))
            }
        });
        match pushed {
            Ok(position) => {
                self.context.ring_position = position;
                let counters = self.counters();
                counters.tx_shm_packets += 1;
                counters.tx_bytes += u64::from(length) + STAYS;
                Ok(())
            }
            // A slow receiver slows its senders, as priority flow control does; a stopped one does
            // not stop senders that may drop packets.
            Err(PushError::Full) => {
                let may_drop = !self.context.qp_type.is_reliable();
                if !may_drop || !self.common.out.shm.is_stalled(vf, self.common.now) {
                    // Until the peer has taken what fills the ring, it has had no chance to answer.
                    self.context.ring_position = self.common.out.shm.position(vf);
                    return Err(TransmitError::Blocked);
                }
                self.count(Counter::DroppedPacket);
                Ok(())
            }
            // No such process: the packet is lost, and the requester's timer will report it.
            Err(PushError::Gone) => {
                self.count(Counter::DroppedPacket);
                Ok(())
            }
            Err(PushError::Fill(error)) => Err(error),
        }
    }

    /// The type of service of a packet: the program's, and ECT for a connection with congestion
    /// control. A notification itself must not be marked.
    fn traffic_class(&self, av: &Av, headers: &Headers) -> u8 {
        let asked = av.traffic_class;
        if headers.bth.opcode == Opcode::Cnp {
            asked & !ecn::MASK
        } else {
            self.traffic_class_of_any(asked)
        }
    }

    /// The same for all packets except notifications.
    #[inline]
    pub(super) fn traffic_class_of_any(&self, asked: u8) -> u8 {
        let tells = self.common.nic.config.ecn && self.context.qp_type.is_connected();
        if tells && asked & ecn::MASK == 0 { asked | ecn::ECT_0 } else { asked }
    }

    /// Sends packets in a row, among which the payload is split evenly, and returns how many.
    fn send_udp(
        &mut self,
        av: &Av,
        headers: &Headers,
        source: &Source<'_>,
        packets: u32,
    ) -> Result<u32, TransmitError> {
        let pd = self.pd_for(source);
        // The address handle of a datagram may name another port.
        let port_num = self.context.port;
        let av = &Av { traffic_class: self.traffic_class(av, headers), port_num, ..*av };
        let Common { out, memory, nic, .. } = &mut *self.common;
        let (mrs, port) = (&memory.mrs, &nic.port);
        let length = source.len() / packets;
        let Some(sgid) = port.gids.get(usize::from(av.sgid_index)) else {
            self.count(Counter::DroppedPacket);
            return Ok(1);
        };
        // For a run, the region is looked up once. If it cannot be read, `fill` finds that again,
        // and reports it.
        let whole = if packets > 1 { in_one_piece(mrs, pd, source) } else { None };
        let gather = Gather { mrs, pd, source: *source, whole };
        out.udp.push_run(*sgid, av, headers, length, packets, gather)
    }
}

impl QpEnv<'_, '_> {
    fn send(
        &mut self,
        to: To<'_>,
        headers: &Headers,
        source: &Source<'_>,
        skipped: Skipped,
    ) -> Result<(), TransmitError> {
        match to {
            To::Peer => match self.context.route {
                Route::None => Ok(()),
                Route::Loopback => self.send_loopback(headers, source, skipped, None),
                Route::Shm(vf) => self.send_shm(vf, headers, source, skipped, None),
                Route::Udp => {
                    let av = self.context.av;
                    self.send_udp(&av, headers, source, 1).map(|_| ())
                }
            },
            To::Av(av) => {
                let dest = headers.bth.dest_qp;
                match self.common.route(av, dest) {
                    Route::None => {
                        self.count(Counter::DroppedPacket);
                        Ok(())
                    }
                    Route::Udp => {
                        self.send_udp(av, headers, source, 1)?;
                        let to_group = u64::from(av.dgid.is_multicast());
                        self.counters().tx_multicast_packets += to_group;
                        Ok(())
                    }
                    local => {
                        let length = source.len();
                        let grh = self.common.grh(av, headers, length);
                        match local {
                            Route::Shm(vf) => {
                                self.send_shm(vf, headers, source, skipped, Some(&grh))
                            }
                            _ => self.send_loopback(headers, source, skipped, Some(grh)),
                        }
                    }
                }
            }
        }
    }

    /// Sends, with memory that may be absent.
    pub(super) fn transmit_now(
        &mut self,
        to: To<'_>,
        headers: &Headers,
        source: &Source<'_>,
        skipped: Skipped,
    ) -> Result<(), TransmitError> {
        self.with_payload(source, |env| env.send(to, headers, source, skipped))
    }

    /// Copies a payload, as far as it can be read.
    pub(super) fn gather(&self, source: &Source<'_>, room: &mut [u8]) {
        let (pd, mrs) = (self.pd_for(source), &self.common.memory.mrs);
        // A payload that was sent a moment ago can be read, unless its memory was removed since;
        // then the zeros stay.
        match *source {
            Source::Empty => {}
            Source::Bytes(bytes) => room.copy_from_slice(bytes),
            Source::Sges { sges, offset, length } => {
                let mut at = 0;
                let _ = for_each_sge(
                    mrs,
                    pd,
                    sges,
                    offset,
                    length,
                    Access::empty(),
                    |umem, from, piece| {
                        let to = &mut room[at..at + piece as usize];
                        at += piece as usize;
                        umem.bounced(u64::from(piece));
                        umem.read(from, to).map_err(|fault| local_fault(&fault))
                    },
                );
            }
            Source::Remote { rkey, addr, length } => {
                let found = mrs.remote(pd, rkey, addr, u64::from(length), Access::REMOTE_READ);
                if let Ok((umem, from)) = found {
                    umem.bounced(u64::from(length));
                    let _ = umem.read(from, room);
                }
            }
        }
    }

    /// Makes sure that the memory of a source is present.
    #[cold]
    fn bring_in_source(&mut self, source: &Source<'_>) -> BroughtIn {
        match *source {
            Source::Empty | Source::Bytes(_) => BroughtIn::Here,
            Source::Sges { sges, .. } => self.common.bring_in_list(sges),
            Source::Remote { rkey, addr, length } => {
                self.common.bring_in(rkey.0, addr, u64::from(length))
            }
        }
    }

    /// Scatters; absent memory is faulted in first, if that is possible now.
    fn scatter_present(
        &mut self,
        side: Side,
        sges: &[Sge],
        offset: u64,
        payload: &InPayload<'_>,
        skip: u32,
    ) -> Result<(), LocalError> {
        let scattered = self.scatter_any(side, sges, offset, payload, skip);
        if scattered != Err(LocalError::NotPresent) {
            return scattered;
        }
        match self.common.bring_in_list(sges) {
            BroughtIn::Here => self.scatter_any(side, sges, offset, payload, skip),
            BroughtIn::NotYet => scattered,
            BroughtIn::Refused => Err(LocalError::Fault),
        }
    }

    /// Runs an access of a peer; absent memory is faulted in first, if that is possible now.
    fn with_present<T>(
        &mut self,
        (rkey, addr, length): (RKey, u64, u64),
        access: impl Fn(&Common) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        match access(self.common) {
            Err(RemoteError::NotPresent) => {}
            done => return done,
        }
        match self.common.bring_in(rkey.0, addr, length) {
            BroughtIn::Here => access(self.common),
            BroughtIn::NotYet => Err(RemoteError::NotPresent),
            BroughtIn::Refused => Err(RemoteError::Fault),
        }
    }

    fn scatter_any(
        &self,
        side: Side,
        sges: &[Sge],
        offset: u64,
        payload: &InPayload<'_>,
        skip: u32,
    ) -> Result<(), LocalError> {
        let (mrs, pd) = (&self.common.memory.mrs, self.context.pd_of(side));
        let mut from = u64::from(skip);
        for_each_sge(
            mrs,
            pd,
            sges,
            offset,
            payload.len().saturating_sub(skip),
            Access::LOCAL_WRITE,
            |umem, at, piece| {
                payload.copy_to(from, piece, umem, at)?;
                from += u64::from(piece);
                Ok(())
            },
        )
    }
}

impl<'p> Env for QpEnv<'_, 'p> {
    type Payload = InPayload<'p>;

    fn transmit(
        &mut self,
        to: To<'_>,
        headers: &Headers,
        source: Source<'_>,
        skipped: Skipped,
    ) -> Result<(), TransmitError> {
        if !self.common.is_plain() {
            return self.transmit_observed(to, headers, source, skipped);
        }
        self.transmit_now(to, headers, &source, skipped)
    }

    fn transmit_run(
        &mut self,
        headers: &Headers,
        source: Source<'_>,
        packets: u32,
    ) -> Result<u32, TransmitError> {
        // Observers that record packets or tamper with them see each packet.
        let is_plain = self.common.is_plain();
        if !self.context.route.is_udp() || !is_plain {
            let first = source.part(0, source.len() / packets);
            return self.transmit(To::Peer, headers, first, Skipped::default()).map(|()| 1);
        }
        let av = self.context.av;
        self.with_payload(&source, |env| env.send_udp(&av, headers, &source, packets))
    }

    #[inline]
    fn transmit_fast(
        &mut self,
        packet: FastPacket,
        dest: Qpn,
        source: Source<'_>,
        length: u32,
    ) -> Result<(), TransmitError> {
        // Observers see headers. The fast path is taken only where there are none.
        debug_assert!(self.common.is_plain(), "a packet that no observer saw");
        match self.context.route {
            Route::Udp => self.send_datagram(packet, dest, source, length),
            Route::Shm(vf) => {
                let prefix = Prefix::new(packet, self.context.qpn, dest, length);
                self.push_shm(vf, prefix.bytes(), &source, length)
            }
            _ => self.transmit(To::Peer, &packet.headers(dest, length), source, Skipped::default()),
        }
    }

    fn takes_fast(&self) -> bool {
        self.common.takes_fast(self.context.route)
    }

    fn transmit_frame(&mut self, frame: Source<'_>, flags: SendFlags) -> Result<(), TransmitError> {
        self.send_frame(&frame, flags)
    }

    fn withholds_receives(&self) -> bool {
        self.common.withholds_receives()
    }

    fn ended_silently(&mut self) {
        if !self.common.is_plain() {
            self.common.trace_silent_end(self.context.qpn);
        }
    }

    fn of_request(&mut self, wr_id: u64, behind: usize) {
        (self.context.wr_id, self.context.wr_behind) = (wr_id, behind);
    }

    fn peer_is_behind(&self) -> bool {
        self.context.peer_is_behind
    }

    fn one_sided(&mut self, op: &OneSided<'_>) -> Direct {
        let outcome = if let Some(vf) = self.direct_peer() {
            let parties = self.parties();
            let Common { out, memory, .. } = &mut *self.common;
            out.shm.one_sided(vf, &memory.mrs, parties, op)
        } else if self.is_within() {
            self.one_sided_within(op)
        } else {
            Direct::Declined
        };
        if outcome == Direct::Done {
            self.count_direct(1, u64::from(op.length));
        }
        outcome
    }

    #[inline]
    fn one_sided_at_hand(&mut self, op: &OneSided<'_>) -> bool {
        let is_done = if let Some(vf) = self.direct_peer() {
            let parties = self.parties();
            let Common { out, memory, .. } = &mut *self.common;
            out.shm.one_sided_at_hand(vf, &memory.mrs, parties, op)
        } else {
            self.is_within() && self.one_sided_within(op) == Direct::Done
        };
        if is_done {
            self.count_direct(1, u64::from(op.length));
        }
        is_done
    }

    fn gathers(&self, op: &OneSided<'_>) -> bool {
        let peer = self.context.route.peer();
        peer.is_some_and(|vf| self.common.out.shm.gathers(vf, op.rkey))
    }

    fn one_sided_run(&mut self, ops: &[OneSided<'_>]) -> usize {
        let Some(vf) = self.direct_peer() else { return 0 };
        let parties = self.parties();
        let Common { out, memory, .. } = &mut *self.common;
        let done = out.shm.one_sided_run(vf, &memory.mrs, parties, ops);
        self.count_direct(done, ops[..done].iter().map(|op| u64::from(op.length)).sum());
        done
    }

    fn is_direct(&self, op: &OneSided<'_>) -> bool {
        match self.context.route.peer() {
            Some(vf) => self.common.out.shm.is_direct(vf, op.rkey),
            None => self.is_within() && self.within(op).is_some(),
        }
    }

    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), LocalError> {
        self.common.memory.mrs.check_local(self.context.pd_of(Side::Send), sges, access)
    }

    fn scatter(
        &mut self,
        side: Side,
        sges: &[Sge],
        offset: u64,
        payload: &InPayload<'p>,
    ) -> Result<(), LocalError> {
        self.scatter_present(side, sges, offset, payload, 0)
    }

    fn may_ask_again(&mut self, sges: &[Sge]) -> Result<(), LocalError> {
        match self.common.outlook(sges) {
            BroughtIn::Here => Ok(()),
            BroughtIn::NotYet => Err(LocalError::NotPresent),
            BroughtIn::Refused => Err(LocalError::Fault),
        }
    }

    fn scatter_after(
        &mut self,
        sges: &[Sge],
        skip: u32,
        payload: &InPayload<'p>,
    ) -> Result<(), LocalError> {
        self.scatter_present(Side::Recv, sges, 0, payload, skip)
    }

    fn scatter_bytes(
        &mut self,
        side: Side,
        sges: &[Sge],
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), LocalError> {
        self.scatter_present(side, sges, offset, &InPayload::Bytes(bytes), 0)
    }

    fn check_remote(
        &self,
        rkey: RKey,
        addr: u64,
        length: u32,
        access: Access,
    ) -> Result<(), RemoteError> {
        if self.common.refuses_request() {
            return Err(RemoteError::Access);
        }
        self.common.memory.mrs.windows.check_qp(rkey, self.context.qpn)?;
        self.common.memory.mrs.check_remote(self.context.pd, rkey, addr, u64::from(length), access)
    }

    fn write_remote(
        &mut self,
        rkey: RKey,
        addr: u64,
        payload: &InPayload<'p>,
    ) -> Result<(), RemoteError> {
        if self.common.refuses_request() {
            return Err(RemoteError::Access);
        }
        let length = payload.len();
        let (pd, need) = (self.context.pd, Access::REMOTE_WRITE);
        self.with_present((rkey, addr, u64::from(length)), |common| {
            let (umem, offset) =
                common.memory.mrs.remote(pd, rkey, addr, u64::from(length), need)?;
            payload.copy_to(0, length, umem, offset).map_err(|error| match error {
                LocalError::NotPresent => RemoteError::NotPresent,
                LocalError::Protection | LocalError::Fault => RemoteError::Fault,
            })
        })
    }

    fn atomic(&mut self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, RemoteError> {
        if !addr.is_multiple_of(8) {
            return Err(RemoteError::Misaligned);
        }
        let (pd, need) = (self.context.pd, Access::REMOTE_ATOMIC);
        self.with_present((rkey, addr, 8), |common| {
            let (umem, offset) = common.memory.mrs.remote(pd, rkey, addr, 8, need)?;
            match op {
                AtomicOp::CompareSwap { compare, swap } => umem.compare_swap(offset, compare, swap),
                AtomicOp::FetchAdd { add } => umem.fetch_add(offset, add),
            }
            .map_err(|fault| remote_fault(&fault))
        })
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), RemoteError> {
        // Only memory windows and fast-registered regions can be invalidated (IBA 10.6.5), and only
        // the kernel has the latter.
        self.common.memory.mrs.windows.invalidate(self.context.pd, self.context.qpn, rkey)
    }

    fn flush(
        &mut self,
        rkey: RKey,
        range: Option<(u64, u32)>,
        access: Access,
    ) -> Result<(), RemoteError> {
        self.common.memory.mrs.windows.check_qp(rkey, self.context.qpn)?;
        let pd = self.context.pd;
        match range {
            Some((addr, length)) => {
                self.common.memory.mrs.check_remote(pd, rkey, addr, u64::from(length), access)?;
            }
            None => self.common.memory.mrs.remote_whole(pd, rkey, access)?,
        }
        // ORDERING: a thread that sees a later store sees all earlier ones; memory that all threads
        // share needs no more.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    fn bind(&mut self, bind: &Bind) -> Result<(), LocalError> {
        let (pd, qpn) = (self.context.pd, self.context.qpn);
        self.common.memory.mrs.bind(pd, qpn, bind).map_err(|why| {
            tracing::info!(target: "peerdma::refusal", "bind_mw: window {}: {why}", bind.window);
            LocalError::Protection
        })
    }

    fn take_srq(&mut self, rx: &Rx<'_, InPayload<'p>>) -> Option<Taken> {
        self.context.srq.and_then(|srq| self.common.take_srq_for(srq, rx))
    }

    #[inline]
    fn complete(&mut self, completion: &Completion) {
        let mut flags = completion.flags;
        let id = match completion.side {
            Side::Send => self.context.send_cq,
            Side::Recv => {
                self.context.has_received = true;
                if completion.status == WcStatus::Success {
                    flags |= self.context.recv_flags;
                }
                self.context.recv_cq
            }
        };
        if !self.common.is_plain() {
            self.common.trace_completion(self.context, &Completion { flags, ..*completion });
        }
        self.common.complete_on(id, self.context.qpn, completion, flags);
    }

    fn ended(&mut self, op: CompCntrOps, ended: Ended) {
        self.common.count_ended(&self.context.cntrs, op, ended);
    }

    fn account(&mut self, account: &Account) {
        self.explain(account);
    }

    fn event(&mut self, event: QpEvent) {
        let source = EventSource::Qp(self.context.id);
        let first = (self.context.ctx, self.context.cookie);
        let others = self.context.others.iter().map(|other| (other.ctx, other.cookie));
        for (ctx, cookie) in std::iter::once(first).chain(others) {
            self.common.raise(ctx, event.into(), source, cookie);
        }
    }

    fn entered_error(&mut self) {
        self.context.early = Early::default();
        if let Some(table) = self.common.out.shm.table() {
            table.withdraw_qp(self.context.id);
        }
    }

    fn count(&mut self, counter: Counter) {
        self.counters().add(counter);
        tell_of_drop(self.context.qpn, counter);
    }
}

/// Logs why a packet for a QP was dropped, refused or treated as a duplicate: an attacker that
/// guesses numbers and keys shows there.
fn tell_of_drop(qpn: Qpn, counter: Counter) {
    let why = match counter {
        Counter::OutOfSequence => "its sequence number is not due yet",
        Counter::DuplicateRequest => "its sequence number was used before",
        Counter::RespRemoteAccessErrors => "refused: its key gives no access to what it names",
        Counter::RespRemoteInvalidRequest => "refused: not a request that this QP accepts",
        Counter::QkeyViolation => "not the Q_Key of this QP",
        Counter::DroppedPacket => "not a packet that this QP waits for, or no room",
        _ => return,
    };
    tracing::debug!(target: "peerdma::drop", %qpn, "{why}");
}

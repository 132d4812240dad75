//! What surrounds a QP: memory, completion queues, a shared receive queue, and the queue of packets
//! to send.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use iba::{Access, QpEvent, Qpn, RKey};
use transport::env::{
    AtomicOp, Counter, Direct, Local, LocalError, OneSided, OneSidedKind, RemoteError, Source, To,
    TransmitError,
};
use transport::tm::{Met, Taken};
use transport::{Account, Completion, Env, FastPacket, RecvWr, Rx, Sge, Side, Skipped};
use wire::Headers;

use crate::memory::Memory;

/// A packet that a QP sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// Its headers.
    pub headers: Headers,
    /// Its payload.
    pub payload: Vec<u8>,
    /// The work requests before it that needed no packets.
    pub skipped: Skipped,
}

impl Sent {
    /// Whether this packet comes this many after another one, and is like it except for its
    /// sequence number.
    pub(crate) fn continues(&self, first: &Self, packets: u32) -> bool {
        let mut headers = first.headers;
        headers.bth.psn = headers.bth.psn.add(packets);
        self.headers == headers
            && self.skipped == Skipped::default()
            && self.payload.len() * packets as usize == first.payload.len()
    }
}

/// The environment of one QP. A test may read and change every field.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Host {
    /// Its memory, shared with a peer on the direct path.
    pub memory: Rc<RefCell<Memory>>,
    /// The memory that [`Env::one_sided`] reaches, if the direct path is there.
    pub direct: Option<Rc<RefCell<Memory>>>,
    /// How many operations took the direct path.
    pub direct_done: u64,
    /// How often several of them did together.
    pub direct_runs: u64,
    /// Packets waiting to be sent.
    pub out: VecDeque<Sent>,
    /// How many of those there may be before the carrier reports that it is full.
    pub room: Option<usize>,
    /// Completions of both queues, in order.
    pub completions: Vec<Completion>,
    /// Asynchronous events, in order.
    pub events: Vec<QpEvent>,
    /// The shared receive queue.
    pub srq: VecDeque<RecvWr>,
    /// While set, no answer finds its place in memory, and this tells what to expect of it.
    pub no_place: Option<LocalError>,
    /// How messages are matched with the receives of that queue.
    pub met: Met,
    /// What led to completions that failed, in order.
    pub accounts: Vec<Account>,
    /// What was counted.
    pub counters: HashMap<Counter, u64>,
    /// The answer to [`Env::takes_fast`].
    pub takes_fast: bool,
    /// SENDs that took the fast path, from the queue or when they were posted.
    pub sent_fast: u64,
    /// The answer to [`Env::peer_is_behind`].
    pub peer_is_behind: bool,
    /// Keys that were invalidated, in order.
    pub invalidated: Vec<RKey>,
}

impl Host {
    /// How often something was counted.
    pub fn counted(&self, counter: Counter) -> u64 {
        self.counters.get(&counter).copied().unwrap_or(0)
    }

    /// The completions of one queue.
    pub fn of(&self, side: Side) -> impl Iterator<Item = &Completion> {
        self.completions.iter().filter(move |completion| completion.side == side)
    }
}

impl Env for Host {
    type Payload = Vec<u8>;

    fn transmit(
        &mut self,
        _to: To<'_>,
        headers: &Headers,
        source: Source<'_>,
        skipped: Skipped,
    ) -> Result<(), TransmitError> {
        if self.room.is_some_and(|room| self.out.len() >= room) {
            return Err(TransmitError::Blocked);
        }
        let mut payload = Vec::new();
        let memory = self.memory.borrow();
        match source {
            Source::Empty => {}
            Source::Sges { sges, offset, length } => {
                memory.gather(sges, offset, length, &mut payload).map_err(TransmitError::Memory)?
            }
            Source::Bytes(bytes) => payload.extend_from_slice(bytes),
            Source::Remote { rkey, addr, length } => {
                payload.resize(length as usize, 0);
                memory.read(rkey.0, addr, &mut payload).map_err(TransmitError::Remote)?;
            }
        }
        assert_eq!(headers.bth.pad, wire::bth::pad_for(payload.len()));
        self.out.push_back(Sent { headers: *headers, payload, skipped });
        Ok(())
    }

    fn transmit_run(
        &mut self,
        headers: &Headers,
        source: Source<'_>,
        packets: u32,
    ) -> Result<u32, TransmitError> {
        let (mut headers, each) = (*headers, source.len() / packets);
        for index in 0..packets {
            let part = source.part(index * each, each);
            match self.transmit(To::Peer, &headers, part, Skipped::default()) {
                Err(error) if index == 0 => return Err(error),
                Err(_) => return Ok(index),
                Ok(()) => headers.bth.psn = headers.bth.psn.add(1),
            }
        }
        Ok(packets)
    }

    fn takes_fast(&self) -> bool {
        self.takes_fast
    }

    fn transmit_fast(
        &mut self,
        packet: FastPacket,
        dest: Qpn,
        source: Source<'_>,
        length: u32,
    ) -> Result<(), TransmitError> {
        self.transmit(To::Peer, &packet.headers(dest, length), source, Skipped::default())?;
        self.sent_fast += u64::from(matches!(packet, FastPacket::Send { .. }));
        Ok(())
    }

    fn is_direct(&self, _: &OneSided<'_>) -> bool {
        self.direct.is_some()
    }

    fn gathers(&self, _: &OneSided<'_>) -> bool {
        self.direct.is_some()
    }

    fn one_sided_run(&mut self, ops: &[OneSided<'_>]) -> usize {
        let done = ops.iter().take_while(|op| self.one_sided(op) == Direct::Done).count();
        self.direct_runs += u64::from(done > 0);
        done
    }

    fn one_sided(&mut self, op: &OneSided<'_>) -> Direct {
        let Some(peer) = self.direct.clone() else { return Direct::Declined };
        let mut peer = peer.borrow_mut();
        let mut memory = self.memory.borrow_mut();
        // The direct path makes sure of both ends before it begins, and otherwise leaves it to
        // packets.
        if peer.look().and(memory.look()).is_err() {
            return Direct::Declined;
        }
        let absent = (core::mem::take(&mut peer.absent), core::mem::take(&mut memory.absent));
        let moved = match op.kind {
            OneSidedKind::Write => {
                let mut bytes = Vec::new();
                match op.local {
                    Local::Bytes(inline) => bytes.extend_from_slice(inline),
                    Local::Sges(sges) => {
                        if let Err(error) = memory.gather(sges, 0, op.length, &mut bytes) {
                            (peer.absent, memory.absent) = absent;
                            return Direct::Local(error);
                        }
                    }
                }
                if bytes.is_empty() {
                    Ok(())
                } else {
                    peer.write(op.rkey.0, op.remote_addr, &bytes, Access::REMOTE_WRITE)
                }
            }
            OneSidedKind::Read => {
                let mut bytes = vec![0; op.length as usize];
                let read = if bytes.is_empty() {
                    Ok(())
                } else {
                    peer.check(op.rkey.0, op.remote_addr, op.length.into(), Access::REMOTE_READ)
                        .and_then(|()| peer.read(op.rkey.0, op.remote_addr, &mut bytes))
                };
                if let (Ok(()), Local::Sges(sges)) = (read, op.local)
                    && let Err(error) = memory.scatter(sges, 0, &bytes)
                {
                    (peer.absent, memory.absent) = absent;
                    return Direct::Local(error);
                }
                read
            }
            OneSidedKind::Atomic(atomic) => {
                let old = peer.atomic(op.rkey.0, op.remote_addr, atomic);
                if let (Ok(old), Local::Sges(sges)) = (old, op.local)
                    && let Err(error) = memory.scatter(sges, 0, &old.to_ne_bytes())
                {
                    (peer.absent, memory.absent) = absent;
                    return Direct::Local(error);
                }
                old.map(|_| ())
            }
        };
        (peer.absent, memory.absent) = absent;
        match moved {
            Ok(()) => {
                self.direct_done += 1;
                Direct::Done
            }
            Err(error) => Direct::Remote(error),
        }
    }

    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), LocalError> {
        self.memory.borrow().check_list(sges, access)
    }

    fn scatter(
        &mut self,
        side: Side,
        sges: &[Sge],
        offset: u64,
        payload: &Vec<u8>,
    ) -> Result<(), LocalError> {
        self.scatter_bytes(side, sges, offset, payload)
    }

    fn may_ask_again(&mut self, _: &[Sge]) -> Result<(), LocalError> {
        self.no_place.map_or(Ok(()), Err)
    }

    fn scatter_bytes(
        &mut self,
        _: Side,
        sges: &[Sge],
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), LocalError> {
        if self.no_place.is_some() {
            return Err(LocalError::NotPresent);
        }
        self.memory.borrow_mut().scatter(sges, offset, bytes)
    }

    fn check_remote(
        &self,
        rkey: RKey,
        addr: u64,
        length: u32,
        access: Access,
    ) -> Result<(), RemoteError> {
        self.memory.borrow().check(rkey.0, addr, length.into(), access)
    }

    fn write_remote(
        &mut self,
        rkey: RKey,
        addr: u64,
        payload: &Vec<u8>,
    ) -> Result<(), RemoteError> {
        self.memory.borrow_mut().write(rkey.0, addr, payload, Access::REMOTE_WRITE)
    }

    fn atomic(&mut self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, RemoteError> {
        self.memory.borrow_mut().atomic(rkey.0, addr, op)
    }

    fn flush(
        &mut self,
        rkey: RKey,
        range: Option<(u64, u32)>,
        access: Access,
    ) -> Result<(), RemoteError> {
        let mut memory = self.memory.borrow_mut();
        let start = memory.region_mut(rkey.0).ok_or(RemoteError::Access)?.addr;
        let (addr, length) = range.unwrap_or((start, 0));
        memory.check(rkey.0, addr, length.into(), access)
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), RemoteError> {
        self.memory.borrow_mut().invalidate(rkey.0)?;
        self.invalidated.push(rkey);
        Ok(())
    }

    fn take_srq(&mut self, _: &Rx<'_, Vec<u8>>) -> Option<Taken> {
        self.srq.pop_front().map(|wr| Taken { wr, met: self.met })
    }

    fn account(&mut self, account: &Account) {
        self.accounts.push(*account);
    }

    fn complete(&mut self, completion: &Completion) {
        self.completions.push(*completion);
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }

    fn peer_is_behind(&self) -> bool {
        self.peer_is_behind
    }

    fn count(&mut self, counter: Counter) {
        *self.counters.entry(counter).or_default() += 1;
    }
}

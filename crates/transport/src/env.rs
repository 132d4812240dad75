//! What a QP asks of the device that owns it: packets out, memory, receives of a shared queue,
//! completions, events.
//!
//! The transport decides, the environment acts. Everything that has an effect outside the QP goes
//! through [`Env`], so the same state machines run over a real device and over a simulator.

mod completion;
mod counter;
mod one_sided;
mod packet;
mod refusal;

use iba::{Access, CompCntrOps, QpEvent, Qpn, RKey, SendFlags};
use wire::Headers;

use crate::account::Account;
use crate::count::Ended;
use crate::fast_path::FastPacket;
use crate::tm::Taken;
use crate::wr::{Bind, Sge};

pub use self::completion::{Completion, Reason, Side};
pub use self::counter::Counter;
pub use self::one_sided::{AtomicOp, Direct, Local, OneSided, OneSidedKind};
pub use self::packet::{Rx, Skipped, Source, To};
pub use self::refusal::{LocalError, RemoteError, TransmitError};

/// The device, as one QP sees it during a call.
pub trait Env {
    /// A received payload, opaque to the transport.
    type Payload;

    /// Sends one packet of the QP. On success the carrier owns the packet; on
    /// [`TransmitError::Blocked`] nothing happened, and the state machine must not advance.
    fn transmit(
        &mut self,
        to: To<'_>,
        headers: &Headers,
        source: Source<'_>,
        skipped: Skipped,
    ) -> Result<(), TransmitError>;

    /// Sends packets from the middle of a message to the peer, in a row: `headers` are those of the
    /// first, each later packet has the next sequence number, and `source` is split evenly among
    /// them. Returns how many it sent, at least one. An environment can do this at less cost than
    /// one by one.
    fn transmit_run(
        &mut self,
        headers: &Headers,
        source: Source<'_>,
        packets: u32,
    ) -> Result<u32, TransmitError> {
        let first = source.part(0, source.len() / packets);
        self.transmit(To::Peer, headers, first, Skipped::default())?;
        Ok(1)
    }

    /// Sends a packet of `length` bytes to the peer, as [`Env::transmit`] would send what its
    /// headers say. An environment can do this at less cost.
    fn transmit_fast(
        &mut self,
        packet: FastPacket,
        dest: Qpn,
        source: Source<'_>,
        length: u32,
    ) -> Result<(), TransmitError> {
        self.transmit(To::Peer, &packet.headers(dest, length), source, Skipped::default())
    }

    /// Whether requests of the send queue may go by [`Env::transmit_fast`] at less cost.
    fn takes_fast(&self) -> bool {
        false
    }

    /// Sends an Ethernet frame of a raw packet QP. On [`TransmitError::Blocked`] nothing happened.
    /// An environment without an Ethernet port has no such QPs, and refuses the memory.
    fn transmit_frame(&mut self, frame: Source<'_>, flags: SendFlags) -> Result<(), TransmitError> {
        let _ = (frame, flags);
        Err(TransmitError::Memory(LocalError::Fault))
    }

    /// Carries a one-sided operation out at once, if it can. Called only when the QP has nothing
    /// unacknowledged.
    fn one_sided(&mut self, op: &OneSided<'_>) -> Direct {
        let _ = op;
        Direct::Declined
    }

    /// Carries a WRITE or READ out, if all that it needs is at hand: the memory of both sides, and
    /// the right to use it. Otherwise, it is one for [`Env::one_sided`], whatever the reason; bytes
    /// may have been copied. Called only when the QP has nothing unacknowledged.
    fn one_sided_at_hand(&mut self, op: &OneSided<'_>) -> bool {
        let _ = op;
        false
    }

    /// Whether several operations like this one cost less together than one by one.
    fn gathers(&self, op: &OneSided<'_>) -> bool {
        let _ = op;
        false
    }

    /// Carries several operations out at once, in order. They are alike ([`OneSided::is_alike`]),
    /// the environment [gathers](Env::gathers) such ones, and the rules of [`Env::one_sided`]
    /// apply. Returns how many are done, from the first one; the next one is then offered alone.
    fn one_sided_run(&mut self, ops: &[OneSided<'_>]) -> usize {
        let _ = ops;
        0
    }

    /// Whether [`Env::one_sided`] will likely carry an operation out, once nothing is
    /// unacknowledged.
    fn is_direct(&self, op: &OneSided<'_>) -> bool {
        let _ = op;
        false
    }

    /// Checks the list of a send for `access` without touching memory: keys, ranges, protection
    /// domain.
    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), LocalError>;

    /// Copies a payload into a scatter list, `offset` bytes from its start. The list belongs to a
    /// request of this side of the QP, and to its protection domain. Keys and ranges are checked;
    /// the caller ensures that the list is long enough.
    fn scatter(
        &mut self,
        side: Side,
        sges: &[Sge],
        offset: u64,
        payload: &Self::Payload,
    ) -> Result<(), LocalError>;

    /// Whether an answer may be asked for again that found the memory of this scatter list absent:
    /// [`LocalError::NotPresent`] while it is on its way, another error if it will not come. An
    /// environment that cannot tell allows it.
    fn may_ask_again(&mut self, sges: &[Sge]) -> Result<(), LocalError> {
        let _ = sges;
        Ok(())
    }

    /// Copies a payload without its first `skip` bytes to the start of a scatter list, under the
    /// same rules. Called only for messages that [`Env::take_srq`] matched by their tag.
    fn scatter_after(
        &mut self,
        sges: &[Sge],
        skip: u32,
        payload: &Self::Payload,
    ) -> Result<(), LocalError> {
        let _ = (sges, skip, payload);
        Err(LocalError::Fault)
    }

    /// Copies bytes of the transport's own (a GRH, an atomic's old value) into a scatter list.
    fn scatter_bytes(
        &mut self,
        side: Side,
        sges: &[Sge],
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), LocalError>;

    /// Checks that a peer may use `length` bytes at `addr` of region `rkey` for `access`.
    fn check_remote(
        &self,
        rkey: RKey,
        addr: u64,
        length: u32,
        access: Access,
    ) -> Result<(), RemoteError>;

    /// Copies a payload to `addr` of region `rkey`, checking again. The last bytes become visible
    /// last.
    fn write_remote(
        &mut self,
        rkey: RKey,
        addr: u64,
        payload: &Self::Payload,
    ) -> Result<(), RemoteError>;

    /// Runs an atomic on the eight bytes at `addr` of region `rkey` and returns their old value.
    fn atomic(&mut self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, RemoteError>;

    /// Makes what peers wrote to region `rkey` visible to every reader, at `length` bytes at an
    /// address or everywhere, if the region grants `access`.
    fn flush(
        &mut self,
        rkey: RKey,
        range: Option<(u64, u32)>,
        access: Access,
    ) -> Result<(), RemoteError> {
        let _ = (rkey, range, access);
        Err(RemoteError::Access)
    }

    /// Invalidates a key on behalf of the peer (SEND with invalidate) or of a local request.
    fn invalidate(&mut self, rkey: RKey) -> Result<(), RemoteError>;

    /// Binds a memory window, for the QP if its type is 2.
    fn bind(&mut self, bind: &Bind) -> Result<(), LocalError> {
        let _ = bind;
        Err(LocalError::Protection)
    }

    /// Whether the QP must act as if it had no receive, for tests of its senders.
    fn withholds_receives(&self) -> bool {
        false
    }

    /// Takes a receive of the QP's shared receive queue for a message that begins with this packet:
    /// the next one, or the one that the message's tag names. Called only for QPs that have such a
    /// queue.
    fn take_srq(&mut self, rx: &Rx<'_, Self::Payload>) -> Option<Taken>;

    /// Puts a finished work request on its CQ.
    fn complete(&mut self, completion: &Completion);

    /// An operation ended, one of this side or one for the peer. For completion counters.
    fn ended(&mut self, op: CompCntrOps, ended: Ended) {
        let _ = (op, ended);
    }

    /// What led to the failed completion that follows, so that it can be explained.
    fn account(&mut self, account: &Account) {
        let _ = account;
    }

    /// Raises an asynchronous event of the QP.
    fn event(&mut self, event: QpEvent);

    /// The QP is in ERR from now on, by an error or by its program: nothing may reach memory in its
    /// name any more (IBA 10.3.1).
    fn entered_error(&mut self) {}

    /// The oldest request that the program posted to the send queue ended well, without a
    /// completion. Traces need this, and so the fast path does not tell.
    fn ended_silently(&mut self) {}

    /// The requests that follow, up to the next call, are packets of this work request, which is
    /// `behind` from the end of the send queue, from 1. Captures and traces need this, and so the
    /// fast path does not tell.
    fn of_request(&mut self, wr_id: u64, behind: usize) {
        let _ = (wr_id, behind);
    }

    /// Whether the carrier still holds packets of this QP that the peer, alive, has not taken: then
    /// the peer is slow and not dead, and waiting for it uses no retry. A wire cannot tell.
    fn peer_is_behind(&self) -> bool {
        false
    }

    /// Counts something under the name mlx5 documents for it.
    fn count(&mut self, counter: Counter) {
        let _ = counter;
    }
}

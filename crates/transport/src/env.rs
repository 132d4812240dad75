//! What a QP asks of the device that owns it: packets out, memory, receives of a shared queue,
//! completions, events.
//!
//! The transport decides, the environment acts. Everything that has an effect outside the QP goes
//! through [`Env`], so the same state machines run over a real device and over a simulator.

use iba::{Access, Av, CompCntrOps, QpEvent, Qpn, RKey, SendFlags, WcFlags, WcOpcode, WcStatus};
use wire::Headers;

use crate::account::Account;
use crate::count::Ended;
use crate::fast_path::FastPacket;
use crate::tm::{Taken, TmInfo};
use crate::wr::{Bind, Sge};

/// Where a packet goes.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a QP is connected or it is not")]
pub enum To<'a> {
    /// To the peer the QP is connected with.
    Peer,
    /// To the port an address vector names.
    Av(&'a Av),
}

/// Where the payload of an outgoing packet comes from. Offsets count from the start of the message.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "every payload has one of these sources")]
pub enum Source<'a> {
    /// There is none.
    Empty,
    /// `length` bytes at `offset` of a gather list.
    Sges {
        /// The whole list of the message.
        sges: &'a [Sge],
        /// Where this packet's part begins.
        offset: u64,
        /// How long it is.
        length: u32,
    },
    /// The bytes themselves.
    Bytes(&'a [u8]),
    /// `length` bytes at `addr` of a region that a peer's READ named.
    Remote {
        /// The region, already checked with [`Env::check_remote`] for the whole READ.
        rkey: RKey,
        /// The address.
        addr: u64,
        /// How long the part is.
        length: u32,
    },
}

impl Source<'_> {
    /// Bytes of it.
    pub const fn len(&self) -> u32 {
        match *self {
            Self::Empty => 0,
            Self::Bytes(bytes) => bytes.len() as u32,
            Self::Sges { length, .. } | Self::Remote { length, .. } => length,
        }
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `length` of its bytes from `at` on, which it has.
    #[must_use]
    pub fn part(self, at: u32, length: u32) -> Self {
        match self {
            Self::Empty => Self::Empty,
            Self::Bytes(bytes) => Self::Bytes(&bytes[at as usize..][..length as usize]),
            Self::Sges { sges, offset, .. } => {
                Self::Sges { sges, offset: offset + u64::from(at), length }
            }
            Self::Remote { rkey, addr, .. } => {
                Self::Remote { rkey, addr: addr.wrapping_add(u64::from(at)), length }
            }
        }
    }
}

/// Packets and messages that a requester carried out without sending them, since the last packet it
/// sent: the receiver counts them as received (`docs/ARCHITECTURE.md`, the direct path). Always
/// zero on a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two counters")]
pub struct Skipped {
    /// Packet sequence numbers to step over.
    pub psns: u32,
    /// Messages to step over.
    pub messages: u32,
}

/// Why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the requester handles each")]
pub enum TransmitError {
    /// The carrier has no room: nothing was sent, and the device calls again when there is.
    Blocked,
    /// The payload could not be taken from local memory.
    Memory(LocalError),
    /// The payload of a READ response could not be taken. If it is only absent at this moment, call
    /// again as if the carrier had no room.
    Remote(RemoteError),
}

/// Why local memory could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the state machines handle each")]
pub enum LocalError {
    /// Key, range, protection domain or access of a scatter/gather element is wrong: LOC_PROT_ERR.
    Protection,
    /// The memory went away under a valid region: LOC_QP_OP_ERR, or LOC_ACCESS_ERR on the receiving
    /// side.
    Fault,
    /// The memory is not there at this moment, and will be: try again. Nothing fails for it.
    NotPresent,
}

/// Why a peer may not use local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the responder handles each")]
pub enum RemoteError {
    /// Key, range, protection domain or access is wrong: NAK remote access error.
    Access,
    /// An atomic's address is not a multiple of eight: NAK invalid request.
    Misaligned,
    /// The memory went away under a valid region: NAK remote access error, as the kernel's rxe
    /// answers.
    Fault,
    /// The memory is not there at this moment, and will be (a page fault of on-demand paging, a
    /// buffer on the move): the peer is asked to come again by an RNR NAK, as NICs with on-demand
    /// paging do.
    NotPresent,
}

/// An atomic operation on eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "IBA defines two")]
pub enum AtomicOp {
    /// Store `swap` if the old value equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd {
        /// What to add.
        add: u64,
    },
}

/// A one-sided operation that the environment may carry out at once, without a packet.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "the environment reads every field")]
pub struct OneSided<'a> {
    /// The operation.
    pub kind: OneSidedKind,
    /// Local bytes: source of a WRITE, destination of the others.
    pub local: Local<'a>,
    /// Length in bytes.
    pub length: u32,
    /// The peer's memory.
    pub remote_addr: u64,
    /// Its key.
    pub rkey: RKey,
}

/// The local side of a [`OneSided`] operation.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a work request has a list or its bytes")]
pub enum Local<'a> {
    /// A scatter/gather list.
    Sges(&'a [Sge]),
    /// Inline bytes.
    Bytes(&'a [u8]),
}

/// What a [`OneSided`] operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the one-sided operations of IBA")]
pub enum OneSidedKind {
    /// WRITE without immediate.
    Write,
    /// READ.
    Read,
    /// An atomic; the old value goes to the local list.
    Atomic(AtomicOp),
}

/// What became of a [`OneSided`] operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the requester handles each")]
pub enum Direct {
    /// Not possible here or now: send packets.
    Declined,
    /// Done; every byte is in place.
    Done,
    /// The peer's memory refused.
    Remote(RemoteError),
    /// The local memory refused.
    Local(LocalError),
}

/// Which queue a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a QP has two queues")]
pub enum Side {
    /// The send queue's CQ.
    Send,
    /// The receive queue's CQ.
    Recv,
}

/// A finished work request. The device adds the QP number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_wc")]
#[expect(clippy::exhaustive_structs, reason = "the device reads every field")]
pub struct Completion {
    /// Which CQ it goes to.
    pub side: Side,
    /// From the work request.
    pub wr_id: u64,
    /// The outcome. If it is not success only `wr_id`, `side` and `vendor_err` mean anything
    /// besides.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// Bytes moved; for a datagram the 40 bytes of the GRH count.
    pub byte_len: u32,
    /// Which of the following are valid.
    pub flags: WcFlags,
    /// Immediate data, a number whose most significant byte travels first, or the key the peer
    /// invalidated.
    pub imm: u32,
    /// The sender of a datagram.
    pub src_qpn: Qpn,
    /// Of a datagram, in what it came: 0xa for UDP over IPv4, 0x9 over IPv6. RoCEv2 Annex A17.4.5.1
    /// wants the completion to say it; in the service level, which RoCE does not have, mlx5 does,
    /// and UCX reads it there.
    pub sl: u8,
    /// Of a message with a tag.
    pub tm: TmInfo,
    /// Whether the peer set the solicited bit, or the completion is an error: what a CQ armed for
    /// solicited completions waits for (IBA 11.4.2.2).
    pub solicited: bool,
    /// Why, in more detail than the status: a [`Reason`] as a number.
    pub vendor_err: u32,
}

impl Completion {
    /// A success that says nothing more; of a send until it is told otherwise.
    pub const fn new(side: Side, wr_id: u64) -> Self {
        Self {
            side,
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            byte_len: 0,
            flags: WcFlags::empty(),
            imm: 0,
            src_qpn: Qpn::new(0),
            sl: 0,
            tm: TmInfo { tag: 0, private: 0 },
            solicited: false,
            vendor_err: Reason::None as u32,
        }
    }
}

/// More precisely than a status, why a work request failed. The number is a completion's
/// `vendor_err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum Reason {
    /// Nothing failed.
    None = 0,
    /// The QP was moved to the error state by the program.
    Flushed = 1,
    /// No acknowledgement within the timeout.
    AckTimeout = 2,
    /// The peer answered "PSN sequence error" too often.
    SequenceNak = 3,
    /// The peer answered "receiver not ready" too often.
    RnrNak = 4,
    /// The peer answered "invalid request".
    InvalidRequestNak = 5,
    /// The peer answered "remote access error".
    RemoteAccessNak = 6,
    /// The peer answered "remote operational error".
    RemoteOperationalNak = 7,
    /// A key, range or access of a local scatter/gather element.
    LocalProtection = 8,
    /// Local memory went away.
    LocalFault = 9,
    /// A message was longer than the receive it met.
    ReceiveTooShort = 10,
    /// A response that cannot be.
    BadResponse = 11,
    /// A peer's request broke the protocol; the completion is of the receive it consumed.
    PeerBrokeProtocol = 12,
    /// A peer's request was refused access; the completion is of the receive it consumed.
    PeerRefused = 13,
    /// A READ or an atomic on a QP whose `max_rd_atomic` is 0.
    NoReadDepth = 14,
    /// A memory window could not be bound as asked.
    BindRefused = 15,
    /// No receive in a list of tags has the handle of the one that was to be taken from it.
    NoSuchTag = 16,
    /// A rendezvous is longer than the receive that its tag matched.
    RendezvousTooLong = 17,
}

impl Reason {
    /// Every reason, in the order of its number.
    pub const ALL: [Self; 18] = [
        Self::None,
        Self::Flushed,
        Self::AckTimeout,
        Self::SequenceNak,
        Self::RnrNak,
        Self::InvalidRequestNak,
        Self::RemoteAccessNak,
        Self::RemoteOperationalNak,
        Self::LocalProtection,
        Self::LocalFault,
        Self::ReceiveTooShort,
        Self::BadResponse,
        Self::PeerBrokeProtocol,
        Self::PeerRefused,
        Self::NoReadDepth,
        Self::BindRefused,
        Self::NoSuchTag,
        Self::RendezvousTooLong,
    ];

    /// The reason that a completion's `vendor_err` stands for.
    pub fn from_vendor_err(vendor_err: u32) -> Option<Self> {
        Self::ALL.get(vendor_err as usize).copied()
    }
}

/// A packet that arrived: its headers, its payload, and what the carrier knows of it.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "the device builds it")]
pub struct Rx<'a, P> {
    /// The headers.
    pub headers: &'a Headers,
    /// The payload.
    pub payload: &'a P,
    /// Its length in bytes. On a reliable carrier it may be many path MTUs: one packet then stands
    /// for `ceil(length / path MTU)` of them.
    pub length: u32,
    /// How many packets of the wire it is: more than one only of what
    /// [`Qp::joinable`](crate::Qp::joinable) allows. On a reliable carrier always one.
    pub packets: u32,
    /// What the peer carried out without packets before this one.
    pub skipped: Skipped,
    /// The path back to the sender, for datagrams.
    pub grh: Option<&'a [u8; 40]>,
    /// Whether a switch on the way marked it: congestion experienced, ECN 3 (RFC 3168).
    pub marked: bool,
}

/// The device, as one QP sees it during a call.
pub trait Env {
    /// A received payload, opaque to the transport.
    type Payload;

    /// Sends one packet of the QP. On success the packet is the carrier's; on
    /// [`TransmitError::Blocked`] nothing happened and the state machine must not move.
    fn transmit(
        &mut self,
        to: To<'_>,
        headers: &Headers,
        source: Source<'_>,
        skipped: Skipped,
    ) -> Result<(), TransmitError>;

    /// Sends packets from the middle of a message to the peer, one behind the other: `headers` are
    /// those of the first, each further one has the next sequence number, and `source` is shared
    /// evenly among them. Says how many of them it sent, which is at least one; an environment can
    /// do that with less ado than one by one.
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
    /// headers say. An environment can do that with less ado.
    fn transmit_fast(
        &mut self,
        packet: FastPacket,
        dest: Qpn,
        source: Source<'_>,
        length: u32,
    ) -> Result<(), TransmitError> {
        self.transmit(To::Peer, &packet.headers(dest, length), source, Skipped::default())
    }

    /// Sends an Ethernet frame of a raw packet QP. On [`TransmitError::Blocked`] nothing happened.
    /// An environment without an Ethernet port has none of the memory of its QPs, as it has no such
    /// QPs.
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

    /// Whether [`Env::one_sided`] will likely carry an operation out, once nothing is
    /// unacknowledged.
    fn is_direct(&self, op: &OneSided<'_>) -> bool {
        let _ = op;
        false
    }

    /// Checks the list of a send for `access` without touching memory: keys, ranges, protection
    /// domain.
    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), LocalError>;

    /// Copies a payload into a scatter list, `offset` bytes from its start: one of a request of
    /// this side of the QP, in whose protection domain it is. Keys and ranges are checked; that the
    /// list is long enough is the caller's to ensure.
    fn scatter(
        &mut self,
        side: Side,
        sges: &[Sge],
        offset: u64,
        payload: &Self::Payload,
    ) -> Result<(), LocalError>;

    /// Whether an answer may be asked for again that found the memory of this scatter list absent:
    /// [`LocalError::NotPresent`] while it is on its way, another error if it will not come. An
    /// environment that cannot tell lets it be asked for.
    fn may_ask_again(&mut self, sges: &[Sge]) -> Result<(), LocalError> {
        let _ = sges;
        Ok(())
    }

    /// Copies a payload but for its first `skip` bytes to the start of a scatter list, under the
    /// same rules. Called only for what [`Env::take_srq`] matched by its tag.
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

    /// Whether the QP is to act as if it had no receive, for tests of those who send to it.
    fn withholds_receives(&self) -> bool {
        false
    }

    /// Takes a receive of the QP's shared receive queue for a message that begins with a packet:
    /// the next, or the one that the message's tag names. Called only for QPs that have such a
    /// queue.
    fn take_srq(&mut self, rx: &Rx<'_, Self::Payload>) -> Option<Taken>;

    /// Puts a finished work request on its CQ.
    fn complete(&mut self, completion: Completion);

    /// An operation ended, on this side or carried out for the peer. For completion counters.
    fn ended(&mut self, op: CompCntrOps, ended: Ended) {
        let _ = (op, ended);
    }

    /// What led to the failed completion that follows. For who has to explain it.
    fn account(&mut self, account: &Account) {
        let _ = account;
    }

    /// Raises an asynchronous event of the QP.
    fn event(&mut self, event: QpEvent);

    /// The requests that follow, up to the next call, are packets of this work request. For who
    /// keeps a record of packets.
    fn of_request(&mut self, wr_id: u64) {
        let _ = wr_id;
    }

    /// Whether the carrier still holds packets of this QP that the peer, alive, has not taken: then
    /// the peer is slow and not dead, and waiting for it uses up no retry. A wire cannot know.
    fn peer_is_behind(&self) -> bool {
        false
    }

    /// Counts something under the name mlx5 documents for it.
    fn count(&mut self, counter: Counter) {
        let _ = counter;
    }
}

/// What the transport counts, under the names of mlx5's and rxe's hardware counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the counter of that name")]
#[non_exhaustive]
pub enum Counter {
    DuplicateRequest,
    ImpliedNakSeqErr,
    LocalAckTimeoutErr,
    OutOfBuffer,
    OutOfSequence,
    PacketSeqErr,
    ReqCqeError,
    ReqCqeFlushError,
    ReqRemoteAccessErrors,
    ReqRemoteInvalidRequest,
    RespCqeError,
    RespCqeFlushError,
    RespLocalLengthError,
    RespRemoteAccessErrors,
    /// A request was refused as invalid.
    RespRemoteInvalidRequest,
    RnrNakRetryErr,
    RxAtomicRequests,
    RxReadRequests,
    RxWriteRequests,
    SendRnrNak,
    /// Accesses put off because the memory was not there.
    PageFaultsPending,
    /// Packets that came with a mark of congestion.
    NpEcnMarkedRocePackets,
    /// Congestion notifications sent.
    NpCnpSent,
    /// Congestion notifications obeyed.
    RpCnpHandled,
    /// Congestion notifications that nothing came of.
    RpCnpIgnored,
    QkeyViolation,
    DroppedPacket,
}

//! The opcodes of a BTH, and what each means for its packet (IBA table 38, RoCEv2 Annex A17.9 for
//! CNP, Annex A19 for FLUSH and ATOMIC WRITE), and one of peerdma's own ([`sack`](crate::sack)).
//!
//! Everything that depends on an opcode reads the one table of this module through
//! [`Opcode::info`]: the codec, the printer, the state machines, the fuzzer's dictionary.

mod table;

use core::fmt;

use iba::QpType;

pub use table::Opcode;

/// A row of the opcode table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeInfo {
    /// The kernel's name, without `IB_OPCODE_`.
    pub name: &'static str,
    /// What the packet does.
    pub operation: Operation,
    /// Its position in its message.
    pub position: Position,
    /// The extension headers that follow the BTH, in their order on the wire.
    pub headers: &'static [Ext],
    /// The offset of each of them from the end of the BTH.
    pub(crate) places: Places,
    /// What the payload may be.
    pub payload: PayloadRule,
}

/// The transport service: the top three bits of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "three bits, all of them covered")]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification of RoCEv2.
    Cnp,
    /// Extended reliable connection.
    Xrc,
    /// Manufacturers' own.
    Manufacturer,
    /// A service that no opcode of the table has: reliable datagram (2), or reserved (6).
    Other(u8),
}

impl Service {
    /// The service of a QP of this type; `None` for raw packets, which have no BTH.
    pub const fn of(qp_type: QpType) -> Option<Self> {
        match qp_type {
            QpType::Rc => Some(Self::Rc),
            QpType::Uc => Some(Self::Uc),
            QpType::Ud => Some(Self::Ud),
            QpType::XrcSend | QpType::XrcRecv => Some(Self::Xrc),
            _ => None,
        }
    }

    /// The service in the top three bits of `code`.
    pub const fn from_code(code: u8) -> Self {
        match code >> 5 {
            0 => Self::Rc,
            1 => Self::Uc,
            3 => Self::Ud,
            4 => Self::Cnp,
            5 => Self::Xrc,
            7 => Self::Manufacturer,
            other => Self::Other(other),
        }
    }
}

/// What a packet does.
///
/// The variants with immediate data or an invalidation belong to the last packet of a message; its
/// first and middle packets are those of the plain operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// SEND.
    Send,
    /// The last or only packet of a SEND with four bytes of immediate data.
    SendWithImm,
    /// The last or only packet of a SEND that invalidates a key at the receiver.
    SendWithInv,
    /// RDMA WRITE.
    Write,
    /// The last or only packet of an RDMA WRITE with four bytes of immediate data.
    WriteWithImm,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response; also the answer to FLUSH and to ATOMIC WRITE.
    ReadResponse,
    /// ACK or NAK.
    Ack,
    /// The answer to CMP_SWAP and FETCH_ADD.
    AtomicAck,
    /// Compare and swap.
    CmpSwap,
    /// Fetch and add.
    FetchAdd,
    /// FLUSH: make earlier writes globally visible or persistent.
    Flush,
    /// ATOMIC WRITE: eight bytes, atomically.
    AtomicWrite,
    /// Congestion notification.
    Cnp,
    /// What the responder keeps of packets that came early.
    Sack,
    /// The operation of an unknown opcode.
    Unknown,
}

impl Operation {
    /// Whether a requester sends it.
    pub const fn is_request(self) -> bool {
        match self {
            Self::ReadResponse
            | Self::Ack
            | Self::AtomicAck
            | Self::Cnp
            | Self::Sack
            | Self::Unknown => false,
            Self::Send
            | Self::SendWithImm
            | Self::SendWithInv
            | Self::Write
            | Self::WriteWithImm
            | Self::ReadRequest
            | Self::CmpSwap
            | Self::FetchAdd
            | Self::Flush
            | Self::AtomicWrite => true,
        }
    }

    /// Whether a responder sends it.
    pub const fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse | Self::Ack | Self::AtomicAck)
    }

    /// Whether it is a SEND of any kind.
    pub const fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendWithImm | Self::SendWithInv)
    }

    /// Whether it is an RDMA WRITE of any kind.
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteWithImm)
    }

    /// Whether it is CMP_SWAP or FETCH_ADD.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CmpSwap | Self::FetchAdd)
    }

    /// The operation of the packets before the last one.
    pub const fn plain(self) -> Self {
        match self {
            Self::SendWithImm | Self::SendWithInv => Self::Send,
            Self::WriteWithImm => Self::Write,
            other => other,
        }
    }
}

/// The position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "IBA defines four positions")]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// The position of a packet that is the first of its message, the last, both or neither.
    pub const fn new(first: bool, last: bool) -> Self {
        match (first, last) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
        }
    }
}

/// What the payload of a packet may be (IBA 9.7.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "the table uses every one")]
pub enum PayloadRule {
    /// None.
    Empty,
    /// Exactly the path MTU.
    Full,
    /// From one byte to the path MTU.
    Some,
    /// From nothing to the path MTU.
    Any,
    /// Exactly this many bytes.
    Exactly(u8),
}

impl PayloadRule {
    /// Whether a payload of `len` bytes follows the rule on a path with this MTU.
    pub const fn admits(self, len: usize, mtu: usize) -> bool {
        match self {
            Self::Empty => len == 0,
            Self::Full => len == mtu,
            Self::Some => len > 0 && len <= mtu,
            Self::Any => len <= mtu,
            Self::Exactly(bytes) => len == bytes as usize,
        }
    }
}

/// An extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the header of that name")]
#[non_exhaustive]
pub enum Ext {
    Xrceth,
    Deth,
    Feth,
    Reth,
    AtomicEth,
    Aeth,
    AtomicAckEth,
    ImmDt,
    Ieth,
    Sack,
}

/// The offsets of the extension headers of an opcode from the end of the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// The offset of each, indexed by [`Ext`]; [`Places::NONE`] if the opcode does not have it.
    starts: [u8; Ext::COUNT],
    /// The end of the last one.
    end: u8,
}

impl Places {
    const NONE: u8 = u8::MAX;

    /// The offsets of contiguous headers.
    const fn of(headers: &[Ext]) -> Self {
        let (mut starts, mut end, mut index) = ([Self::NONE; Ext::COUNT], 0, 0);
        while index < headers.len() {
            starts[headers[index] as usize] = end;
            // CAST: the longest is 28 bytes.
            end += headers[index].bytes() as u8;
            index += 1;
        }
        Self { starts, end }
    }
}

impl Ext {
    /// How many there are.
    const COUNT: usize = Self::Sack as usize + 1;

    /// The standard's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xrceth => "XRCETH",
            Self::Deth => "DETH",
            Self::Feth => "FETH",
            Self::Reth => "RETH",
            Self::AtomicEth => "AtomicETH",
            Self::Aeth => "AETH",
            Self::AtomicAckEth => "AtomicAckETH",
            Self::ImmDt => "ImmDt",
            Self::Ieth => "IETH",
            Self::Sack => "SACK",
        }
    }

    /// Bytes on the wire.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Deth | Self::AtomicAckEth => 8,
            Self::Reth => 16,
            Self::AtomicEth => 28,
            Self::Sack => crate::sack::LEN,
            Self::Xrceth | Self::Feth | Self::Aeth | Self::ImmDt | Self::Ieth => 4,
        }
    }
}

impl Opcode {
    /// The opcode of a packet in `position` of a message that does `operation` over `service`, if
    /// the service has it.
    ///
    /// `operation` is that of the whole message: `SendWithImm` in position `First` gives the opcode
    /// of a first SEND packet, as only the last packet shows the difference.
    pub fn new(service: Service, operation: Operation, position: Position) -> Option<Self> {
        let operation = match position {
            Position::First | Position::Middle => operation.plain(),
            Position::Last | Position::Only => operation,
        };
        let service: usize = match service {
            Service::Rc => 0,
            Service::Uc => 1,
            Service::Ud => 3,
            Service::Cnp => 4,
            Service::Xrc => 5,
            Service::Manufacturer => 7,
            Service::Other(_) => return None,
        };
        let opcode = *CODES[service].get(operation as usize)?.get(position as usize)?;
        opcode.is_known().then_some(opcode)
    }

    /// The kernel's name, without `IB_OPCODE_`.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// The service.
    #[inline]
    pub fn service(self) -> Service {
        Service::from_code(self.into())
    }

    /// What the packet does.
    #[inline]
    pub fn operation(self) -> Operation {
        self.info().operation
    }

    /// The position of the packet in its message.
    #[inline]
    pub fn position(self) -> Position {
        self.info().position
    }

    /// Whether a requester sends it.
    pub fn is_request(self) -> bool {
        self.operation().is_request()
    }

    /// Whether a responder sends it.
    pub fn is_response(self) -> bool {
        self.operation().is_response()
    }

    /// Whether the packet begins a message.
    #[inline]
    pub fn is_first_or_only(self) -> bool {
        matches!(self.position(), Position::First | Position::Only)
    }

    /// Whether the packet ends a message.
    #[inline]
    pub fn ends_message(self) -> bool {
        matches!(self.position(), Position::Last | Position::Only)
    }

    /// Whether the packet may carry a payload.
    pub fn has_payload(self) -> bool {
        self.info().payload != PayloadRule::Empty
    }

    /// Whether `header` follows the BTH.
    pub fn has(self, header: Ext) -> bool {
        self.place(header).is_some()
    }

    /// Whether the opcode is in the table.
    pub const fn is_known(self) -> bool {
        !matches!(self, Self::Unknown(_))
    }

    /// Bytes of the BTH and the extension headers.
    #[inline]
    pub const fn headers_len(self) -> usize {
        crate::bth::LEN + self.info().places.end as usize
    }

    /// The offset of an extension header from the end of the BTH, if the opcode has it.
    #[inline]
    pub(crate) const fn place(self, ext: Ext) -> Option<usize> {
        match self.info().places.starts[ext as usize] {
            Places::NONE => None,
            at => Some(at as usize),
        }
    }
}

/// The opcodes by service, operation and position: the table of [`Opcode::info`] inverted.
static CODES: [[[Opcode; 4]; Operation::Unknown as usize]; 8] = {
    let mut codes = [[[Opcode::Unknown(0xff); 4]; Operation::Unknown as usize]; 8];
    let mut index = 0;
    while index < Opcode::ALL.len() {
        let opcode = Opcode::ALL[index];
        let info = opcode.info();
        codes[opcode.code() as usize >> 5][info.operation as usize][info.position as usize] =
            opcode;
        index += 1;
    }
    codes
};

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(code) => write!(f, "opcode {code:#04x}"),
            known => f.write_str(known.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_converts_both_ways() {
        for code in 0..=u8::MAX {
            assert_eq!(u8::from(Opcode::from(code)), code);
        }
        assert_eq!(
            Opcode::ALL.len(),
            (0..=u8::MAX).filter(|c| Opcode::from(*c).is_known()).count()
        );
    }

    #[test]
    fn service_operation_and_position_name_an_opcode() {
        for opcode in Opcode::ALL.iter().copied() {
            let again = Opcode::new(opcode.service(), opcode.operation(), opcode.position());
            assert_eq!(again, Some(opcode));
        }
        assert_eq!(Opcode::new(Service::Uc, Operation::ReadRequest, Position::Only), None);
        assert_eq!(Opcode::new(Service::Ud, Operation::Send, Position::First), None);
        assert_eq!(
            Opcode::new(Service::Rc, Operation::WriteWithImm, Position::First),
            Some(Opcode::RcWriteFirst)
        );
    }

    /// XRC's requests are RC's with an XRCETH before everything else, its responses are RC's (IBA
    /// Annex A14).
    #[test]
    fn xrc_is_rc_with_an_xrceth_in_requests() {
        for xrc in Opcode::ALL.iter().copied().filter(|o| o.service() == Service::Xrc) {
            let rc = Opcode::from(u8::from(xrc) & 0x1f).info();
            let xrc_headers = xrc.info().headers;
            if xrc.is_request() {
                assert_eq!(xrc_headers[0], Ext::Xrceth, "{xrc}");
                assert_eq!(&xrc_headers[1..], rc.headers, "{xrc}");
            } else {
                assert_eq!(xrc_headers, rc.headers, "{xrc}");
            }
            assert_eq!((xrc.operation(), xrc.position()), (rc.operation, rc.position), "{xrc}");
            assert_eq!(xrc.info().payload, rc.payload, "{xrc}");
            assert_eq!(xrc.name().strip_prefix('X'), Some(rc.name));
        }
    }

    #[test]
    fn uc_has_a_subset_of_the_operations_of_rc() {
        for uc in Opcode::ALL.iter().copied().filter(|o| o.service() == Service::Uc) {
            let rc = Opcode::from(u8::from(uc) & 0x1f).info();
            assert_eq!(OpcodeInfo { name: rc.name, ..*uc.info() }, *rc);
            assert_eq!(uc.name()[2..], rc.name[2..]);
        }
    }

    #[test]
    fn immediate_data_and_invalidation_come_only_at_the_end_of_a_message() {
        for opcode in Opcode::ALL.iter().copied() {
            let trailer = opcode.has(Ext::ImmDt) || opcode.has(Ext::Ieth);
            assert_eq!(trailer, opcode.operation() != opcode.operation().plain(), "{opcode}");
            assert!(!trailer || opcode.ends_message(), "{opcode}");
        }
    }

    #[test]
    fn unknown_opcodes_promise_nothing() {
        let unknown = Opcode::from(0xff);
        assert_eq!(unknown.to_string(), "opcode 0xff");
        assert_eq!(unknown.service(), Service::Manufacturer);
        assert!(!unknown.is_request() && !unknown.is_response());
        assert_eq!(unknown.headers_len(), crate::bth::LEN);
    }
}

//! Messages in 32 bits of immediate data, and the purpose of a send request.

/// Bits of the operand.
const OPERAND: u32 = (1 << 29) - 1;

const DATA: u32 = 0;
const DIRECT: u32 = 2;
const SGL: u32 = 4;
const IOMAP: u32 = 6;
const CTRL: u32 = 7;

/// A message of a peer. The upper three bits are the opcode, the others its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// This many bytes were written at the address from the target list.
    #[doc(alias = "RS_OP_DATA")]
    Data(u32),
    /// The number of the message up to which the peer may send. An entry of the target list may
    /// have been written with it.
    #[doc(alias = "RS_OP_SGL")]
    Credit(u16),
    /// This entry of the table of mappings was written.
    #[doc(alias = "RS_OP_IOMAP_SGL")]
    Mapped(u32),
    /// A message about the connection.
    #[doc(alias = "RS_OP_CTRL")]
    Control(Control),
    /// A reserved opcode.
    Reserved(u32),
}

/// The content of a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The sender neither sends nor receives any more.
    #[doc(alias = "RS_CTRL_DISCONNECT")]
    Disconnect,
    /// The sender is alive.
    #[doc(alias = "RS_CTRL_KEEPALIVE")]
    Keepalive,
    /// The sender sends no more.
    #[doc(alias = "RS_CTRL_SHUTDOWN")]
    Shutdown,
    /// An unknown control message.
    Other(u32),
}

impl Control {
    const fn operand(self) -> u32 {
        match self {
            Self::Disconnect => 0,
            Self::Keepalive => 1,
            Self::Shutdown => 2,
            Self::Other(operand) => operand & OPERAND,
        }
    }

    const fn of(operand: u32) -> Self {
        match operand {
            0 => Self::Disconnect,
            1 => Self::Keepalive,
            2 => Self::Shutdown,
            other => Self::Other(other),
        }
    }
}

impl Message {
    /// Encodes it as immediate data, in host order.
    pub const fn encode(self) -> u32 {
        let (kind, operand) = match self {
            Self::Data(bytes) => (DATA, bytes),
            Self::Credit(number) => (SGL, number as u32),
            Self::Mapped(index) => (IOMAP, index),
            Self::Control(control) => (CTRL, control.operand()),
            Self::Reserved(bits) => return bits,
        };
        kind << 29 | operand & OPERAND
    }

    /// Decodes immediate data, in host order.
    pub const fn decode(bits: u32) -> Self {
        let operand = bits & OPERAND;
        match bits >> 29 {
            DATA => Self::Data(operand),
            // A count of messages that wraps: rdma-core sends 17 bits of it and reads 16.
            SGL => Self::Credit(operand as u16),
            IOMAP => Self::Mapped(operand),
            CTRL => Self::Control(Control::of(operand)),
            _ => Self::Reserved(bits),
        }
    }
}

/// The purpose of a send request, in the 64 bits (`wr_id`) that its completion returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// This many bytes of data.
    Data(u32),
    /// This many bytes written to mapped memory.
    #[doc(alias = "RS_OP_WRITE")]
    Direct(u32),
    /// An entry of the peer's table of mappings.
    Mapped,
    /// A credit message.
    Credit,
    /// A control message.
    Control(Control),
}

impl Sent {
    /// Encodes it as the identifier of a work request.
    pub const fn encode(self) -> u64 {
        match self {
            Self::Data(bytes) => Message::Data(bytes).encode() as u64,
            Self::Direct(bytes) => (DIRECT << 29 | bytes & OPERAND) as u64,
            Self::Mapped => Message::Mapped(0).encode() as u64,
            Self::Credit => Message::Credit(0).encode() as u64,
            Self::Control(control) => Message::Control(control).encode() as u64,
        }
    }

    /// Decodes an identifier from [`encode`](Self::encode).
    pub const fn decode(id: u64) -> Self {
        let bits = id as u32;
        match Message::decode(bits) {
            Message::Data(bytes) => Self::Data(bytes),
            Message::Mapped(_) => Self::Mapped,
            Message::Credit(_) => Self::Credit,
            Message::Control(control) => Self::Control(control),
            Message::Reserved(bits) => Self::Direct(bits & OPERAND),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_bits_of_the_protocol() {
        for (message, bits) in [
            (Message::Data(5), 0x0000_0005),
            (Message::Credit(0xfffe), 0x8000_fffe),
            (Message::Mapped(3), 0xc000_0003),
            (Message::Control(Control::Disconnect), 0xe000_0000),
            (Message::Control(Control::Keepalive), 0xe000_0001),
            (Message::Control(Control::Shutdown), 0xe000_0002),
            (Message::Control(Control::Other(9)), 0xe000_0009),
            (Message::Reserved(0x2000_0001), 0x2000_0001),
        ] {
            assert_eq!(message.encode(), bits, "{message:?}");
            assert_eq!(Message::decode(bits), message);
        }
    }

    #[test]
    fn credits_are_sixteen_bits() {
        assert_eq!(Message::decode(0x8001_0007), Message::Credit(7));
    }

    #[test]
    fn the_identifier_of_a_request_has_its_purpose() {
        for sent in [
            Sent::Data(65536),
            Sent::Direct(1),
            Sent::Mapped,
            Sent::Credit,
            Sent::Control(Control::Disconnect),
            Sent::Control(Control::Shutdown),
        ] {
            assert_eq!(Sent::decode(sent.encode()), sent);
        }
    }
}

//! Messages of communication management (IBA chapter 12.6): their layout, reading and writing.
//!
//! Each message is a table of fields with their positions in bits, as the standard lists them;
//! [`Message`] is any of them, and [`Mad`] a whole datagram with its header. Bits that belong to no
//! field are reserved: written as zero and ignored when read.
//!
//! The RDMA-CM header, which is at the start of the private data of requests to a service that is a
//! port of an IP address, is [`CmaHeader`].

pub(crate) mod field;

mod cma;
mod messages;

use crate::mad::{
    BASE_VERSION, CLASS_CM, CLASS_CM_VERSION, DATA_LEN, HEADER_LEN, LEN, METHOD_SEND, MadHeader,
};

pub use cma::{CmaError, CmaHeader};
pub use messages::{Apr, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};

/// A communication id: names a connection at the side that chose it.
pub type CommId = u32;

/// Why bytes are not a message of communication management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MadError {
    /// Management datagrams have one length.
    #[error("{0} bytes are not a management datagram, which has {LEN}")]
    Length(usize),
    /// Another version of the header.
    #[error("version {0} of the management header")]
    BaseVersion(u8),
    /// Another class.
    #[error("management class {0:#x} has no agent")]
    Class(u8),
    /// Another version of the class.
    #[error("version {0} of communication management")]
    ClassVersion(u8),
    /// A method other than Send.
    #[error("method {0:#x} of communication management")]
    Method(u8),
    /// An attribute that names no message.
    #[error("attribute {0:#x} of communication management")]
    Attribute(u16),
}

macro_rules! messages {
    ($($name:ident)*) => {
        /// Any message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, clippy::exhaustive_enums, reason = "one per message of IBA 12.6")]
        pub enum Message {
            $($name($name),)*
        }

        impl Message {
            /// The attribute that names the kind of message.
            pub fn attr_id(&self) -> u16 {
                match self {
                    $(Self::$name(_) => $name::ATTR_ID,)*
                }
            }

            /// The bytes after the header.
            pub fn to_bytes(&self) -> [u8; DATA_LEN] {
                match self {
                    $(Self::$name(message) => message.to_bytes(),)*
                }
            }

            fn parse(attr_id: u16, data: &[u8; DATA_LEN]) -> Option<Self> {
                match attr_id {
                    $($name::ATTR_ID => Some(Self::$name($name::parse(data))),)*
                    _ => None,
                }
            }

            /// The name of the message.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $name::NAME,)*
                }
            }
        }

        $(
            impl From<$name> for Message {
                fn from(message: $name) -> Self {
                    Self::$name(message)
                }
            }
        )*
    };
}

messages! { Req Mra Rej Rep Rtu Dreq Drep SidrReq SidrRep Lap Apr }

/// A datagram of communication management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "all there is besides fixed fields")]
pub struct Mad {
    /// The transaction id, which the messages of one exchange share.
    pub tid: u64,
    /// In a REQ or a REP, options of the vendor that the message names; 0 in all others.
    pub attr_mod: u32,
    /// The message.
    pub message: Message,
}

impl Mad {
    /// A datagram without a vendor's options.
    pub fn new(tid: u64, message: impl Into<Message>) -> Self {
        Self { tid, attr_mod: 0, message: message.into() }
    }

    /// Reads a datagram.
    ///
    /// # Errors
    /// See [`MadError`]; the fields of the header are checked in their order.
    pub fn parse(bytes: &[u8]) -> Result<Self, MadError> {
        let whole: &[u8; LEN] = bytes.try_into().map_err(|_| MadError::Length(bytes.len()))?;
        let (header, data) = whole.split_first_chunk::<HEADER_LEN>().expect("256 are more than 24");
        let data: &[u8; DATA_LEN] = data.try_into().expect("256 less 24");
        let header = MadHeader::parse(header);
        if header.base_version != BASE_VERSION {
            return Err(MadError::BaseVersion(header.base_version));
        }
        if header.mgmt_class != CLASS_CM {
            return Err(MadError::Class(header.mgmt_class));
        }
        if header.class_version != CLASS_CM_VERSION {
            return Err(MadError::ClassVersion(header.class_version));
        }
        if header.method != METHOD_SEND {
            return Err(MadError::Method(header.method));
        }
        let message =
            Message::parse(header.attr_id, data).ok_or(MadError::Attribute(header.attr_id))?;
        Ok(Self { tid: header.tid, attr_mod: header.attr_mod, message })
    }

    /// The datagram's bytes.
    pub fn to_bytes(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let (header, data) = bytes.split_at_mut(HEADER_LEN);
        header.copy_from_slice(
            &MadHeader {
                attr_mod: self.attr_mod,
                ..MadHeader::cm(self.message.attr_id(), self.tid)
            }
            .to_bytes(),
        );
        data.copy_from_slice(&self.message.to_bytes());
        bytes
    }
}

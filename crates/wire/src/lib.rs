//! Packets of RoCEv2: their layout, reading and writing.
//!
//! A packet is a base transport header (BTH), the extension headers that its opcode has, a payload
//! padded to four bytes, and a CRC over everything that no router changes (ICRC). It travels in a
//! UDP datagram:
//!
//! ```text
//!  | IP | UDP | BTH | XRCETH DETH FETH RETH AtomicETH AETH AtomicAckETH ImmDt IETH | payload | pad | ICRC |
//!  '--- ip --''-bth-''-------- one module each; opcode::table says which ----------'                '-icrc-'
//!             '------------------------- Headers -----------------------------------'
//! ```
//!
//! Every header has two types: its layout in a packet with getters and setters (`RawBth`), and its
//! contents as a small value (`Bth`). [`Headers`] is all headers of one packet: the BTH as a value,
//! followed by the bytes of the extension headers that the opcode has, which are read and set one
//! by one.
//!
//! | module | what it knows |
//! |---|---|
//! | [`opcode`] | the one table of opcodes: service, operation, position, headers, payload |
//! | [`headers`] | all headers of a packet at once, and what can be wrong with them |
//! | [`bth`] ... [`ieth`] | one header each |
//! | [`sack`] | the header of peerdma's own selective acknowledgement |
//! | [`icrc`] | computing and checking the ICRC, without the IPv4 identification if need be |
//! | [`frame`] | Ethernet frames of raw packet QPs, as far as flow steering reads them |
//! | [`ip`], [`grh`] | what precedes the BTH on the wire, and a datagram's payload in a receive buffer |
//! | [`mad`], [`cm`] | management datagrams, and the messages of communication management in them |
//! | [`pretty`] | packets as lines of text |
//!
//! There are no sockets, no memory regions and no sequence numbers to keep here, and no decision
//! about a packet beyond whether it can be read. Parsing and writing do not allocate, and bytes
//! from a peer never cause a panic.
//!
//! # Sending and receiving
//!
//! ```
//! use iba::{Psn, Qpn};
//! use wire::icrc::{self, Flow, Icrc};
//! use wire::{Headers, ImmDt, Opcode, Operation, Position, Service, bth};
//!
//! // The sender: headers, payload, padding, ICRC.
//! let payload = b"hello";
//! let opcode = Opcode::new(Service::Rc, Operation::SendWithImm, Position::Only).unwrap();
//! let mut headers = Headers::new(opcode, Qpn::new(0x11), Psn::new(0x1000));
//! headers.set_imm_dt(ImmDt { data: 42 });
//! headers.bth.pad = bth::pad_for(payload.len());
//!
//! let mut datagram = vec![0; headers.len()];
//! headers.emit(&mut datagram);
//! let len = headers.len() + payload.len() + usize::from(headers.bth.pad);
//! let flow = Flow::new("10.9.0.1:49152".parse()?, "10.9.0.2:4791".parse()?).unwrap();
//! let mut icrc = Icrc::new(&flow, 0, len, &datagram);
//! for part in [payload.as_slice(), &[0; 3]] {
//!     icrc.update(part);
//!     datagram.extend(part);
//! }
//! datagram.extend(icrc.finish().to_le_bytes());
//!
//! // The receiver.
//! let (packet, id) = icrc::verify(&flow, &datagram)?;
//! let (received, range) = Headers::parse(packet)?;
//! assert_eq!((received, &packet[range], id), (headers, payload.as_slice(), 0));
//! assert!(received.bth.opcode.is_request() && received.bth.opcode.ends_message());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod bits;

pub mod aeth;
pub mod atomic_ack_eth;
pub mod atomic_eth;
pub mod bth;
pub mod cm;
pub mod deth;
pub mod feth;
pub mod frame;
pub mod grh;
pub mod headers;
pub mod icrc;
pub mod ieth;
pub mod imm_dt;
pub mod ip;
pub mod mad;
pub mod opcode;
pub mod pretty;
pub mod reth;
pub mod sack;
pub mod xrceth;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic_ack_eth::AtomicAckEth;
pub use atomic_eth::AtomicEth;
pub use bth::Bth;
pub use deth::Deth;
pub use feth::{Feth, Selectivity};
pub use grh::Grh;
pub use headers::{Headers, ParseError};
pub use icrc::{Flow, Icrc, IcrcError, IdSpan};
pub use ieth::Ieth;
pub use imm_dt::ImmDt;
pub use opcode::{Ext, Opcode, Operation, PayloadRule, Position, Service};
pub use reth::Reth;
pub use sack::{Sack, SackRange};
pub use xrceth::{Srqn, Xrceth};

//! The `libibverbs.so.1` of the system as owned objects: real NICs, `rdma_rxe`, or any library with
//! its interface.
//!
//! The library is found at run time ([`Library::open`]), its functions by name and version, so
//! nothing here needs a header or a library to build, and a program starts on a machine that has
//! none. What the header defines inline, a call through a pointer in the context, is the same call
//! here.
//!
//! ```text
//!   Library -> Device -> Context -> Pd -> Mr, Qp, Srq, Ah, Mw
//!                            \----> Channel -> Cq       each holds the one it was made from
//!                             \---> Dm, CompCntr
//!                              \--> Xrcd -> XrcRecvQp
//!           \-> CmLibrary -> CmChannel -> CmId             its librdmacm
//! ```
//!
//! A provider trusts its caller. What it need not check is checked here, or cannot be expressed:
//!
//! * Objects are destroyed by the last clone, after all that was made from them.
//! * Memory of a region is given back only after `ibv_dereg_mr` succeeded; if it failed, the NIC
//!   may still reach the memory, which then stays for the life of the process.
//! * An address handle lives as long as a request that names it can be in the send queue.
//! * An event is acknowledged when it is taken: no destructor waits for one.
//! * Operation and type of QP, the number of elements and the length of inline data are compared
//!   with what the QP was created for.
//!
//! Only [`Pd::reg_raw`] and [`Pd::reg_owned`] are unsafe: they register memory by its address.
//!
//! The numbers of errors are the library's ([`Error::errno`]). It gives no reasons in words.
#![expect(unsafe_code, reason = "calls of C")]

mod advise;
mod ah;
mod attr;
mod calls;
mod cm;
mod comp_cntr;
mod context;
mod cq;
mod device;
mod dm;
mod ece;
mod error;
mod handle;
mod library;
mod mr;
mod mw;
mod pd;
mod post;
mod qp;
mod queue;
mod srq;
mod timed;
mod xrc;

pub use ah::Ah;
pub use cm::{
    CmChannel, CmEvent, CmEventKind, CmId, CmLibrary, CmOption, ConnParam, PortSpace, Said, UdSaid,
};
pub use comp_cntr::CompCntr;
pub use context::{AsyncEvent, AttrOfDevice, AttrOfPort, Context, GidEntry, Limits, Source};
pub use cq::{Channel, Cq, Wc};
pub use device::Device;
pub use dm::Dm;
pub use ece::Ece;
pub use error::{Error, Result};
pub use handle::LoadError;
pub use library::Library;
pub use mr::Mr;
pub use mw::Mw;
pub use pd::Pd;
pub use qp::{Qp, QpInit};
pub use queue::QueueId;
pub use srq::Srq;
pub use timed::Clock;
pub use xrc::{XrcRecvQp, Xrcd};

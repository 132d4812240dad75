//! Safe verbs: RDMA objects whose lifetimes the library manages.
//!
//! Every object holds the one it was made from, so nothing can be used after it is gone, whatever
//! the order in which a program drops them: a [`Qp`] keeps its [`Cq`]s, its [`Pd`] and its
//! [`Context`]; an [`Mr`] keeps its memory. Nothing is a C type, and nothing is `unsafe` to call but
//! [`Pd::reg_raw_mr`], for memory that the program answers for.
//!
//! Memory that a peer may write at any moment is never a Rust slice: it is a [`HostBuf`], a [`Dm`],
//! a dma-buf or [`owned::Shared`], read and written by copying. Memory that only requests of this
//! side use is an [`owned::Buffer`], a slice while no request has it. [`aio`] has requests as
//! futures.
//!
//! ```no_run
//! use verbs::{Access, HostBuf, QpSpec, SendRequest};
//!
//! # fn exchange(here: verbs::Endpoint) -> verbs::Endpoint { here }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = verbs::devices()?[0].open()?;
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(16)?;
//! let buffer = HostBuf::anonymous(4096)?;
//! let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE)?;
//! let qp = pd.create_qp(&QpSpec::rc(&cq))?;
//!
//! let peer = exchange(qp.endpoint()?); // over a socket or in any other way
//! qp.connect(&peer)?;
//! buffer.write(0, b"hello")?;
//! qp.post_send(&SendRequest::send(1, &[mr.slice(0, 5)]).signaled())?;
//! assert!(cq.wait()?.is_success());
//! # Ok(()) }
//! ```
//!
//! # Two providers
//!
//! A [`Device`] is a software NIC in this process, or one of the system's `libibverbs.so.1`: a real
//! NIC, `rdma_rxe`. The types are the same, and a program need not know which it has. The library
//! is looked for at run time; nothing is linked. The variable `PEERDMA_PROVIDER` picks: `soft`,
//! `system`, or the path of a library. What only the software device has is
//! the module [`soft`]. What a library or its NIC does not have is refused before anything is
//! called, as [`Kind::NotSupported`] or [`PostError::Absent`]: XRC, FLUSH and ATOMIC WRITE of many,
//! completion counters and dma-bufs of device memory of most. A library refuses with a number and
//! no reason; the number is in the text.
//!
//! | C | here |
//! |---|---|
//! | `ibv_get_device_list`, `ibv_open_device` | [`devices`], [`Device::open`] |
//! | `ibv_alloc_pd`, `ibv_create_cq`, `ibv_create_qp`, ... | [`Context::alloc_pd`], [`Context::create_cq`], [`Pd::create_qp`], ... |
//! | `ibv_modify_qp` | [`Qp::connect`] and [`Qp::connect_with`] for the usual case, [`Qp::modify`] for any other |
//! | `ibv_create_comp_cntr`, `ibv_qp_attach_comp_cntr` | [`Context::create_comp_cntr`], [`Qp::attach_comp_cntr`] |
//! | `ibv_post_send`, `ibv_poll_cq` | [`Qp::post_send`], [`Cq::poll`], [`Cq::wait`]; many at once: [`Qp::post_sends`], [`Cq::poll_many`] |
//! | `ibv_alloc_mw`, `ibv_bind_mw` | [`Mr::window`], [`SendRequest::bind`] |
//! | `ibv_get_async_event` | [`Context::async_event`], [`Context::async_events`] |
//! | `ibv_modify_srq` | [`Srq::arm`], [`Srq::resize`] |
//! | `ibv_advise_mr` | [`Pd::advise`] |
//! | `ibv_query_ece`, `ibv_set_ece` | [`Qp::query_ece`], [`Qp::set_ece`] |
//! | `ibv_open_xrcd`, `ibv_create_srq_ex`, `ibv_create_qp_ex` | [`Context::open_xrcd`], [`Pd::create_xrc_srq`], [`Xrcd::create_recv_qp`], [`QpSpec::xrc_send`] |
//! | `rdma_create_id`, `rdma_listen`, `rdma_connect`, ... | the module [`cm`] |

mod advise;
mod ah;
pub mod aio;
mod arm;
mod async_events;
mod attr;
pub mod cm;
mod comp_cntr;
mod connect;
mod context;
mod cq;
mod ece;
mod endpoint;
mod events;
mod memory;
pub mod owned;
mod post;
mod provider;
mod qp;
mod request;
mod slots;
pub mod soft;
mod srq;
mod wait;
mod window;
mod xrc;

pub use ah::Ah;
pub use async_events::AsyncEvents;
pub use comp_cntr::CompCntr;
pub use connect::DEFAULT_QKEY;
pub use context::{Context, Device, Pd, devices};
pub use cq::{Clock, Cq, Wc};
pub use device::{
    CompCntrEntry, CompCntrType, DeviceAttr, GidEntry, Kind, MrAdvice, PortAttr, Refusal,
};
pub use dmabuf::{DmaBuf, Mapping};
pub use ece::Ece;
pub use endpoint::{ConnectOptions, Endpoint};
pub use events::AsyncEvent;
pub use iba::{
    Access, AckTimeout, AttrMask, Av, CompCntrOps, EventType, Gid, Mtu, Psn, QpAttr, QpCap,
    QpState, QpType, Qpn, RKey, RnrTimer, Srqn, WcOpcode, WcStatus, WrOpcode,
};
pub use memory::{Dm, Mr, Remote, Slice};
pub use post::BadRequest;
pub use qp::{PostError, Qp, QpSpec};
pub use request::SendRequest;
pub use srq::Srq;
pub use transport::env::Reason;
pub use transport::wr::Flush;
pub use umem::HostBuf;
pub use window::Mw;
pub use xrc::{XrcRecvQp, Xrcd};

/// What a refused call returns: what was refused, by which call, and under which rule.
pub type Result<T> = std::result::Result<T, Refusal>;

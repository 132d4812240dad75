//! The connection manager: `librdmacm.so.1`, which is this library under another name.
//!
//! In Linux an identifier exists twice: in librdmacm, and in the kernel's `ucma` and `cma`, where
//! it has states, a device and an endpoint of InfiniBand's CM. Here both are one object, the
//! [`endpoint::Endpoint`] behind a C `rdma_cm_id`:
//!
//! ```text
//!    rdma_connect(id)                           rdma_get_cm_event(channel)
//!         |  connect: checks, QP attributes          ^  event: librdmacm's part, before a program
//!         v                                          |         sees it (QP to RTS, new ids, ...)
//!    endpoint: state, device, addresses         channel: entries behind a descriptor
//!         |  Engine::cm_connect                      ^  endpoint's post box: called with the
//!         v                                          |         engine locked
//!       device::rdma_cm ------------- events -------------+
//! ```
//!
//! Each file uses only those below it, and those to its right:
//!
//! ```text
//!   ep                                        several calls in one
//!    |
//!   option, addr, resolve, connect, mcast     the calls
//!    |
//!   sync                                      the wait for the event of a call
//!    |
//!   event                                     what the program sees of an event
//!    |
//!   srq, qp, id_qp                            the QP of an identifier
//!    |
//!   id                                        identifiers as C has them
//!    |
//!   held_event, given_event, event_channel    events and channels as C has them
//!    |
//!   handshake, qp_state                       connections and their QPs, without C
//!    |
//!   endpoint                                  from the engine to a channel
//!    |
//!   state, join, channel                      what an endpoint holds
//! ```
//!
//! rsockets have endpoints without a C structure ([`handle`]), and objects of the verbs that go
//! with their values ([`objects`]).
//!
//! # Locks
//!
//! In the order in which they may be taken: the endpoint's `inner` (what a call of the program
//! changes), the engine, the endpoint's `delivery` (where its events go), the queue of a channel.
//! Events are delivered with the engine locked, so that delivery takes only the last two.
//!
//! # What is left out
//!
//! `AF_IB`: addresses of InfiniBand need a subnet and its administration, of which RoCE has none.
//! `RDMA_PS_IPOIB` takes the Q_Key of a group of IPoIB from there (`cma_set_default_qkey` of the
//! kernel) and is refused, too.

use std::ffi::c_int;
use std::fmt::Display;

use device::Refusal;

use super::boundary::control;
use super::errno;

pub(crate) mod addr;
pub(crate) mod addrinfo;
pub(in crate::abi) mod bell;
mod channel;
pub(crate) mod connect;
pub(crate) mod devices;
mod endpoint;
pub(crate) mod ep;
pub(crate) mod event;
pub(crate) mod event_channel;
pub(crate) mod given_event;
pub(in crate::abi) mod handle;
mod handshake;
mod held_event;
pub(crate) mod id;
pub(crate) mod id_qp;
mod join;
pub(crate) mod mcast;
mod nic;
pub(in crate::abi) mod objects;
pub(crate) mod option;
mod path;
pub(crate) mod qp;
mod qp_state;
mod reach;
pub(crate) mod resolve;
pub(in crate::abi) mod sockaddr;
pub(crate) mod srq;
mod state;
mod sync;

pub(in crate::abi) use nic::watch_forks;

/// Why a call fails: an errno, whose reason was logged where it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(c_int);

/// The result of most calls.
pub(crate) type Answer<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure for the reason `what`, which `PEERDMA_LOG` shows.
    pub(crate) fn new(errno: c_int, what: impl Display) -> Self {
        tracing::info!(target: "peerdma::refusal", errno, "{what}");
        Self(errno)
    }

    /// A failure that needs no log line: there is nothing yet, or a signal came.
    pub(crate) const fn quiet(errno: c_int) -> Self {
        Self(errno)
    }

    /// The errno that is set, of a call below that set it.
    pub(crate) fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// The errno.
    pub(crate) const fn errno(self) -> c_int {
        self.0
    }

    /// The same as the status of an event (`rdma_cm(7)`): negative.
    pub(crate) const fn status(self) -> c_int {
        -self.0
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self(errno::of(refusal.kind()))
    }
}

/// A verb's errno as an answer.
pub(crate) fn verb(errno: c_int) -> Answer {
    if errno == 0 { Ok(()) } else { Err(Failure(errno)) }
}

/// Runs a call that returns 0, or -1 with errno.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Answer) -> c_int {
    control(name, -1, || match body() {
        Ok(()) => 0,
        Err(failure) => {
            errno::set(failure.errno());
            -1
        }
    })
}

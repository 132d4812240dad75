//! The connection manager: `librdmacm.so.1`, which is this library under another name.
//!
//! In Linux an identifier lives twice: in librdmacm, and in the kernel's `ucma` and `cma`, where it
//! has states, a device and an endpoint of InfiniBand's CM. Here both are one object, the
//! [`endpoint::Endpoint`] behind a C `rdma_cm_id`:
//!
//! ```text
//!    rdma_connect(id)                                    rdma_get_cm_event(channel)
//!         |  connect: checks, QP attributes                   ^  event: what librdmacm does with an event before
//!         v                                                   |         a program sees it (QP to RTS, new ids, ...)
//!    endpoint: state, device, addresses                  channel: entries behind a descriptor
//!         |  Engine::cm_connect                               ^  endpoint's post box: called with the engine locked
//!         v                                                   |
//!       device::cm ------------------ events -----------------+
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
pub(in crate::abi) mod bell;
pub(crate) mod channel;
pub(crate) mod connect;
pub(crate) mod devices;
mod endpoint;
pub(crate) mod ep;
pub(crate) mod event;
pub(in crate::abi) mod handle;
pub(crate) mod id;
pub(crate) mod info;
pub(crate) mod mcast;
mod nic;
pub(in crate::abi) mod objects;
pub(crate) mod option;
mod path;
pub(crate) mod qp;
mod qp_state;
mod reach;
pub(in crate::abi) mod sockaddr;
pub(crate) mod srq;

/// Why a call fails: an errno, whose reason was logged where it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(c_int);

/// What most calls come to.
pub(crate) type Answer<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure for the reason `what`, which `PEERDMA_LOG` shows.
    pub(crate) fn new(errno: c_int, what: impl Display) -> Self {
        tracing::info!(target: "peerdma::refusal", errno, "{what}");
        Self(errno)
    }

    /// A failure that is none: there is nothing yet, or a signal came.
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

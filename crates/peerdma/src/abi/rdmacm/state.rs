//! The state of an identifier: what calls of the program change, behind the endpoint's lock.

use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;

use device::rdma_cm::{self, BindOptions, CmId as EndId, Ece, PortSpace};
use iba::QpType;

use super::join::Join;
use super::nic::Nic;
use super::{Answer, Failure};
use crate::abi::types::CEnum;
use crate::abi::types::pd::Pd;
use crate::abi::types::qp::QpInitAttr;
use crate::abi::types::rdma::{AddrInfo, SaPathRec, port_space};

/// What an identifier can do next (kernel: `enum rdma_cm_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Bound,
    AddrQuery,
    AddrResolved,
    RouteResolved,
    /// From `rdma_connect`, or from the request, until the identifier is destroyed.
    Connecting,
    Listening,
}

/// An endpoint in the engine of one NIC. A wildcard has one on each NIC.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) nic: Arc<Nic>,
    pub(super) id: EndId,
}

/// What calls of the program change.
pub(super) struct Inner {
    pub(super) state: State,
    /// The program was told that the connection failed, and is told no more.
    pub(super) has_failed: bool,
    pub(super) port_space: CEnum,
    pub(super) qp_type: CEnum,
    /// The NIC it is bound to: by an address, by resolving one, or by a request.
    pub(super) nic: Option<Arc<Nic>>,
    pub(super) ends: Vec<End>,
    pub(super) route: Route,
    pub(super) options: Options,
    pub(super) terms: Terms,
    pub(super) face: Face,
}

/// Its two addresses, and the path from one to the other.
#[derive(Default)]
pub(super) struct Route {
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) path: Option<rdma_cm::Path>,
}

/// What `rdma_set_option` sets.
#[derive(Default)]
pub(super) struct Options {
    pub(super) bind: BindOptions,
    pub(super) tos: Option<u8>,
    pub(super) ack_timeout: Option<u8>,
}

/// The terms of the connection that it offers to its peer, and those of the peer.
#[derive(Default)]
pub(super) struct Terms {
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    /// Vendor and options.
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
    /// Private data that `rdma_getaddrinfo` found and every connection begins with.
    pub(super) connect_data: Vec<u8>,
}

/// What only an identifier of C has.
pub(super) struct Face {
    /// The domain that the identifiers of the NIC share.
    pub(super) pd: *mut Pd,
    /// The path, at an address that stays.
    pub(super) path_rec: Option<Box<SaPathRec>>,
    /// How the QPs of requests are made (`rdma_create_ep(3)`).
    pub(super) ep_attr: Option<QpInitAttr>,
    /// Its channel is its own, and calls wait for their events.
    pub(super) is_sync: bool,
    pub(super) joins: Vec<Arc<Join>>,
    pub(super) names: Names,
}

/// Where `rdma_resolve_addrinfo` is.
#[derive(Clone, Copy)]
pub(super) enum Names {
    None,
    Asked,
    Found(*mut AddrInfo),
}

impl Inner {
    /// The state of a new identifier.
    pub(super) fn new(port_space: CEnum, qp_type: CEnum) -> Self {
        Self {
            state: State::Idle,
            has_failed: false,
            port_space,
            qp_type,
            nic: None,
            ends: Vec::new(),
            route: Route::default(),
            options: Options::default(),
            terms: Terms::default(),
            face: Face {
                pd: ptr::null_mut(),
                path_rec: None,
                ep_attr: None,
                is_sync: false,
                joins: Vec::new(),
                names: Names::None,
            },
        }
    }

    /// The space of its ports.
    ///
    /// # Errors
    /// EPROTONOSUPPORT for the space of IPoIB and for those that are none, as of `cma_get_port` of
    /// the kernel.
    pub(super) fn port_space(&self) -> Answer<PortSpace> {
        let name =
            if self.port_space == port_space::IPOIB { "RDMA_PS_IPOIB" } else { "port space" };
        PortSpace::from_code(self.port_space).ok_or_else(|| {
            let code = self.port_space;
            Failure::new(
                libc::EPROTONOSUPPORT,
                format!("{name} ({code:#x}): there are RDMA_PS_TCP, RDMA_PS_UDP and RDMA_PS_IB"),
            )
        })
    }

    /// Its endpoint, if it is bound to a NIC.
    ///
    /// # Errors
    /// EINVAL, as of the kernel, for an identifier without one.
    pub(super) fn end(&self, call: &str) -> Answer<End> {
        self.ends.first().filter(|_| self.nic.is_some()).cloned().ok_or_else(|| {
            Failure::new(libc::EINVAL, format!("{call}: the identifier has no device"))
        })
    }

    /// Checks that it is in one of `states`.
    ///
    /// # Errors
    /// EINVAL, as of the kernel.
    pub(super) fn expect(&self, call: &str, states: &[State]) -> Answer {
        if states.contains(&self.state) {
            return Ok(());
        }
        let state = self.state;
        Err(Failure::new(
            libc::EINVAL,
            format!("{call}: the identifier is {state:?}, not {states:?}"),
        ))
    }

    /// Whether it is of datagrams.
    pub(super) fn is_ud(&self) -> bool {
        self.qp_type == QpType::Ud as u32
    }

    /// Binds it to a NIC.
    pub(super) fn hold(&mut self, nic: &Arc<Nic>) -> Answer {
        if self.nic.is_none() {
            self.face.pd = nic.hold()?;
            self.nic = Some(Arc::clone(nic));
        }
        Ok(())
    }

    /// Destroys its endpoints.
    pub(super) fn drop_ends(&mut self) {
        for end in self.ends.drain(..) {
            destroy(&end);
        }
    }
}

/// Destroys an endpoint: a request is refused, a connection ended.
pub(super) fn destroy(end: &End) {
    // A NIC that failed, or that is the parent's, has nothing to destroy.
    let _ = end.nic.hca.lock().cm_destroy(end.id);
}

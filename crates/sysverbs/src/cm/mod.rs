//! Connections by address: the `librdmacm.so.1` that belongs to a `libibverbs.so.1`.
//!
//! An identifier has no QP as far as the library knows. Its user makes the QP on a context of their
//! own, moves it with the attributes that [`CmId::qp_attr`] gives, and passes its number; so nothing
//! here refers to the contexts that librdmacm opens for itself.
//!
//! What an identifier points to changes when it moves to another channel and when the library takes
//! an event of it. A mutex of the identifier is held in every call of it, and one of the channel
//! while an event is taken, copied and acknowledged.

mod channel;
mod event;
mod id;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use libc::{size_t, sockaddr};
use verbs_abi::CEnum;
use verbs_abi::qp::QpAttr;
use verbs_abi::rdma::{self, EventChannel, JoinMcAttrEx};

pub use channel::CmChannel;
pub use event::{CmEvent, CmEventKind, Said, UdSaid};
pub use id::{CmId, CmOption, ConnParam, PortSpace};

use crate::handle::{Handle, functions};
use crate::library::LoadError;
use id::Inner;

/// The name by which the system's loader finds it.
const NAME: &str = "librdmacm.so.1";

functions! {
    /// The functions of librdmacm.
    pub(crate) struct Functions {
        always {
            rdma_create_event_channel, "RDMACM_1.0": fn() -> *mut EventChannel;
            rdma_destroy_event_channel, "RDMACM_1.0": fn(*mut EventChannel);
            rdma_create_id, "RDMACM_1.0":
                fn(*mut EventChannel, *mut *mut rdma::CmId, *mut c_void, CEnum) -> c_int;
            rdma_destroy_id, "RDMACM_1.0": fn(*mut rdma::CmId) -> c_int;
            rdma_migrate_id, "RDMACM_1.0": fn(*mut rdma::CmId, *mut EventChannel) -> c_int;
            rdma_bind_addr, "RDMACM_1.0": fn(*mut rdma::CmId, *mut sockaddr) -> c_int;
            rdma_resolve_addr, "RDMACM_1.0":
                fn(*mut rdma::CmId, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
            rdma_resolve_route, "RDMACM_1.0": fn(*mut rdma::CmId, c_int) -> c_int;
            rdma_listen, "RDMACM_1.0": fn(*mut rdma::CmId, c_int) -> c_int;
            rdma_connect, "RDMACM_1.0": fn(*mut rdma::CmId, *mut rdma::ConnParam) -> c_int;
            rdma_accept, "RDMACM_1.0": fn(*mut rdma::CmId, *mut rdma::ConnParam) -> c_int;
            rdma_reject, "RDMACM_1.0": fn(*mut rdma::CmId, *const c_void, u8) -> c_int;
            rdma_disconnect, "RDMACM_1.0": fn(*mut rdma::CmId) -> c_int;
            rdma_notify, "RDMACM_1.0": fn(*mut rdma::CmId, CEnum) -> c_int;
            rdma_set_option, "RDMACM_1.0":
                fn(*mut rdma::CmId, c_int, c_int, *mut c_void, size_t) -> c_int;
            rdma_join_multicast, "RDMACM_1.0":
                fn(*mut rdma::CmId, *mut sockaddr, *mut c_void) -> c_int;
            rdma_leave_multicast, "RDMACM_1.0": fn(*mut rdma::CmId, *mut sockaddr) -> c_int;
            rdma_get_cm_event, "RDMACM_1.0":
                fn(*mut EventChannel, *mut *mut rdma::CmEvent) -> c_int;
            rdma_ack_cm_event, "RDMACM_1.0": fn(*mut rdma::CmEvent) -> c_int;
            rdma_init_qp_attr, "RDMACM_1.2":
                fn(*mut rdma::CmId, *mut QpAttr, *mut c_int) -> c_int;
            rdma_establish, "RDMACM_1.2": fn(*mut rdma::CmId) -> c_int;
        }
        later {
            rdma_join_multicast_ex, "RDMACM_1.1":
                fn(*mut rdma::CmId, *mut JoinMcAttrEx, *mut c_void) -> c_int;
            rdma_reject_ece, "RDMACM_1.3": fn(*mut rdma::CmId, *const c_void, u8) -> c_int;
        }
    }
}

/// The connection manager of a library, for the life of the process.
#[derive(Debug)]
pub struct CmLibrary {
    functions: Functions,
    /// The identifiers by the addresses of their C structures, which is what events name.
    ids: Mutex<BTreeMap<usize, Weak<Inner>>>,
}

impl CmLibrary {
    /// The one that belongs to a library of verbs.
    pub(crate) fn of(verbs: &Handle, path: &Path) -> Result<Self, LoadError> {
        if verbs.has(c"rdma_create_event_channel") {
            return Self::find(verbs);
        }
        let beside = path.parent().map(|directory| directory.join(NAME));
        let beside = beside.filter(|_| path.is_absolute()).filter(|beside| beside.exists());
        Self::find(&Handle::open(beside.as_deref().unwrap_or(Path::new(NAME)))?)
    }

    fn find(handle: &Handle) -> Result<Self, LoadError> {
        Ok(Self { functions: Functions::find(handle)?, ids: Mutex::default() })
    }

    fn ids(&self) -> MutexGuard<'_, BTreeMap<usize, Weak<Inner>>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

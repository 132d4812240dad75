//! The library itself: its functions, and the identifiers that it knows.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use libc::{size_t, sockaddr};
use verbs_abi::CEnum;
use verbs_abi::qp::QpAttr;
use verbs_abi::rdma::{self, EventChannel, JoinMcAttrEx};

use crate::handle::{Handle, LoadError, functions};
use crate::library::Library;

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

/// An identifier; `id` knows what it is.
pub(super) type AnyId = Weak<dyn Any + Send + Sync>;

/// The connection manager of a library, for the life of the process.
#[derive(Debug)]
pub struct CmLibrary {
    pub(super) functions: Functions,
    /// The identifiers by the addresses of their C structures, which is what events name.
    ids: Mutex<BTreeMap<usize, AnyId>>,
}

impl Library {
    /// The `librdmacm.so.1` that belongs to it: itself, if it has that library's functions, too;
    /// the one beside it; or the one that the system's loader finds.
    ///
    /// # Errors
    ///
    /// There is none, or one that lacks a function: rdma-core before version 23, of 2019.
    pub fn connections(&'static self) -> Result<&'static CmLibrary, LoadError> {
        type Found = Result<&'static CmLibrary, LoadError>;
        static FOUND: Mutex<BTreeMap<PathBuf, Found>> = Mutex::new(BTreeMap::new());
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || CmLibrary::of(self.handle(), self.path()).map(Box::new).map(Box::leak);
        let find = || find().map(|library| &*library);
        found.entry(self.path().to_owned()).or_insert_with(find).clone()
    }
}

impl CmLibrary {
    /// The one that belongs to a library of verbs.
    fn of(verbs: &Handle, path: &Path) -> Result<Self, LoadError> {
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

    pub(super) fn ids(&self) -> MutexGuard<'_, BTreeMap<usize, AnyId>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

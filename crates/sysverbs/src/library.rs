//! The library itself: found by `dlopen`, its functions by `dlvsym`.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libc::{size_t, ssize_t};
use verbs_abi::ah::{Ah, AhAttr};
use verbs_abi::comp_cntr::{CompCntr, CompCntrCaps, CompCntrInitAttr, QpAttachCompCntrAttr};
use verbs_abi::context::Context;
use verbs_abi::cq::{CompChannel, Cq};
use verbs_abi::device::{Device, DeviceAttr, Gid, GidEntry, PortAttr};
use verbs_abi::dm::Dm;
use verbs_abi::event::AsyncEvent;
use verbs_abi::mr::Mr;
use verbs_abi::pd::Pd;
use verbs_abi::qp::{Ece, Qp, QpAttr, QpEx, QpInitAttr};
use verbs_abi::srq::{Srq, SrqAttr, SrqInitAttr};

use crate::handle::{Handle, LoadError, functions};

/// The name by which the system's loader finds it.
const NAME: &str = "libibverbs.so.1";

functions! {
    /// The functions of the library that are symbols.
    pub(crate) struct Functions {
        always {
            ibv_get_device_list, "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut Device;
            ibv_free_device_list, "IBVERBS_1.1": fn(*mut *mut Device);
            ibv_get_device_guid, "IBVERBS_1.1": fn(*mut Device) -> u64;
            ibv_open_device, "IBVERBS_1.1": fn(*mut Device) -> *mut Context;
            ibv_close_device, "IBVERBS_1.1": fn(*mut Context) -> c_int;
            ibv_query_device, "IBVERBS_1.1": fn(*mut Context, *mut DeviceAttr) -> c_int;
            ibv_query_port, "IBVERBS_1.1": fn(*mut Context, u8, *mut PortAttr) -> c_int;
            ibv_query_gid, "IBVERBS_1.1": fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
            ibv_get_async_event, "IBVERBS_1.1": fn(*mut Context, *mut AsyncEvent) -> c_int;
            ibv_ack_async_event, "IBVERBS_1.1": fn(*mut AsyncEvent);
            ibv_alloc_pd, "IBVERBS_1.1": fn(*mut Context) -> *mut Pd;
            ibv_dealloc_pd, "IBVERBS_1.1": fn(*mut Pd) -> c_int;
            ibv_reg_mr, "IBVERBS_1.1": fn(*mut Pd, *mut c_void, size_t, c_int) -> *mut Mr;
            ibv_dereg_mr, "IBVERBS_1.1": fn(*mut Mr) -> c_int;
            ibv_create_comp_channel, "IBVERBS_1.0": fn(*mut Context) -> *mut CompChannel;
            ibv_destroy_comp_channel, "IBVERBS_1.0": fn(*mut CompChannel) -> c_int;
            ibv_create_cq, "IBVERBS_1.1":
                fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
            ibv_destroy_cq, "IBVERBS_1.1": fn(*mut Cq) -> c_int;
            ibv_get_cq_event, "IBVERBS_1.1":
                fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
            ibv_ack_cq_events, "IBVERBS_1.1": fn(*mut Cq, c_uint);
            ibv_create_srq, "IBVERBS_1.1": fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
            ibv_modify_srq, "IBVERBS_1.1": fn(*mut Srq, *mut SrqAttr, c_int) -> c_int;
            ibv_destroy_srq, "IBVERBS_1.1": fn(*mut Srq) -> c_int;
            ibv_create_qp, "IBVERBS_1.1": fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
            ibv_modify_qp, "IBVERBS_1.1": fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
            ibv_query_qp, "IBVERBS_1.1": fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
            ibv_destroy_qp, "IBVERBS_1.1": fn(*mut Qp) -> c_int;
            ibv_create_ah, "IBVERBS_1.1": fn(*mut Pd, *mut AhAttr) -> *mut Ah;
            ibv_destroy_ah, "IBVERBS_1.1": fn(*mut Ah) -> c_int;
            ibv_attach_mcast, "IBVERBS_1.1": fn(*mut Qp, *const Gid, u16) -> c_int;
            ibv_detach_mcast, "IBVERBS_1.1": fn(*mut Qp, *const Gid, u16) -> c_int;
        }
        later {
            ibv_reg_mr_iova2, "IBVERBS_1.8":
                fn(*mut Pd, *mut c_void, size_t, u64, c_uint) -> *mut Mr;
            ibv_qp_to_qp_ex, "IBVERBS_1.6": fn(*mut Qp) -> *mut QpEx;
            ibv_query_ece, "IBVERBS_1.10": fn(*mut Qp, *mut Ece) -> c_int;
            ibv_set_ece, "IBVERBS_1.10": fn(*mut Qp, *mut Ece) -> c_int;
            _ibv_query_gid_table, "IBVERBS_1.11":
                fn(*mut Context, *mut GidEntry, size_t, u32, size_t) -> ssize_t;
            ibv_reg_dmabuf_mr, "IBVERBS_1.12": fn(*mut Pd, u64, size_t, u64, c_int, c_int) -> *mut Mr;
            ibv_dm_export_dmabuf_fd, "IBVERBS_1.16": fn(*mut Dm) -> c_int;
            _ibv_query_comp_cntr_caps, "IBVERBS_1.18":
                fn(*mut Context, *mut CompCntrCaps, size_t) -> c_int;
            ibv_create_comp_cntr, "IBVERBS_1.18":
                fn(*mut Context, *mut CompCntrInitAttr) -> *mut CompCntr;
            ibv_destroy_comp_cntr, "IBVERBS_1.18": fn(*mut CompCntr) -> c_int;
            ibv_read_comp_cntr, "IBVERBS_1.18": fn(*mut CompCntr, *mut u64) -> c_int;
            ibv_read_err_comp_cntr, "IBVERBS_1.18": fn(*mut CompCntr, *mut u64) -> c_int;
            ibv_set_comp_cntr, "IBVERBS_1.18": fn(*mut CompCntr, u64) -> c_int;
            ibv_set_err_comp_cntr, "IBVERBS_1.18": fn(*mut CompCntr, u64) -> c_int;
            ibv_inc_comp_cntr, "IBVERBS_1.18": fn(*mut CompCntr, u64) -> c_int;
            ibv_inc_err_comp_cntr, "IBVERBS_1.18": fn(*mut CompCntr, u64) -> c_int;
            ibv_qp_attach_comp_cntr, "IBVERBS_1.18":
                fn(*mut Qp, *mut CompCntr, *mut QpAttachCompCntrAttr) -> c_int;
        }
    }
}

/// A library that is loaded, for the life of the process.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    handle: Handle,
    pub(crate) functions: Functions,
}

impl Library {
    /// The library at a path, or the one that the system's loader finds as `libibverbs.so.1`. It is
    /// loaded once, by whichever call comes first, and stays.
    ///
    /// # Errors
    ///
    /// There is none, or one that lacks a function: rdma-core before version 17, of 2018.
    pub fn open(path: Option<&Path>) -> Result<&'static Self, LoadError> {
        static LOADED: Mutex<BTreeMap<PathBuf, &'static Library>> = Mutex::new(BTreeMap::new());
        let path = path.unwrap_or(Path::new(NAME)).to_owned();
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = loaded.get(&path) {
            return Ok(library);
        }
        let handle = Handle::open(&path)?;
        let functions = Functions::find(&handle)?;
        let library = Self { path: path.clone(), handle, functions };
        let library: &'static Self = Box::leak(Box::new(library));
        loaded.insert(path, library);
        Ok(library)
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it has a symbol of this name, in any version.
    pub fn has_symbol(&self, name: &CStr) -> bool {
        self.handle.has(name)
    }

    /// Its symbols.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_does_not_exist_is_refused_in_words() {
        let path = Path::new("/nonexistent/libibverbs.so.1");
        let error = Library::open(Some(path)).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/libibverbs.so.1"), "{error}");
    }

    #[test]
    fn a_library_without_verbs_is_refused() {
        let error = Library::open(Some(Path::new("libc.so.6"))).unwrap_err();
        let LoadError::Symbol { symbol, version, .. } = error else { panic!("{error}") };
        assert_eq!((&*symbol, &*version), ("ibv_get_device_list", "IBVERBS_1.1"));
    }
}

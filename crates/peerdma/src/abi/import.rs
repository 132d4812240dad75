//! A second context for an open device: `ibv_import_device` and what can be done with its context.
//!
//! A context has a descriptor that stands for the device being open (`cmd_fd`). A program with a
//! duplicate of it can import the device, and the objects of the first context by their handles.
//! Objects live in the process that created them, so an import in another process is refused, and
//! the log says why.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use descriptors::Known;
use device::{Kind, Refusal};

use super::boundary::control;
use super::context;
use super::dm::{self, DmObject};
use super::errno;
use super::mr::{self, MrObject, Place};
use super::own::context::{find_opening, opened};
use super::own::pd::{OwnPd, PdObject, Role};
use super::types::context::Context;
use super::types::dm::Dm;
use super::types::mr::Mr;
use super::types::pd::Pd;

pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut Context {
    control("ibv_import_device", ptr::null_mut(), || {
        let refuse =
            |kind, what| Err(Refusal::new(kind, format!("ibv_import_device: fd {cmd_fd}: {what}")));
        // SAFETY: asking for the flags of a number is harmless, whatever it is.
        if cmd_fd < 0 || unsafe { libc::fcntl(cmd_fd, libc::F_GETFD) } < 0 {
            return errno::or_null(refuse(Kind::Invalid, "the descriptor is not open"));
        }
        // SAFETY: it is open, and the program keeps it open during the call that it passed it to.
        let borrowed = unsafe { BorrowedFd::borrow_raw(cmd_fd) };
        let Some(opening) = find_opening(borrowed) else {
            let what = "it is no cmd_fd of a device that this process has open";
            return errno::or_null(refuse(Kind::NoDevice, what));
        };
        // SAFETY: contract: on success the context owns the descriptor (`ibv_import_device(3)`).
        let owned = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        let device = ptr::with_exposed_provenance_mut(opening.device);
        context::create(device, opening, Known::at_its_number(owned))
    })
}

pub(crate) unsafe extern "C" fn ibv_import_pd(context: *mut Context, handle: u32) -> *mut Pd {
    control("ibv_import_pd", ptr::null_mut(), || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        errno::or_null(open.hca.lock().find_pd(open.id, handle).map(|id| {
            let own = OwnPd { hca: Arc::clone(&open.hca), id, role: Role::Whole };
            PdObject::create(Pd { context, handle }, own)
        }))
    })
}

pub(crate) unsafe extern "C" fn ibv_unimport_pd(pd: *mut Pd) {
    control("ibv_unimport_pd", (), || {
        // SAFETY: contract: the PD is one of ours, imported, and the program uses it no more.
        drop(unsafe { PdObject::destroy(pd) });
    });
}

pub(crate) unsafe extern "C" fn ibv_import_mr(pd: *mut Pd, handle: u32) -> *mut Mr {
    control("ibv_import_mr", ptr::null_mut(), || {
        // SAFETY: contract: the PD is one of ours.
        let own = unsafe { PdObject::lookup(pd) };
        // SAFETY: contract: the PD is alive.
        let context = unsafe { (*pd).context };
        // SAFETY: contract: the context outlives its objects.
        let open = unsafe { opened(context) };
        let found = open.hca.lock().find_mr(open.id, handle);
        errno::or_null(found.map(|(info, length)| {
            // Only the context that registered it knows its address.
            let place = Place { addr: ptr::null_mut(), length: length as usize, can_rereg: false };
            mr::create(pd, own, info, place)
        }))
    })
}

pub(crate) unsafe extern "C" fn ibv_unimport_mr(mr: *mut Mr) {
    control("ibv_unimport_mr", (), || {
        // SAFETY: contract: the region is one of ours, imported, and the program uses it no more.
        drop(unsafe { MrObject::destroy(mr) });
    });
}

pub(crate) unsafe extern "C" fn ibv_import_dm(context: *mut Context, handle: u32) -> *mut Dm {
    control("ibv_import_dm", ptr::null_mut(), || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        let found = open.hca.lock().find_dm(open.id, handle);
        errno::or_null(found.map(|id| dm::create(context, &open.hca, id)))
    })
}

pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: *mut Dm) {
    control("ibv_unimport_dm", (), || {
        // SAFETY: contract: the block is one of ours, imported, and the program uses it no more.
        drop(unsafe { DmObject::destroy(dm) });
    });
}

//! XRC domains.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use device::ids::XrcdId;
use device::{Hca, Kind, Refusal};

use super::boundary::control;
use super::errno;
use super::mr::open_descriptor;
use super::object::{Object, given};
use super::own::context::opened;
use super::types::context::Context;
use super::types::srq::{Xrcd, XrcdInitAttr};

/// The library's part of a domain.
pub(crate) struct OwnXrcd {
    pub(crate) hca: Arc<Hca>,
    pub(crate) id: XrcdId,
}

pub(crate) type XrcdObject = Object<Xrcd, OwnXrcd>;

/// Bits of [`XrcdInitAttr::comp_mask`]: both must be there (`ibv_open_xrcd(3)`).
const FD_AND_OFLAGS: u32 = 1 | 1 << 1;

pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut Context,
    attr: *mut XrcdInitAttr,
) -> *mut Xrcd {
    control("ibv_open_xrcd", ptr::null_mut(), || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        // SAFETY: contract: the attributes are valid.
        let attr = unsafe { given(attr) };
        let refuse = |kind, what| Err(Refusal::new(kind, format!("ibv_open_xrcd: {what}")));
        let known_flags = libc::O_CREAT | libc::O_EXCL;
        if attr.comp_mask != FD_AND_OFLAGS || attr.oflags & !known_flags != 0 {
            let what = format!("comp_mask {:#x}, oflags {:#x}", attr.comp_mask, attr.oflags);
            return errno::or_null(refuse(Kind::Invalid, what));
        }
        let file = open_descriptor(attr.fd);
        if attr.fd != -1 && file.is_none() {
            return errno::or_null(refuse(Kind::BadFd, format!("fd {} is not open", attr.fd)));
        }
        let [create, exclusive] = [libc::O_CREAT, libc::O_EXCL].map(|bit| attr.oflags & bit != 0);
        let opened = open.hca.lock().open_xrcd(open.id, file, create, exclusive);
        errno::or_null(opened.map(|id| {
            XrcdObject::create(Xrcd { context }, OwnXrcd { hca: Arc::clone(&open.hca), id })
        }))
    })
}

pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut Xrcd) -> c_int {
    control("ibv_close_xrcd", libc::EIO, || {
        // SAFETY: contract: the domain is one of ours.
        let own = unsafe { XrcdObject::lookup(xrcd) };
        if let Err(refusal) = own.hca.lock().close_xrcd(own.id) {
            return errno::of(refusal.kind());
        }
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { XrcdObject::destroy(xrcd) });
        0
    })
}

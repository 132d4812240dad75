//! Buffers that the library allocates (`ibv_alloc_buf`): ordinary memory of the program, page
//! aligned. Only in a confidential guest must a provider choose the memory; programs written for
//! that work everywhere.

use std::ffi::{c_int, c_void};
use std::ptr;

use device::{Kind, Refusal};
use libc::size_t;
use umem::HostBuf;

use super::boundary::control;
use super::errno;
use super::object::{Object, room};
use super::own::pd::PdObject;
use super::types::Opaque;
use super::types::pd::Pd;
use super::uobject::Uobject;

/// What a program holds.
struct Handle;

impl Uobject for Handle {}

/// What it stands for.
struct Buf {
    pd: *mut Pd,
    memory: HostBuf,
}

type BufObject = Object<Handle, Buf>;

pub(crate) unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut Pd,
    size: size_t,
    buf: *mut *mut Opaque,
) -> *mut c_void {
    control("ibv_alloc_buf", ptr::null_mut(), || {
        let refuse = |kind, what: String| {
            errno::or_null(Err(Refusal::new(kind, format!("ibv_alloc_buf: {what}"))))
        };
        // SAFETY: contract: the PD is one of ours.
        let _ = unsafe { PdObject::lookup(pd) };
        let buf = room(buf);
        if size == 0 {
            return refuse(Kind::Invalid, "a buffer of no bytes".to_owned());
        }
        let memory = match HostBuf::anonymous(size) {
            Ok(memory) => memory,
            Err(error) => return refuse(Kind::NoMemory, error.to_string()),
        };
        let addr = memory.as_ptr().cast::<c_void>();
        let handle = BufObject::create(Handle, Buf { pd, memory });
        // SAFETY: contract: the program has room for the handle.
        unsafe { buf.write(handle.cast()) };
        addr
    })
}

pub(crate) unsafe extern "C" fn ibv_free_buf(buf: *mut Opaque) {
    control("ibv_free_buf", (), || {
        // SAFETY: contract: the handle is from `ibv_alloc_buf`, and the program uses it no more.
        drop(unsafe { BufObject::destroy(buf.cast()) });
    });
}

/// Ordinary memory has no dma-buf to export.
pub(crate) unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut Opaque) -> c_int {
    control("ibv_export_buf_dmabuf_fd", -1, || {
        // SAFETY: contract: the handle is from `ibv_alloc_buf`.
        let _ = unsafe { BufObject::own(buf.cast()) };
        errno::set(libc::ENODATA);
        -1
    })
}

/// Checks that a range lies in a buffer of this protection domain.
///
/// # Safety
///
/// The handle is from [`ibv_alloc_buf`].
pub(crate) unsafe fn check(
    pd: *mut Pd,
    buf: *mut Opaque,
    addr: *mut c_void,
    length: size_t,
) -> Result<(), Refusal> {
    let invalid = |what| Err(Refusal::new(Kind::Invalid, format!("ibv_reg_buf_mr: {what}")));
    // SAFETY: the caller's promise.
    let buf = unsafe { BufObject::own(buf.cast()) };
    if buf.pd != pd {
        return invalid("the buffer was allocated with another protection domain");
    }
    let offset = addr.addr().checked_sub(buf.memory.as_ptr().addr());
    let end = offset.and_then(|offset| offset.checked_add(length));
    match end {
        Some(end) if end <= buf.memory.len() => Ok(()),
        _ => invalid("the range is not inside the buffer"),
    }
}

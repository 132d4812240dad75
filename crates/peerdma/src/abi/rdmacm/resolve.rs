//! Names that an identifier resolves: `rdma_resolve_addrinfo(3)` and `rdma_query_addrinfo(3)`.

use std::ffi::{c_char, c_int};

use super::addrinfo::{Refused, resolve};
use super::endpoint::What;
use super::id::endpoint;
use super::state::Names;
use super::sync::complete;
use super::{Answer, Failure, call};
use crate::abi::types::rdma::{AddrInfo, CmId, rai};

pub(crate) unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut CmId,
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
) -> c_int {
    call("rdma_resolve_addrinfo", || {
        if id.is_null() {
            return Err(Failure::new(libc::EINVAL, "rdma_resolve_addrinfo: no identifier"));
        }
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(id) };
        {
            let mut inner = endpoint.inner();
            if !matches!(inner.face.names, Names::None) {
                let what =
                    "rdma_resolve_addrinfo: an answer is under way, or waits to be asked for";
                return Err(Failure::new(libc::EBUSY, what));
            }
            inner.face.names = Names::Asked;
        }
        // SAFETY: contract: the hints are NULL or valid.
        let hints = unsafe { hints.as_ref() };
        // SAFETY: contract: the names are NULL or strings.
        let found = unsafe { resolve_for(node, service, hints) };
        endpoint.inner().face.names =
            found.as_ref().map_or(Names::None, |found| Names::Found(*found));
        found?;
        endpoint.post(What::AddrInfo);
        // SAFETY: contract: as above.
        unsafe { complete(id) }
    })
}

/// As [`resolve`], with an errno for every failure.
unsafe fn resolve_for(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
) -> Answer<*mut AddrInfo> {
    if let Some(hints) = hints
        && hints.ai_flags & rai::SA != 0
    {
        let has_more = hints.ai_flags & rai::DNS != 0 || !node.is_null();
        let errno = if has_more { libc::ENOTSUP } else { libc::ENOENT };
        let what = "rdma_resolve_addrinfo: RAI_SA: RoCE has no subnet administrator to ask";
        return Err(Failure::new(errno, what));
    }
    // SAFETY: the caller's promise.
    unsafe { resolve(node, service, hints) }.map_err(|refused| match refused {
        Refused::Failure(failure) => failure,
        Refused::Name(libc::EAI_MEMORY) => Failure(libc::ENOMEM),
        Refused::Name(libc::EAI_SYSTEM) => Failure::last(),
        Refused::Name(_) => Failure(libc::ENOENT),
    })
}

pub(crate) unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut CmId,
    info: *mut *mut AddrInfo,
) -> c_int {
    call("rdma_query_addrinfo", || {
        if id.is_null() || info.is_null() {
            let what = "rdma_query_addrinfo: no identifier, or no room for the answer";
            return Err(Failure::new(libc::EINVAL, what));
        }
        // SAFETY: contract: the identifier is one of ours.
        let mut inner = unsafe { endpoint(id) }.inner();
        let Names::Found(found) = inner.face.names else {
            return Err(Failure::new(libc::ENOENT, "rdma_query_addrinfo: there is no answer"));
        };
        inner.face.names = Names::None;
        // SAFETY: contract: the program has room for the pointer.
        unsafe { info.write(found) };
        Ok(())
    })
}

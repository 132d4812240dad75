//! Identifiers: making, destroying, moving to another channel.

use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::Arc;

use iba::QpType;

use super::addrinfo::rdma_freeaddrinfo;
use super::endpoint::Endpoint;
use super::event_channel::{self, ChannelObject};
use super::state::{Inner, Names};
use super::{Answer, Failure, call, held_event, sockaddr};
use crate::abi::object::{Object, room};
use crate::abi::types::CEnum;
use crate::abi::types::device::Gid;
use crate::abi::types::rdma::{CmId, EventChannel, port_space};

pub(super) type IdObject = Object<CmId, Arc<Endpoint>>;

/// The endpoint of an identifier.
///
/// # Safety
///
/// `id` is from [`create`] and is not destroyed before the result is last used.
pub(super) unsafe fn endpoint<'a>(id: *mut CmId) -> &'a Arc<Endpoint> {
    // SAFETY: the caller's promise.
    unsafe { IdObject::own(id) }
}

/// The C part of an identifier. A pointer to anything else ends the call.
///
/// # Safety
///
/// As for [`endpoint`], and nothing else uses the C part while the result is used.
pub(super) unsafe fn structure<'a>(id: *mut CmId) -> &'a mut CmId {
    // SAFETY: the caller's promise.
    let _ = unsafe { endpoint(id) };
    // SAFETY: it is one of ours, and alive.
    unsafe { &mut *id }
}

/// The full membership in the default partition.
const PKEY: u16 = 0xffff;

/// Makes an identifier whose events go to `channel`, or to a channel of its own if it is NULL.
///
/// # Safety
///
/// `channel` is NULL or one of ours.
pub(super) unsafe fn create(
    channel: *mut EventChannel,
    context: *mut c_void,
    ps: CEnum,
    qp_type: CEnum,
) -> Answer<*mut CmId> {
    let is_sync = channel.is_null();
    let channel = if is_sync { event_channel::create()? } else { channel };
    // SAFETY: the caller's promise, or it was made just now.
    let queue = Arc::clone(&unsafe { ChannelObject::own(channel) }.channel);
    let endpoint = Arc::new(Endpoint::new(queue, ps, qp_type));
    endpoint.inner().face.is_sync = is_sync;
    Ok(wrap(endpoint, channel, context, ps, qp_type))
}

/// The C structure of an endpoint.
pub(super) fn wrap(
    endpoint: Arc<Endpoint>,
    channel: *mut EventChannel,
    context: *mut c_void,
    ps: CEnum,
    qp_type: CEnum,
) -> *mut CmId {
    // SAFETY: the structure is made of integers and pointers, for which zero is a value.
    let mut c: CmId = unsafe { mem::zeroed() };
    c.channel = channel;
    c.context = context;
    c.ps = ps;
    c.qp_type = qp_type;
    let id = IdObject::create(c, Arc::clone(&endpoint));
    endpoint.set_id(id);
    id
}

/// Writes into the C structure what is known of the endpoint by now.
///
/// # Safety
///
/// `id` is one of ours, and no other thread uses it now, which is the program's to promise
/// (`rdma_cm(7)`).
pub(super) unsafe fn publish(id: *mut CmId, inner: &mut Inner) {
    // SAFETY: the caller's promise.
    let c = unsafe { &mut *id };
    let addr = &mut c.route.addr;
    if let Some(local) = inner.route.local {
        addr.src_storage = sockaddr::write(local);
    }
    if let Some(remote) = inner.route.remote {
        addr.dst_storage = sockaddr::write(remote);
    }
    let Some(nic) = &inner.nic else { return };
    c.verbs = nic.context;
    c.port_num = 1;
    if c.pd.is_null() {
        c.pd = inner.face.pd;
    }
    addr.addr.pkey = PKEY.to_be();
    if let Some(path) = &inner.route.path {
        addr.addr.sgid = Gid { raw: path.sgid.0 };
        addr.addr.dgid = Gid { raw: path.dgid.0 };
    } else if let Some(local) = inner.route.local {
        addr.addr.sgid = Gid { raw: iba::Gid::from(local.ip()).0 };
    }
    if let Some(record) = &mut inner.face.path_rec {
        c.route.path_rec = &raw mut **record;
        c.route.num_paths = 1;
    }
}

pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut EventChannel,
    id: *mut *mut CmId,
    context: *mut c_void,
    ps: CEnum,
) -> c_int {
    call("rdma_create_id", || {
        let id = room(id);
        let known = [port_space::TCP, port_space::UDP, port_space::IB, port_space::IPOIB];
        // As of `ucma_get_qp_type` of the kernel.
        if !known.contains(&ps) {
            let what = format!("rdma_create_id: there is no port space {ps:#x}");
            return Err(Failure::new(libc::EINVAL, what));
        }
        let is_datagram = matches!(ps, port_space::UDP | port_space::IPOIB);
        let qp_type = if is_datagram { QpType::Ud } else { QpType::Rc };
        // SAFETY: contract: the channel is NULL or one of ours.
        let made = unsafe { create(channel, context, ps, qp_type as u32) }?;
        // SAFETY: contract: the program has room for the pointer.
        unsafe { id.write(made) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut CmId) -> c_int {
    call("rdma_destroy_id", || {
        // SAFETY: contract: the identifier is one of ours, and the program uses it no more.
        unsafe { destroy(id) };
        Ok(())
    })
}

/// Destroys an identifier, and waits until the program acknowledged its events.
///
/// # Safety
///
/// `id` is one of ours, and nobody uses it after this.
pub(super) unsafe fn destroy(id: *mut CmId) {
    // SAFETY: the caller's promise.
    let endpoint = Arc::clone(unsafe { endpoint(id) });
    let nic = endpoint.end();
    let mut inner = endpoint.inner();
    let (names, is_sync) = (mem::replace(&mut inner.face.names, Names::None), inner.face.is_sync);
    drop(inner);
    // SAFETY: the caller's promise.
    let channel = unsafe { (*id).channel };
    // SAFETY: as above.
    unsafe { held_event::release(id) };
    // In the child of a fork, events that the parent took are the parent's to acknowledge.
    if !nic.as_ref().is_some_and(|nic| nic.hca.lock().is_husk()) {
        endpoint.acks.wait();
    }
    if let Names::Found(names) = names {
        // SAFETY: contract: nobody has asked for them.
        unsafe { rdma_freeaddrinfo(names) };
    }
    // SAFETY: the caller's promise.
    drop(unsafe { IdObject::destroy(id) });
    if let Some(nic) = nic {
        nic.release();
    }
    if is_sync {
        // SAFETY: contract: the channel is the identifier's own.
        unsafe { event_channel::rdma_destroy_event_channel(channel) };
    }
}

pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut CmId,
    channel: *mut EventChannel,
) -> c_int {
    // SAFETY: contract: the identifier is one of ours, the channel NULL or one of ours.
    call("rdma_migrate_id", || unsafe { migrate(id, channel) })
}

/// Moves an identifier to another channel, or to one of its own.
///
/// # Safety
///
/// `id` is one of ours, `channel` NULL or one of ours.
pub(super) unsafe fn migrate(id: *mut CmId, channel: *mut EventChannel) -> Answer {
    // SAFETY: the caller's promise.
    let endpoint = unsafe { endpoint(id) };
    let was_sync = endpoint.inner().face.is_sync;
    let is_sync = channel.is_null();
    if was_sync && is_sync {
        return Err(Failure::new(libc::EINVAL, "rdma_migrate_id: it has a channel of its own"));
    }
    let channel = if is_sync { event_channel::create()? } else { channel };
    // SAFETY: the caller's promise, or it was made just now.
    let queue = Arc::clone(&unsafe { ChannelObject::own(channel) }.channel);
    endpoint.move_to(queue);
    // SAFETY: the caller's promise.
    let old = mem::replace(unsafe { &mut (*id).channel }, channel);
    if was_sync {
        // SAFETY: the caller's promise.
        unsafe { held_event::release(id) };
        // SAFETY: contract: the channel was the identifier's own.
        unsafe { event_channel::rdma_destroy_event_channel(old) };
    }
    endpoint.inner().face.is_sync = is_sync;
    // Events taken from the old channel are the last that come from there.
    endpoint.acks.wait();
    Ok(())
}

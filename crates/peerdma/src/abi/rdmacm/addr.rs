//! Addresses: binding, resolving, listening.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use libc::sockaddr;

use super::endpoint::{Endpoint, What};
use super::id::{endpoint, publish, structure};
use super::nic::Nic;
use super::path::record;
use super::sockaddr::{port_be, read, wildcard};
use super::state::{End, Inner, State, destroy};
use super::sync::complete;
use super::{Answer, Failure, call, reach};
use crate::abi::boundary::control;
use crate::abi::types::rdma::CmId;

pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut CmId, addr: *mut sockaddr) -> c_int {
    call("rdma_bind_addr", || {
        // SAFETY: contract: the address is as long as its family says.
        let addr = unsafe { read("rdma_bind_addr", addr) }?;
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(id) };
        let mut inner = endpoint.inner();
        bind(endpoint, &mut inner, addr)?;
        // SAFETY: contract: as above.
        unsafe { publish(id, &mut inner) };
        Ok(())
    })
}

/// Binds an identifier that is not bound.
///
/// # Errors
/// EADDRINUSE if the port is taken, EADDRNOTAVAIL if it is taken and one of the two is the
/// wildcard, or if the address is not this host's, ENODEV if no NIC has it, EINVAL if the
/// identifier is bound already.
pub(super) fn bind(endpoint: &Arc<Endpoint>, inner: &mut Inner, addr: SocketAddr) -> Answer {
    inner.expect("rdma_bind_addr", &[State::Idle])?;
    inner.port_space()?;
    // An address of `lo` is of no NIC, and as good as the wildcard (kernel: `cma_any_addr`);
    // libfabric relies on it.
    let port = if addr.ip().is_unspecified() || addr.ip().is_loopback() {
        bind_everywhere(endpoint, inner, SocketAddr::new(wildcard(addr.ip()), addr.port()))?
    } else {
        let nic = nic_of(addr)?;
        let (end, port) = bind_end(endpoint, inner, &nic, addr)?;
        if let Err(failure) = inner.hold(&nic) {
            destroy(&end);
            return Err(failure);
        }
        inner.ends.push(end);
        port
    };
    let mut bound = addr;
    bound.set_port(port);
    inner.route.local = Some(bound);
    inner.state = State::Bound;
    Ok(())
}

/// The NIC that has an address.
fn nic_of(addr: SocketAddr) -> Answer<Arc<Nic>> {
    let ip = addr.ip();
    if let Some(nic) = Nic::with_address(ip)? {
        return Ok(nic);
    }
    if reach::is_local(addr) {
        let what = format!("rdma_bind_addr: {ip} is this host's, but no NIC's");
        return Err(Failure::new(libc::ENODEV, what));
    }
    let what = format!("rdma_bind_addr: {ip} is not an address of this host");
    Err(Failure::new(libc::EADDRNOTAVAIL, what))
}

/// An endpoint on each NIC, all at one port.
fn bind_everywhere(
    endpoint: &Arc<Endpoint>,
    inner: &mut Inner,
    mut addr: SocketAddr,
) -> Answer<u16> {
    let mut ends = Vec::new();
    for nic in Nic::all()? {
        match bind_end(endpoint, inner, &nic, addr) {
            Ok((end, port)) => {
                ends.push(end);
                addr.set_port(port);
            }
            Err(failure) => {
                ends.iter().for_each(destroy);
                return Err(failure);
            }
        }
    }
    inner.ends = ends;
    Ok(addr.port())
}

/// An endpoint on a NIC, and its port.
fn bind_end(
    endpoint: &Arc<Endpoint>,
    inner: &Inner,
    nic: &Arc<Nic>,
    addr: SocketAddr,
) -> Answer<(End, u16)> {
    let end = endpoint.make_end(nic, inner)?;
    let bound = nic.hca.lock().cm_bind(end.id, addr, inner.options.bind);
    match bound {
        Ok(bound) => Ok((end, bound.port())),
        Err(refusal) => {
            destroy(&end);
            Err(refusal.into())
        }
    }
}

pub(crate) unsafe extern "C" fn rdma_listen(id: *mut CmId, backlog: c_int) -> c_int {
    call("rdma_listen", || {
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(id) };
        let mut inner = endpoint.inner();
        listen(endpoint, &mut inner, backlog)?;
        // SAFETY: contract: as above.
        unsafe { publish(id, &mut inner) };
        Ok(())
    })
}

/// Takes requests from now on, at a port that is found if none was bound.
pub(super) fn listen(endpoint: &Arc<Endpoint>, inner: &mut Inner, backlog: c_int) -> Answer {
    if inner.state == State::Idle {
        bind(endpoint, inner, SocketAddr::from(([0, 0, 0, 0], 0)))?;
    }
    inner.expect("rdma_listen", &[State::Bound])?;
    // As of ucma_listen: a limit that is none, or above the kernel's, is the kernel's.
    let backlog = u32::try_from(backlog).ok().filter(|backlog| (1..MAX_BACKLOG).contains(backlog));
    for end in &inner.ends {
        end.nic.hca.lock().cm_listen(end.id, backlog.unwrap_or(MAX_BACKLOG))?;
    }
    inner.state = State::Listening;
    if let Some(local) = inner.route.local {
        tracing::info!(target: "peerdma::cm", "listening on {local}");
    }
    Ok(())
}

/// `max_backlog` of the kernel's ucma.
const MAX_BACKLOG: u32 = 1024;

pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut CmId,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    call("rdma_resolve_addr", || {
        // SAFETY: contract: the address is as long as its family says.
        let to = unsafe { read("rdma_resolve_addr", dst) }?;
        let from = if src.is_null() {
            None
        } else {
            // SAFETY: contract: as above.
            Some(unsafe { read("rdma_resolve_addr", src) }?)
        };
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(id) };
        let mut inner = endpoint.inner();
        resolve_addr(endpoint, &mut inner, from, to, timeout_ms)?;
        // The source is known when the event comes, as of librdmacm.
        drop(inner);
        // SAFETY: contract: as above.
        unsafe { complete(id) }
    })
}

/// Finds the NIC and the way to a peer, from `from` unless it is bound.
pub(super) fn resolve_addr(
    endpoint: &Arc<Endpoint>,
    inner: &mut Inner,
    from: Option<SocketAddr>,
    to: SocketAddr,
    timeout_ms: c_int,
) -> Answer {
    inner.expect("rdma_resolve_addr", &[State::Idle, State::Bound])?;
    inner.port_space()?;
    if let Some(from) = from
        && inner.state == State::Idle
    {
        bind(endpoint, inner, from)?;
    }
    resolve(endpoint, inner, to, timeout_ms)
}

/// Finds the NIC and the way to a peer. What is found wrong only on the way comes as an event.
fn resolve(
    endpoint: &Arc<Endpoint>,
    inner: &mut Inner,
    to: SocketAddr,
    timeout_ms: c_int,
) -> Answer {
    if inner.route.local.is_some_and(|local| local.is_ipv4() != to.is_ipv4()) {
        let what = "rdma_resolve_addr: the source is of another family than the destination";
        return Err(Failure::new(libc::EINVAL, what));
    }
    let is_here = to.ip().is_loopback() || to.ip().is_unspecified();
    let (nic, source) = match (&inner.nic, is_here) {
        (Some(nic), false) => (Arc::clone(nic), None),
        (_, true) => {
            let (nic, ip) = Nic::for_loopback(to.ip())?;
            let nic = inner.nic.clone().unwrap_or(nic);
            (nic, Some(ip))
        }
        (None, false) => {
            let source = reach::source(to)?;
            let Some(nic) = Nic::with_address(source)? else {
                let what = format!(
                    "rdma_resolve_addr: the way to {} leaves from {source}, which is no NIC's",
                    to.ip()
                );
                endpoint.post(What::Addr(Err(Failure::new(libc::ENODEV, what))));
                return Ok(());
            };
            (nic, Some(source))
        }
    };
    let peer = match source {
        Some(ip) if is_here => SocketAddr::new(ip, to.port()),
        _ => to,
    };
    take_nic(endpoint, inner, &nic)?;
    let end = inner.end("rdma_resolve_addr")?;
    // One that is bound to an address, or to a port everywhere, keeps it.
    let port = inner.route.local.map_or(0, |local| local.port());
    let from = source.map(|ip| SocketAddr::new(ip, port));
    let mut engine = nic.hca.alive()?;
    let path = engine.cm_resolve(end.id, from, peer)?;
    let found = engine.cm_addresses(end.id)?;
    drop(engine);
    inner.route.path = Some(path);
    inner.route.local = found.local.or(inner.route.local);
    inner.route.remote = Some(to);
    inner.state = State::AddrResolved;
    if nic.is_own(peer.ip()) || peer.ip().is_multicast() || reach::is_known(peer) {
        endpoint.post(What::Addr(Ok(())));
        return Ok(());
    }
    inner.state = State::AddrQuery;
    let patience = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    let waiting = Arc::downgrade(endpoint);
    reach::when_known(peer, patience, move |found| {
        let Some(endpoint) = waiting.upgrade() else { return };
        endpoint.inner().state = if found.is_ok() { State::AddrResolved } else { State::Bound };
        endpoint.post(What::Addr(found));
    })
}

/// Leaves one endpoint, on this NIC.
fn take_nic(endpoint: &Arc<Endpoint>, inner: &mut Inner, nic: &Arc<Nic>) -> Answer {
    let is_here = |end: &End| Arc::ptr_eq(&end.nic, nic);
    if !inner.ends.iter().any(is_here) {
        let end = endpoint.make_end(nic, inner)?;
        inner.ends.push(end);
    }
    inner.hold(nic)?;
    let (here, elsewhere): (Vec<_>, Vec<_>) = inner.ends.drain(..).partition(is_here);
    elsewhere.iter().for_each(destroy);
    inner.ends = here;
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut CmId, _timeout_ms: c_int) -> c_int {
    call("rdma_resolve_route", || {
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(id) };
        let mut inner = endpoint.inner();
        resolve_route(endpoint, &mut inner, "rdma_resolve_route")?;
        drop(inner);
        // SAFETY: contract: as above.
        unsafe { complete(id) }
    })
}

/// The route of RoCE follows from the addresses: nobody needs to be asked (`cma_resolve_iboe_route`
/// of the kernel).
pub(super) fn resolve_route(
    endpoint: &Arc<Endpoint>,
    inner: &mut Inner,
    call: &'static str,
) -> Answer {
    inner.expect(call, &[State::AddrResolved])?;
    let end = inner.end(call)?;
    let path = end.nic.hca.alive()?.cm_route(end.id)?;
    inner.face.path_rec = Some(Box::new(record(&path)));
    inner.route.path = Some(path);
    inner.state = State::RouteResolved;
    endpoint.post(What::Route);
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut CmId) -> u16 {
    // SAFETY: contract: the identifier is one of ours.
    control("rdma_get_src_port", 0, || port_be(unsafe { &structure(id).route.addr.src_storage }))
}

pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut CmId) -> u16 {
    // SAFETY: contract: the identifier is one of ours.
    control("rdma_get_dst_port", 0, || port_be(unsafe { &structure(id).route.addr.dst_storage }))
}

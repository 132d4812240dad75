//! Which queue pair belongs to a UDP address: what the service does with what comes by UDP.

use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;

use rsocket::SEND_LOW_WATER;
use rsocket::datagram::Ask;
use rustix::net::{RecvFlags, recvfrom};

use super::datagram::DatagramSocket;
use super::socket::{NOTHING, Socket};
use crate::abi::rdmacm::addr::{rdma_resolve_addr, rdma_resolve_route};
use crate::abi::rdmacm::event::address;
use crate::abi::rdmacm::id::{endpoint, rdma_create_id, rdma_destroy_id};
use crate::abi::rdmacm::{Answer, Failure, sockaddr};
use crate::abi::types::ah::AhAttr;
use crate::abi::types::rdma::port_space;

/// How long an address may take. Somebody just spoke from it.
const PATIENCE_MS: std::ffi::c_int = 2000;

impl DatagramSocket {
    /// Takes what came by UDP.
    pub(super) fn asked(&self, socket: &Arc<Socket>) {
        let mut bytes = [0; SEND_LOW_WATER as usize];
        let Ok((_, length, from)) = recvfrom(&self.udp, &mut bytes[..], RecvFlags::DONTWAIT) else {
            return;
        };
        let Some(Ok(from)) = from.map(SocketAddr::try_from) else { return };
        let received = &bytes[..length.min(bytes.len())];
        let Some(ask) = Ask::from_bytes(received) else {
            tracing::debug!(target: "peerdma::rsocket", "{from} speaks another protocol over UDP");
            return;
        };
        if let Err(failure) = self.answer(socket, from, &ask, &received[ask.size()..]) {
            tracing::info!(target: "peerdma::rsocket", "no queue pair for {from}: {failure:?}");
        }
    }

    fn answer(&self, socket: &Arc<Socket>, from: SocketAddr, ask: &Ask, data: &[u8]) -> Answer {
        let sizes = socket.options().sizes;
        let mut state = self.state();
        if ask.has_data {
            state.deliver(from, data, sizes);
            drop(state);
            socket.watchers.notify();
            state = self.state();
        }
        let peer = state.peer(self, from, sizes)?;
        let local = state.local(peer.end);
        if ask.has_data {
            let answer = state.ask(peer.end, false);
            self.send_udp(&answer, &[], from)?;
        }
        if peer.there.is_some_and(|(_, qpn)| qpn == ask.qpn) {
            return Ok(());
        }
        // Finding the way may take a while.
        drop(state);
        let way = way(local, from)?;
        self.state().found(from, &way, ask.qpn);
        Ok(())
    }
}

/// The address vector for datagrams from `local` to `to`.
fn way(local: SocketAddr, to: SocketAddr) -> Answer<AhAttr> {
    let mut id = ptr::null_mut();
    // SAFETY: contract: NULL is a channel of its own.
    let made = unsafe { rdma_create_id(ptr::null_mut(), &raw mut id, NOTHING, port_space::UDP) };
    if made != 0 {
        return Err(Failure::last());
    }
    let mut from = sockaddr::write(SocketAddr::new(local.ip(), 0));
    let mut there = sockaddr::write(to);
    let mut find = || -> Answer<AhAttr> {
        let (from, there) = ((&raw mut from).cast(), (&raw mut there).cast());
        // SAFETY: the identifier is ours, the addresses valid.
        if unsafe { rdma_resolve_addr(id, from, there, PATIENCE_MS) } != 0 {
            return Err(Failure::last());
        }
        // SAFETY: as above.
        if unsafe { rdma_resolve_route(id, PATIENCE_MS) } != 0 {
            return Err(Failure::last());
        }
        // SAFETY: as above.
        let path = unsafe { endpoint(id) }.inner().path;
        path.map(|path| address(&path))
            .ok_or_else(|| Failure::new(libc::EHOSTUNREACH, "a route without a path"))
    };
    let found = find();
    // SAFETY: the identifier is ours, and nobody else has it.
    unsafe { rdma_destroy_id(id) };
    found
}

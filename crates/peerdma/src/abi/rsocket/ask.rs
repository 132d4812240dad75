//! Which queue pair belongs to a UDP address: how the service handles datagrams that come by UDP.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use iba::{Av, Qpn};
use rsocket::SEND_LOW_WATER;
use rsocket::datagram::Ask;
use rustix::net::{RecvFlags, recvfrom};

use super::datagram::DatagramSocket;
use super::service::Served;
use crate::abi::rdmacm::Answer;
use crate::abi::rdmacm::handle::Handle;

/// How long an address may take to resolve. A datagram has just come from it.
const PATIENCE_MS: c_int = 2000;

impl Served for DatagramSocket {
    fn interest(&self) -> Option<c_int> {
        self.udp().ok().map(|udp| udp.as_raw_fd())
    }

    fn serve(self: Arc<Self>) {
        self.asked();
    }

    /// Datagram sockets send no probes.
    fn probe(&self) -> Option<Instant> {
        None
    }
}

impl DatagramSocket {
    /// Handles what came by UDP.
    fn asked(&self) {
        let mut bytes = [0; SEND_LOW_WATER as usize];
        let Ok(udp) = self.udp() else { return };
        let Ok((_, length, from)) = recvfrom(udp, &mut bytes[..], RecvFlags::DONTWAIT) else {
            return;
        };
        let Some(Ok(from)) = from.map(SocketAddr::try_from) else { return };
        let received = &bytes[..length.min(bytes.len())];
        let Some(ask) = Ask::from_bytes(received) else {
            tracing::debug!(target: "peerdma::rsocket", "{from} speaks another protocol over UDP");
            return;
        };
        if let Err(failure) = self.answer(from, &ask, &received[ask.size()..]) {
            tracing::info!(target: "peerdma::rsocket", "no queue pair for {from}: {failure:?}");
        }
    }

    fn answer(&self, from: SocketAddr, ask: &Ask, data: &[u8]) -> Answer {
        let sizes = self.common.options().sizes;
        let mut state = self.state();
        if ask.has_data {
            state.deliver(from, data, sizes);
            drop(state);
            self.common.watchers.notify();
            state = self.state();
        }
        let peer = state.peer(self, from, sizes)?;
        let local = state.local(peer.end);
        if ask.has_data {
            let answer = state.ask(peer.end, false);
            self.send_udp(&answer, &[], from)?;
        }
        let qpn = Qpn::new(ask.qpn);
        if peer.there.is_some_and(|there| there.qpn == qpn) {
            return Ok(());
        }
        // Resolving the route may take a while.
        drop(state);
        let way = way(local, from)?;
        self.state().found(from, way, qpn)
    }
}

/// The address vector for datagrams from `local` to `to`.
fn way(local: SocketAddr, to: SocketAddr) -> Answer<Av> {
    let id = Handle::datagram()?;
    id.resolve_addr(Some(SocketAddr::new(local.ip(), 0)), to, PATIENCE_MS)?;
    id.happened(None)?;
    id.resolve_route()?;
    id.happened(None)?;
    id.address()
}

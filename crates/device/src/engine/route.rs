//! Which carrier leads to an address.

use iba::{Av, Qpn};
use wire::Headers;
use wire::grh::Grh;

use super::core::Core;
use super::env::Route;
use super::qp::vf_of;

impl Core {
    /// Why packets to an address take the carrier that [`Core::route`] names, in words.
    pub(crate) fn why(&self, av: &Av, route: Route) -> &'static str {
        match route {
            Route::None => "not connected",
            Route::Loopback => "loopback: the peer is in this process",
            Route::Shm(_) => "shared memory: the peer is another process of this host",
            Route::Udp if self.port.gids.contains(&av.dgid) => "UDP: the configuration forces it",
            Route::Udp => "UDP: the address is another host's",
        }
    }

    /// The carrier for packets to a QP at an address: another host's address means the wire; one of
    /// our own port means the process whose VF the QPN names, which may be this one.
    pub(crate) fn route(&self, av: &Av, dest: Qpn) -> Route {
        if !self.port.gids.contains(&av.dgid) || self.config.force_udp {
            return Route::Udp;
        }
        let vf = vf_of(dest);
        if vf == self.vf { Route::Loopback } else { Route::Shm(vf) }
    }

    /// The global route header that a datagram between two processes of this host would have
    /// carried.
    pub(crate) fn grh(&self, av: &Av, headers: &Headers, length: u32) -> [u8; 40] {
        let src = self.port.gids.get(usize::from(av.sgid_index)).copied().unwrap_or_default();
        let payload =
            8 + headers.len() as u32 + length.next_multiple_of(4) + wire::icrc::LEN as u32;
        let hop_limit = if av.hop_limit == 0 { 64 } else { av.hop_limit };
        let (src, dst) = (src.to_ip(), av.dgid.to_ip());
        Grh::new(src, dst, av.traffic_class, hop_limit, payload as u16)
            .map_or([0; 40], |grh| grh.to_bytes())
    }
}

//! The path to an address.

use std::net::IpAddr;

use ::cm::Peer;
use iba::{Gid, Mtu};

use crate::engine::common::Common;
use crate::rdma_cm::Path;
use crate::refusal::{Result, refuse};

/// How long a packet lives on Ethernet: `4.096 us * 2^16` is 0.27 s (the kernel's
/// `CMA_IBOE_PACKET_LIFETIME`).
const PACKET_LIFE_TIME: u8 = 16;
const HOP_LIMIT: u8 = 64;

impl Common {
    /// The path to `to`, from `from` or any suitable address of the port.
    pub(super) fn path(&self, from: Option<IpAddr>, to: IpAddr) -> Result<Path> {
        let own = || self.nic.port.gids.iter().map(|gid| gid.to_ip());
        let suits =
            |ip: &IpAddr| ip.is_ipv4() == to.is_ipv4() && is_link_local(ip) == is_link_local(&to);
        let family = |ip: &IpAddr| ip.is_ipv4() == to.is_ipv4();
        let from = from.filter(|ip| !ip.is_unspecified());
        let source = match from {
            Some(ip) => own().find(|own| *own == ip),
            // A request to an address of ours comes from that address, as with IP.
            None => own()
                .find(|own| *own == to)
                .or_else(|| own().find(suits))
                .or_else(|| own().find(family)),
        };
        let Some(source) = source.filter(|ip| family(ip)) else {
            let netdev = &self.nic.port.netdev;
            match from {
                Some(ip) => {
                    refuse!(AddressNotAvailable, "{ip} is not an address of {netdev} for {to}")
                }
                None => {
                    refuse!(AddressNotAvailable, "{netdev} has no address of the family of {to}")
                }
            }
        };
        // The kernel also treats the wildcard as this host (cma_resolve_loopback).
        let to = if to.is_unspecified() { source } else { to };
        Ok(self.path_between(source.into(), to.into()))
    }

    pub(super) fn path_between(&self, sgid: Gid, dgid: Gid) -> Path {
        let index = self.nic.port.gids.iter().position(|gid| *gid == sgid);
        Path {
            sgid_index: index.unwrap_or(0) as u8,
            sgid,
            dgid,
            mtu: self.nic.port.active_mtu(),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            packet_life_time: PACKET_LIFE_TIME,
        }
    }

    /// The path back to the sender of a request, as the request proposes it.
    pub(super) fn path_of_req(&self, from: &Peer, req: &wire::cm::Req) -> Path {
        let path = self.path_between(from.local, req.primary_local_gid);
        Path {
            mtu: Mtu::from_code(req.path_mtu.into()).unwrap_or(path.mtu),
            traffic_class: req.primary_traffic_class,
            flow_label: req.primary_flow_label,
            packet_life_time: req.primary_local_ack_timeout.saturating_sub(1),
            ..path
        }
    }
}

fn is_link_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

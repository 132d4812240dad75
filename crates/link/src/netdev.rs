//! The network device under a NIC: its name, its state, and the addresses that become GIDs.
//!
//! One NIC stands on one netdev. [`Netdev::find`] takes the one that reaches the world: the device
//! of the default route, otherwise the first that is up and has an address of its own, otherwise
//! `lo`. All facts are read by rtnetlink, unprivileged, or where a sandbox forbids that, by ioctls
//! and from /proc; a namespace without IPv6, or with only a `lo` that is down, is no error.
//!
//! ```
//! let netdev = link::netdev::Netdev::find()?;
//! println!("{} mtu {} gids {:?}", netdev.name, netdev.mtu, netdev.gids());
//! # Ok::<(), link::netdev::NetdevError>(())
//! ```
//!
//! Facts are a snapshot. A [`Watch`] says when to take another.

mod ioctl;
pub(crate) mod netlink;
mod watch;

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};

use iba::Gid;

use netlink::{Attributes, Message};
pub use watch::Watch;

/// What is known about one network device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Netdev {
    /// The name, as `ip link` shows it.
    pub name: String,
    /// The interface index.
    pub index: u32,
    /// The hardware address; zeros for a device without one of six bytes, such as `lo` or a tunnel.
    pub mac: [u8; 6],
    /// Bytes in the largest IP packet.
    pub mtu: u32,
    /// Whether the administrator has set it up (`IFF_UP`).
    pub is_up: bool,
    /// Whether it is up and has a carrier (`IFF_RUNNING`).
    pub is_running: bool,
    /// Whether it is the loopback device.
    pub is_loopback: bool,
    /// The driver's kind (`bridge`, `veth`, `vlan`, ...); empty for a physical device.
    pub kind: String,
    /// Its usable addresses: IPv4 in the kernel's order, then IPv6, temporary ones later and
    /// link-local ones last.
    pub addresses: Vec<Address>,
    /// The NUMA node of the hardware, where there is one and sysfs reports it.
    pub numa_node: Option<u32>,
    /// Link speed in Mb/s, where the driver reports it.
    pub speed_mbps: Option<u32>,
}

/// One address of a netdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Address {
    /// The address itself; on a point-to-point link the local end.
    pub ip: IpAddr,
    /// Bits of the network part.
    pub prefix: u8,
    /// How far it is valid.
    pub scope: Scope,
    /// Whether it is an IPv6 privacy address, which the kernel replaces after some time.
    pub is_temporary: bool,
}

/// How far an address is valid (`rt_scope_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// Everywhere.
    Global,
    /// Within the site.
    Site,
    /// On this link.
    Link,
    /// On this host.
    Host,
    /// Another, by its number.
    Other(u8),
}

/// Why a netdev could not be described.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetdevError {
    /// There is no such device.
    #[error("this network namespace has no netdev named {0:?}")]
    NotFound(String),
    /// The namespace has no netdev at all, not even `lo`.
    #[error("this network namespace has no netdev at all")]
    None,
    /// Neither rtnetlink nor ioctls can be used.
    #[error("the kernel does not list {what} by rtnetlink ({source}), nor by ioctl ({otherwise})")]
    Netlink {
        /// The query.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
        /// Its error for the ioctls.
        otherwise: io::Error,
    },
    /// The netdevs change faster than they are listed.
    #[error("the netdevs of this network namespace change while they are listed")]
    Changing,
    /// Changes cannot be waited for.
    #[error("changes of netdevs cannot be waited for: {0}")]
    Watch(io::Error),
}

impl Netdev {
    /// The netdev of a NIC for which none was named: the default route's, otherwise the first that
    /// is up with an address, otherwise `lo`.
    ///
    /// A bridge is chosen only if it has the default route: `docker0`, `virbr0` and others have the
    /// same address on every host, and two hosts with one GID would each think the other is itself.
    pub fn find() -> Result<Self, NetdevError> {
        let all = Self::all()?;
        default_route(&all).or_else(|| first_choice(&all)).cloned().ok_or(NetdevError::None)
    }

    /// The netdev called `name`.
    pub fn named(name: &str) -> Result<Self, NetdevError> {
        let found = Self::all()?.into_iter().find(|dev| dev.name == name);
        found.ok_or_else(|| NetdevError::NotFound(name.to_owned()))
    }

    /// Every netdev of the network namespace, in the order of their indexes.
    pub fn all() -> Result<Vec<Self>, NetdevError> {
        let mut all = match Self::by_netlink() {
            Ok(all) => all,
            // The ioctls return another order, and a moment's interruption is no reason to use
            // them.
            Err((_, source)) if source.kind() == io::ErrorKind::Interrupted => {
                return Err(NetdevError::Changing);
            }
            Err((what, source)) => match ioctl::all() {
                Ok(all) => {
                    warn_once(what, &source);
                    all
                }
                Err(otherwise) => return Err(NetdevError::Netlink { what, source, otherwise }),
            },
        };
        all.sort_by_key(|dev| dev.index);
        Ok(all)
    }

    /// Every netdev by rtnetlink, or the query that the kernel does not answer.
    fn by_netlink() -> Result<Vec<Self>, (&'static str, io::Error)> {
        let links = netlink::dump(libc::RTM_GETLINK, &[0; IFINFOMSG]);
        let links = links.map_err(|error| ("links", error))?;
        let addresses = netlink::dump(libc::RTM_GETADDR, &[0; IFADDRMSG]);
        let addresses = addresses.map_err(|error| ("addresses", error))?;
        Ok(links.iter().filter_map(|link| Self::parse(link, &addresses)).collect())
    }

    /// The GID table of a port on this netdev: RoCE v2 only, in the order of the addresses.
    ///
    /// 127.0.0.0/8 and `::1` count only on `lo`. A `lo` without any address, as in a namespace
    /// where it was never set up, still has the GID of 127.0.0.1: processes of one host need only a
    /// name to reach each other, and no netdev.
    pub fn gids(&self) -> Vec<Gid> {
        let own = |ip: &IpAddr| self.is_loopback || !ip.is_loopback();
        let mut gids: Vec<Gid> =
            self.addresses.iter().map(|a| a.ip).filter(own).map(Gid::from).collect();
        if gids.is_empty() && self.is_loopback {
            gids.push(Ipv4Addr::LOCALHOST.into());
        }
        gids
    }

    fn parse(link: &Message, addresses: &[Message]) -> Option<Self> {
        if link.kind != libc::RTM_NEWLINK {
            return None;
        }
        // struct ifinfomsg: family, pad, type (16 bits), index, flags, change.
        let index = link.word(4);
        let flags = link.word(8).cast_signed();
        let mut dev = Self::new(index, flags);
        dev.addresses = addresses.iter().filter_map(|a| Address::parse(a, index)).collect();
        for (kind, value) in link.attributes(IFINFOMSG) {
            match kind {
                libc::IFLA_IFNAME => dev.name = text(value),
                libc::IFLA_MTU => dev.mtu = netlink::read_u32(value).unwrap_or(0),
                libc::IFLA_ADDRESS => dev.mac = value.try_into().unwrap_or_default(),
                libc::IFLA_LINKINFO => {
                    let kind = Attributes(value).find(|(kind, _)| *kind == libc::IFLA_INFO_KIND);
                    dev.kind = kind.map(|(_, name)| text(name)).unwrap_or_default();
                }
                _ => {}
            }
        }
        dev.complete();
        Some(dev)
    }

    /// A netdev of which only `flags` (`IFF_*`) are known.
    fn new(index: u32, flags: i32) -> Self {
        Self {
            name: String::new(),
            index,
            mac: [0; 6],
            mtu: 0,
            is_up: flags & libc::IFF_UP != 0,
            is_running: flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0,
            is_loopback: flags & libc::IFF_LOOPBACK != 0,
            kind: String::new(),
            addresses: Vec::new(),
            numa_node: None,
            speed_mbps: None,
        }
    }

    /// Sorts the addresses, and adds what only sysfs reports.
    fn complete(&mut self) {
        // The sort is stable: within a class the kernel's order remains.
        self.addresses.sort_by_key(Address::rank);
        self.read_sysfs();
    }

    /// sysfs belongs to the mount namespace and may show the devices of another network namespace,
    /// so it is trusted only where it has the same index.
    fn read_sysfs(&mut self) {
        let read = |file: &str| {
            let text = fs::read_to_string(format!("/sys/class/net/{}/{file}", self.name)).ok()?;
            text.trim().parse::<i64>().ok().and_then(|value| u32::try_from(value).ok())
        };
        if read("ifindex") != Some(self.index) {
            return;
        }
        let numa_node = read("device/numa_node");
        // Drivers write -1 or its unsigned twin for an unknown speed.
        let speed_mbps = read("speed").filter(|speed| *speed != u32::MAX && *speed != 0);
        self.numa_node = numa_node;
        self.speed_mbps = speed_mbps;
    }
}

impl Address {
    /// The address in `message` if it is one of the netdev `index` and can be used now.
    fn parse(message: &Message, index: u32) -> Option<Self> {
        // struct ifaddrmsg: family, prefix length, flags, scope, index.
        if message.kind != libc::RTM_NEWADDR || message.word(4) != index {
            return None;
        }
        let mut flags = u32::from(message.byte(2));
        let (mut address, mut local) = (None, None);
        for (kind, value) in message.attributes(IFADDRMSG) {
            match kind {
                libc::IFA_ADDRESS => address = ip(value),
                libc::IFA_LOCAL => local = ip(value),
                IFA_FLAGS => flags = netlink::read_u32(value).unwrap_or(flags),
                _ => {}
            }
        }
        let ip = local.or(address)?;
        Self::new(ip, message.byte(1), message.byte(3).into(), flags)
    }

    /// An address with these flags (`IFA_F_*`) if it can be used now.
    fn new(ip: IpAddr, prefix: u8, scope: Scope, flags: u32) -> Option<Self> {
        // Duplicate address detection has not passed (RFC 4862 5.4): not ours yet.
        let unusable = (flags & libc::IFA_F_TENTATIVE != 0 && flags & libc::IFA_F_OPTIMISTIC == 0)
            || flags & libc::IFA_F_DADFAILED != 0;
        let is_temporary = ip.is_ipv6() && flags & libc::IFA_F_TEMPORARY != 0;
        (!unusable).then_some(Self { ip, prefix, scope, is_temporary })
    }

    fn rank(&self) -> u8 {
        match self.ip {
            IpAddr::V4(_) => 0,
            IpAddr::V6(ip) if ip.is_unicast_link_local() => 3,
            IpAddr::V6(_) => 1 + u8::from(self.is_temporary),
        }
    }
}

impl From<u8> for Scope {
    fn from(value: u8) -> Self {
        match value {
            libc::RT_SCOPE_UNIVERSE => Self::Global,
            libc::RT_SCOPE_SITE => Self::Site,
            libc::RT_SCOPE_LINK => Self::Link,
            libc::RT_SCOPE_HOST => Self::Host,
            other => Self::Other(other),
        }
    }
}

const IFINFOMSG: usize = 16;
const IFADDRMSG: usize = 8;
const RTMSG: usize = 12;
/// The 32-bit flags, which supersede the eight of `struct ifaddrmsg`.
const IFA_FLAGS: u16 = 8;

/// The netdev if there is no default route. A carrier and a routable address matter more than the
/// order: every device that is up has a link-local IPv6 address.
fn first_choice(all: &[Netdev]) -> Option<&Netdev> {
    let eligible = |dev: &&Netdev| {
        dev.is_up && !dev.is_loopback && dev.kind != "bridge" && !dev.gids().is_empty()
    };
    let poverty = |dev: &&Netdev| {
        let global = dev.addresses.iter().any(|address| address.scope == Scope::Global);
        (!global, !dev.is_running, dev.index)
    };
    let best = all.iter().filter(eligible).min_by_key(poverty);
    best.or_else(|| all.iter().find(|dev| dev.is_loopback)).or_else(|| all.first())
}

/// The netdev of the best default route, IPv4 before IPv6; `None` where there is no such route or
/// no way to query it.
fn default_route(all: &[Netdev]) -> Option<&Netdev> {
    [libc::AF_INET, libc::AF_INET6].into_iter().find_map(|family| {
        let mut body = [0; RTMSG];
        body[0] = family as u8;
        let Ok(routes) = netlink::dump(libc::RTM_GETROUTE, &body) else {
            let name = ioctl::default_route(family)?;
            return all.iter().find(|dev| dev.name == name);
        };
        let best = routes.iter().filter_map(|route| default_of(route, family)).min();
        best.and_then(|(_, index)| all.iter().find(|dev| dev.index == index))
    })
}

/// Logs that a sandbox forbids rtnetlink, and the consequence.
#[cold]
fn warn_once(what: &str, error: &io::Error) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            target: "peerdma::netdev",
            "rtnetlink does not list {what} ({error}): netdevs and addresses are read from /proc and by ioctl, and \
             changes are checked for once a second (under systemd, AF_NETLINK in RestrictAddressFamilies= allows it){}",
            sandbox::HINT
        );
    }
}

/// Metric and netdev of `route`, if it is a default route of the main table.
fn default_of(route: &Message, family: i32) -> Option<(u32, u32)> {
    // struct rtmsg: family, destination and source prefix lengths, tos, table, protocol, scope,
    // type.
    let is_default = route.kind == libc::RTM_NEWROUTE
        && i32::from(route.byte(0)) == family
        && route.byte(1) == 0
        && route.byte(4) == libc::RT_TABLE_MAIN
        && route.byte(7) == libc::RTN_UNICAST;
    if !is_default {
        return None;
    }
    let (mut metric, mut index) = (0, None);
    for (kind, value) in route.attributes(RTMSG) {
        match kind {
            libc::RTA_PRIORITY => metric = netlink::read_u32(value)?,
            libc::RTA_OIF => index = netlink::read_u32(value),
            // struct rtnexthop: length, flags, hops, then the index. Any of several will do.
            libc::RTA_MULTIPATH => index = index.or_else(|| netlink::read_u32(value.get(4..)?)),
            _ => {}
        }
    }
    Some((metric, index?))
}

pub(crate) fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|v6| Ipv6Addr::from(v6).into())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

#[cfg(test)]
pub(crate) mod netns;
#[cfg(test)]
mod tests;

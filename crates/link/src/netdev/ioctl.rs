//! The facts of netdevs where rtnetlink is forbidden, as by systemd's `RestrictAddressFamilies=` or
//! the seccomp filter of a container: ioctls on any socket that is allowed (netdevice(7)), and the
//! files of /proc/net.
//!
//! They report less. The kernel's order of a netdev's IPv6 addresses is unknown, so they are sorted
//! by number, which is stable; a socket of `AF_UNIX` knows no netmasks; and without /proc there are
//! no IPv6 addresses, no default route, and no netdevs without an IPv4 address.
#![allow(unsafe_code, reason = "the ioctls of netdevs, which rustix lacks")]

use std::collections::BTreeSet;
use std::ffi::c_ulong;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{Address, Netdev, Scope};

/// Every netdev of the network namespace, in any order.
pub(super) fn all() -> io::Result<Vec<Netdev>> {
    let socket = Socket::open()?;
    let ipv4 = socket.ipv4_addresses()?;
    let ipv6 = ipv6_addresses(&proc_net("if_inet6"));
    let listed = proc_net("dev");
    let listed = listed.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let mut names: BTreeSet<&str> = listed.collect();
    names.extend(ipv4.iter().map(|(name, _)| name.as_str()));
    // A netdev that disappears between two calls is left out.
    let found = names.into_iter().filter_map(|name| socket.describe(name).ok());
    let with_addresses = found.map(|mut dev| {
        let own_ipv4 = ipv4.iter().filter(|(name, _)| *name == dev.name);
        dev.addresses.extend(own_ipv4.map(|(_, address)| *address));
        let own_ipv6 = ipv6.iter().filter(|(index, _)| *index == dev.index);
        dev.addresses.extend(own_ipv6.map(|(_, address)| *address));
        dev.complete();
        dev
    });
    Ok(with_addresses.collect())
}

/// The name of the netdev of the best default route of a family.
pub(super) fn default_route(family: i32) -> Option<String> {
    match family {
        libc::AF_INET => best_route(&proc_net("route"), ipv4_default),
        _ => best_route(&proc_net("ipv6_route"), ipv6_default),
    }
}

/// A file of the network namespace of this thread; empty where there is no /proc.
fn proc_net(file: &str) -> String {
    let read = |place: &str| fs::read_to_string(format!("/proc/{place}/{file}")).ok();
    read("thread-self/net").or_else(|| read("net")).unwrap_or_default()
}

/// `RTF_UP` and not `RTF_REJECT`: the route leads somewhere.
fn leads_on(flags: u32) -> bool {
    flags & u32::from(libc::RTF_UP) != 0 && flags & u32::from(libc::RTF_REJECT) == 0
}

fn best_route(table: &str, parse: fn(&[&str]) -> Option<(u32, String)>) -> Option<String> {
    let routes = table.lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        parse(&words)
    });
    // Among equals, the first one stays the best.
    routes.min_by_key(|(metric, _)| *metric).map(|(_, name)| name)
}

/// Metric and name of a line of /proc/net/route: name, destination, gateway, flags, two counters,
/// metric, mask.
fn ipv4_default(words: &[&str]) -> Option<(u32, String)> {
    let [name, "00000000", _, flags, _, _, metric, "00000000", ..] = words else { return None };
    let flags = u32::from_str_radix(flags, 16).ok()?;
    leads_on(flags).then_some((metric.parse().ok()?, (*name).to_owned()))
}

/// The same of /proc/net/ipv6_route: destination and its length, source and its length, next hop,
/// metric, two counters, flags, name.
fn ipv6_default(words: &[&str]) -> Option<(u32, String)> {
    let [_, "00", _, _, _, metric, _, _, flags, name] = words else { return None };
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    leads_on(number(flags)?).then_some((number(metric)?, (*name).to_owned()))
}

/// The addresses of /proc/net/if_inet6 with the indexes of their netdevs, in the order of their
/// numbers.
fn ipv6_addresses(table: &str) -> Vec<(u32, Address)> {
    let parse = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [ip, index, prefix, scope, flags, _] = words[..] else { return None };
        let ip = Ipv6Addr::from(u128::from_str_radix(ip, 16).ok()?);
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        // IPV6_ADDR_LOOPBACK, LINKLOCAL and SITELOCAL.
        let scope = match number(scope)? {
            0x10 => Scope::Host,
            0x20 => Scope::Link,
            0x40 => Scope::Site,
            _ => Scope::Global,
        };
        let prefix = number(prefix)?.try_into().ok()?;
        Some((number(index)?, Address::new(ip.into(), prefix, scope, number(flags)?)?))
    };
    let mut found: Vec<_> = table.lines().filter_map(parse).collect();
    found.sort_by_key(|(index, address)| (*index, address.ip));
    found
}

/// `struct ifreq`: a name, and a union of the possible queries.
#[repr(C, align(8))]
#[derive(Clone)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; size_of::<libc::ifreq>() - libc::IFNAMSIZ],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

impl Request {
    const EMPTY: Self =
        Self { name: [0; libc::IFNAMSIZ], value: [0; size_of::<libc::ifreq>() - libc::IFNAMSIZ] };

    fn about(name: &str) -> io::Result<Self> {
        let mut request = Self::EMPTY;
        // The last byte stays 0.
        let place = request.name.split_last_mut().map(|(_, all)| all).unwrap_or_default();
        let place = place.get_mut(..name.len()).ok_or(io::ErrorKind::InvalidInput)?;
        place.copy_from_slice(name.as_bytes());
        Ok(request)
    }

    /// The name, without the label of an address (`eth0:1`).
    fn name(&self) -> String {
        let end = self.name.iter().position(|byte| matches!(byte, 0 | b':'));
        String::from_utf8_lossy(&self.name[..end.unwrap_or(self.name.len())]).into_owned()
    }

    /// The bytes at `offset` of the answer.
    fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let bytes = self.value.get(offset..).and_then(|bytes| bytes.first_chunk());
        bytes.copied().unwrap_or([0; N])
    }

    /// The answer as `struct sockaddr_in`: family, port, address.
    fn ipv4(&self) -> Option<Ipv4Addr> {
        let family = u16::from_ne_bytes(self.bytes(0));
        (i32::from(family) == libc::AF_INET).then(|| Ipv4Addr::from(self.bytes::<4>(4)))
    }
}

/// `struct ifconf`: bytes, and where.
#[repr(C)]
struct List {
    bytes: i32,
    requests: *mut Request,
}

/// `struct ethtool_drvinfo` of `ETHTOOL_GDRVINFO`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    versions: [[u8; 32]; 2],
    bus: [u8; 32],
    rest: [u8; 32 + 12 + 20],
}

const ETHTOOL_GDRVINFO: u32 = 3;

/// A socket for the queries.
struct Socket(OwnedFd);

impl Socket {
    /// Netdevs answer on a socket of any family, about the netmask only on one of IPv4.
    fn open() -> io::Result<Self> {
        let open = |family| socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        Ok(Self(open(AddressFamily::INET).or_else(|_| open(AddressFamily::UNIX))?))
    }

    fn describe(&self, name: &str) -> io::Result<Netdev> {
        let index = u32::from_ne_bytes(self.ask(name, libc::SIOCGIFINDEX)?.bytes(0));
        let flags = i16::from_ne_bytes(self.ask(name, libc::SIOCGIFFLAGS)?.bytes(0));
        let mtu = u32::from_ne_bytes(self.ask(name, libc::SIOCGIFMTU)?.bytes(0));
        let hardware = self.ask(name, libc::SIOCGIFHWADDR)?;
        let mut dev = Netdev::new(index, flags.into());
        name.clone_into(&mut dev.name);
        dev.mtu = mtu;
        // `struct sockaddr`, which does not say how many of its bytes are the address.
        if u16::from_ne_bytes(hardware.bytes(0)) == libc::ARPHRD_ETHER {
            dev.mac = hardware.bytes(2);
        }
        dev.kind = self.kind(name).unwrap_or_default();
        Ok(dev)
    }

    /// The driver of a netdev that is on no bus; `None` for `lo` and for physical devices.
    fn kind(&self, name: &str) -> Option<String> {
        let mut info = DriverInfo {
            command: ETHTOOL_GDRVINFO,
            driver: [0; 32],
            versions: [[0; 32]; 2],
            bus: [0; 32],
            rest: [0; 64],
        };
        let mut request = Request::about(name).ok()?;
        let place = (&raw mut info).expose_provenance().to_ne_bytes();
        request.value.first_chunk_mut().map(|value| *value = place)?;
        // SAFETY: the request points to a `struct ethtool_drvinfo`, which the call reads and fills.
        unsafe { self.call(libc::SIOCETHTOOL, &mut request) }.ok()?;
        let [driver, bus] = [info.driver, info.bus].map(|bytes| {
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(text).into_owned()
        });
        let is_virtual = bus.is_empty() || bus == "N/A";
        is_virtual.then(|| match driver.as_str() {
            "802.1Q VLAN Support" => "vlan".to_owned(),
            "bonding" => "bond".to_owned(),
            _ => driver,
        })
    }

    /// All IPv4 addresses with the names of their netdevs, in the kernel's order.
    fn ipv4_addresses(&self) -> io::Result<Vec<(String, Address)>> {
        let mut requests = vec![Request::EMPTY; 32];
        let count = loop {
            let mut list =
                List { bytes: size_of_val(&requests[..]) as i32, requests: requests.as_mut_ptr() };
            // SAFETY: the list names as many bytes as `requests` has, and the call fills these.
            unsafe { self.call(libc::SIOCGIFCONF, &mut list) }?;
            let count = list.bytes.unsigned_abs() as usize / size_of::<Request>();
            // A full list may be truncated.
            if count < requests.len() || requests.len() >= 1 << 16 {
                break count;
            }
            requests.resize(4 * requests.len(), Request::EMPTY);
        };
        let parse = |request: &Request| {
            let ip = request.ipv4()?;
            let scope = match ip {
                ip if ip.is_loopback() => Scope::Host,
                ip if ip.is_link_local() => Scope::Link,
                _ => Scope::Global,
            };
            // The address selects one of several.
            let mut mask = request.clone();
            // SAFETY: `SIOCGIFNETMASK` reads and fills a `struct ifreq`.
            let answer = unsafe { self.call(libc::SIOCGIFNETMASK, &mut mask) };
            let mask = answer.ok().and_then(|()| mask.ipv4()).unwrap_or(Ipv4Addr::BROADCAST);
            let prefix = mask.to_bits().leading_ones() as u8;
            Some((request.name(), Address::new(IpAddr::V4(ip), prefix, scope, 0)?))
        };
        Ok(requests.iter().take(count).filter_map(parse).collect())
    }

    /// Queries one fact of a netdev.
    fn ask(&self, name: &str, what: c_ulong) -> io::Result<Request> {
        let mut request = Request::about(name)?;
        // SAFETY: all of these read and fill a `struct ifreq`.
        unsafe { self.call(what, &mut request) }?;
        Ok(request)
    }

    /// # Safety
    ///
    /// `request` has the layout that `what` reads and fills, and what it points to can be written.
    unsafe fn call<T>(&self, what: c_ulong, request: &mut T) -> io::Result<()> {
        // SAFETY: as the caller promises.
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), what, std::ptr::from_mut(request)) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_default_route_is_up_and_has_the_least_metric() {
        let ipv4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            far\t00000000\t0102000A\t0003\t0\t0\t200\t00000000\t0\t0\t0\n\
            near\t00000000\t0101000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            net\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n\
            *\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0\n";
        assert_eq!(best_route(ipv4, ipv4_default).as_deref(), Some("near"));
        let zeros = "00000000000000000000000000000000";
        let ipv6 = format!(
            "{zeros} 00 {zeros} 00 fd770000000000000000000000000001 00000400 00000001 00000000 00000003 nic\n\
             {zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200 lo\n"
        );
        assert_eq!(best_route(&ipv6, ipv6_default).as_deref(), Some("nic"));
        assert_eq!(best_route("", ipv4_default), None);
    }

    #[test]
    fn an_ipv6_address_that_is_not_yet_ours_does_not_count() {
        let table = "fd770000000000000000000000000002 04 40 00 80 nic\n\
            fd770000000000000000000000000001 04 40 00 81 nic\n\
            fe800000000000000000000000000001 04 40 20 c0 nic\n\
            not a line\n";
        let found = ipv6_addresses(table);
        let ip = |text: &str| text.parse::<IpAddr>().expect("a literal address");
        let found: Vec<_> = found.iter().map(|(_, a)| (a.ip, a.is_temporary)).collect();
        assert_eq!(found, [(ip("fd77::1"), true), (ip("fd77::2"), false)]);
    }
}

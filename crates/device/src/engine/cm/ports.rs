//! Ports of this host, and which process has which.
//!
//! A port that a program requested by number, or listens on, is a *name* that this process holds in
//! the registry ([`link::registry::Directory`]): one per address. A wildcard has one per family and
//! all those of the netdev's addresses, as requests look up the address first: otherwise a later
//! process would get them. A free port for an endpoint that only connects needs no descriptor of
//! its own: processes claim *blocks* of the host's range of ephemeral ports.

use std::collections::BTreeMap;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use link::registry::{Directory, NameError, NameKey};

use rustc_hash::FxHashMap;

use crate::ids::CmId;
use crate::random::random;
use crate::rdma_cm::PortSpace;
use crate::refusal::{Kind, Refusal, Result, refuse};

/// Ports in a block.
const BLOCK: u16 = 64;
/// The range of ephemeral ports, where the host does not report one (Linux's own default).
const RANGE: (u16, u16) = (32768, 60999);

/// The port and address of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) space: PortSpace,
    pub(super) ip: IpAddr,
    pub(super) port: u16,
    pub(super) reuse: bool,
    pub(super) af_only: bool,
    pub(super) listening: bool,
}

impl Bound {
    /// The names for it if the netdev has these addresses.
    fn names(&self, own: &[IpAddr]) -> Vec<String> {
        let service = self.space.service_id(self.port);
        let mut names = match self.ip {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => vec![any_name(service, true)],
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) if self.af_only => vec![any_name(service, false)],
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
                vec![any_name(service, false), any_name(service, true)]
            }
            ip => return vec![name_of(service, ip)],
        };
        let takes =
            |ip: &&IpAddr| ip.is_ipv4() == self.ip.is_ipv4() || !self.ip.is_ipv4() && !self.af_only;
        names.extend(own.iter().filter(takes).map(|ip| name_of(service, *ip)));
        names
    }

    /// The name that would conflict with it if others held it, besides its own.
    fn rival(&self) -> Option<String> {
        let service = self.space.service_id(self.port);
        (!self.ip.is_unspecified()).then(|| any_name(service, self.ip.is_ipv4()))
    }

    /// Whether the two want the same port of the same address (the kernel's `cma_check_port`).
    fn collides(&self, other: &Self) -> bool {
        if (self.space, self.port) != (other.space, other.port) {
            return false;
        }
        if self.reuse && other.reuse && !self.listening && !other.listening {
            return false;
        }
        let any = |bound: &Self, family: &Self| {
            bound.ip.is_unspecified()
                && (bound.ip.is_ipv4() == family.ip.is_ipv4()
                    || bound.ip.is_ipv6() && !bound.af_only)
        };
        self.ip == other.ip || any(self, other) || any(other, self)
    }
}

/// How a port in use is refused: in the kernel's `cma_check_port`, if either side is the wildcard,
/// the address is not available; only for the same address, it is in use. See docs/semantics.md 6.
const fn when_taken(of_wildcard: bool) -> Kind {
    if of_wildcard { Kind::AddressNotAvailable } else { Kind::AddressInUse }
}

/// The name of a port on all addresses of a family.
pub(super) fn any_name(service: u64, v4: bool) -> String {
    format!("{service:x}@{}", if v4 { '4' } else { '6' })
}

/// The name of a port on one address.
pub(super) fn name_of(service: u64, ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(v4) => format!("{service:x}@{v4}"),
        IpAddr::V6(v6) => format!("{service:x}@{:x}", v6.to_bits()),
    }
}

/// The port of an endpoint, and its names; none for a free port that was only bound.
#[derive(Debug)]
struct Held {
    bound: Bound,
    names: Vec<String>,
}

/// The ports of this process.
#[derive(Debug, Default)]
pub(super) struct Ports {
    bound: FxHashMap<CmId, Held>,
    /// The names that we hold, and how many endpoints use each.
    names: BTreeMap<String, (NameKey, usize)>,
    /// How many endpoints use each port.
    users: FxHashMap<(PortSpace, u16), usize>,
    /// The blocks of ephemeral ports of this process, by their first port, with a bit for each port
    /// in use. They stay until the device is closed: a port is not reused soon.
    blocks: BTreeMap<(PortSpace, u16), u64>,
    range: Option<(u16, u16)>,
    /// Where the search for a free port continues.
    next: u16,
}

impl Ports {
    /// Binds an endpoint. Port 0 means any free port.
    pub(super) fn bind(
        &mut self,
        directory: &mut Directory,
        id: CmId,
        mut bound: Bound,
        own: &[IpAddr],
    ) -> Result<SocketAddr> {
        let mut names = Vec::new();
        if bound.port == 0 {
            bound.port = self.free_port(directory, &bound, own)?;
        } else {
            self.check(id, &bound)?;
            names = self.take_names(directory, &bound, own)?;
        }
        self.count_user(&bound, 1);
        self.bound.insert(id, Held { bound, names });
        Ok(SocketAddr::new(bound.ip, bound.port))
    }

    /// Makes sure that an endpoint's port is its own, for listening.
    pub(super) fn listen(
        &mut self,
        directory: &mut Directory,
        id: CmId,
        own: &[IpAddr],
    ) -> Result<Bound> {
        let Some(Held { bound, names }) = self.bound.get(&id) else {
            refuse!(Invalid, "listen: the endpoint is not bound");
        };
        let (listening, is_free) = (Bound { listening: true, ..*bound }, names.is_empty());
        self.check(id, &listening)?;
        // An ephemeral port has no names yet.
        let names = if is_free { self.take_names(directory, &listening, own)? } else { Vec::new() };
        if let Some(held) = self.bound.get_mut(&id) {
            held.bound = listening;
            held.names.extend(names);
        }
        Ok(listening)
    }

    /// Releases the port of an endpoint.
    pub(super) fn release(&mut self, directory: &mut Directory, id: CmId) {
        let Some(Held { bound, names }) = self.bound.remove(&id) else { return };
        self.count_user(&bound, -1);
        for name in names {
            self.drop_name(directory, &name);
        }
    }

    /// Follows the netdev, which has these addresses now: a wildcard's port is held on each.
    pub(super) fn follow(&mut self, directory: &mut Directory, own: &[IpAddr]) {
        let is_any = |held: &&Held| held.bound.ip.is_unspecified() && !held.names.is_empty();
        let any = self.bound.iter().filter(|(_, held)| is_any(held));
        for id in any.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(held) = self.bound.get_mut(&id) else { continue };
            let (bound, had) = (held.bound, std::mem::take(&mut held.names));
            let wanted = bound.names(own);
            for name in had.iter().filter(|name| !wanted.contains(name)) {
                self.drop_name(directory, name);
            }
            let mut names = Vec::new();
            for name in wanted {
                let taken =
                    if had.contains(&name) { Ok(()) } else { self.take_name(directory, &name) };
                match taken {
                    Ok(()) => names.push(name),
                    Err(error) => tracing::warn!(
                        target: "peerdma::cm",
                        "{:?} port {} on all addresses is not ours on a new address: {error}",
                        bound.space,
                        bound.port
                    ),
                }
            }
            if let Some(held) = self.bound.get_mut(&id) {
                held.names = names;
            }
        }
    }

    fn take_name(
        &mut self,
        directory: &mut Directory,
        name: &str,
    ) -> std::result::Result<(), NameError> {
        if let Some((_, users)) = self.names.get_mut(name) {
            *users += 1;
        } else {
            self.names.insert(name.to_owned(), (directory.claim(name)?, 1));
        }
        Ok(())
    }

    fn drop_name(&mut self, directory: &mut Directory, name: &str) {
        let Some((key, users)) = self.names.get_mut(name) else { return };
        *users -= 1;
        if *users == 0 {
            directory.release(*key);
            self.names.remove(name);
        }
    }

    /// Checks for conflicts with endpoints of this process.
    fn check(&self, id: CmId, bound: &Bound) -> Result<()> {
        let mut others = self.bound.iter().filter(|(other, _)| **other != id);
        let collision = others.find(|(_, held)| held.bound.collides(bound));
        let Some((other, rival)) = collision else { return Ok(()) };
        let (space, port, ip) = (bound.space, bound.port, bound.ip);
        let kind = when_taken(ip.is_unspecified() || rival.bound.ip.is_unspecified());
        let what = format!("{space:?} port {port} of {ip}: in use by endpoint {}", other.handle());
        Err(Refusal::new(kind, what))
    }

    /// Claims the names, so that no other process has them.
    fn take_names(
        &mut self,
        directory: &mut Directory,
        bound: &Bound,
        own: &[IpAddr],
    ) -> Result<Vec<String>> {
        let mut taken = Vec::new();
        let mut refused = None;
        for name in bound.names(own) {
            if let Err(error) = self.take_name(directory, &name) {
                refused = Some(error);
                break;
            }
            taken.push(name);
        }
        if refused.is_none() {
            // After our own names are claimed, so that of two processes that claim at once, at
            // least one sees the other.
            let rival = bound.rival().filter(|name| !self.names.contains_key(name));
            refused = rival.and_then(|name| {
                let by = directory.occupant(&name)?;
                Some(NameError::InUse { name, by })
            });
        }
        let Some(error) = refused else { return Ok(taken) };
        for name in taken {
            self.drop_name(directory, &name);
        }
        let kind = match error {
            NameError::InUse { .. } => {
                // A process with the wildcard also has each address.
                let has_wildcard = |any: String| directory.is_held(&any);
                when_taken(bound.ip.is_unspecified() || bound.rival().is_some_and(has_wildcard))
            }
            _ => Kind::NoMemory,
        };
        let (space, port, ip) = (bound.space, bound.port, bound.ip);
        Err(Refusal::new(kind, format!("{space:?} port {port} of {ip}: {error}")))
    }

    /// A port that no process has.
    fn free_port(
        &mut self,
        directory: &mut Directory,
        bound: &Bound,
        own: &[IpAddr],
    ) -> Result<u16> {
        loop {
            if let Some(port) = self.free_in_blocks(directory, bound, own) {
                return Ok(port);
            }
            if !self.claim_block(directory, bound.space)? {
                refuse!(AddressNotAvailable, "no {:?} port is free on this host", bound.space);
            }
        }
    }

    /// A port of our blocks of which nobody has a name that we would have. The names of a wildcard
    /// are among them, since it has one on each address, from a moment after the address is there.
    fn free_in_blocks(
        &mut self,
        directory: &mut Directory,
        bound: &Bound,
        own: &[IpAddr],
    ) -> Option<u16> {
        let is_free =
            |port: &u16| !directory.is_any_held(&Bound { port: *port, ..*bound }.names(own));
        let port = self.unused(bound.space).find(is_free)?;
        self.next = port.wrapping_add(1);
        Some(port)
    }

    /// The ports of our blocks that no endpoint uses. They begin after the last one that was handed
    /// out, so that a port rests before it is reused.
    fn unused(&self, space: PortSpace) -> impl Iterator<Item = u16> {
        let (at, within) = (self.next / BLOCK * BLOCK, self.next % BLOCK);
        let later = u64::MAX << within;
        let of = move |first, last| self.blocks.range((space, first)..=(space, last));
        let here = self.blocks.get(&(space, at)).copied().unwrap_or(u64::MAX);
        let after = at.checked_add(1).into_iter().flat_map(move |next| of(next, u16::MAX));
        let before = at.checked_sub(1).into_iter().flat_map(move |last| of(0, last));
        let rest = after.chain(before).map(|((_, first), used)| (*first, *used));
        // The first block comes again at the end, with its other half.
        let blocks =
            iter::once((at, here | !later)).chain(rest).chain(iter::once((at, here | later)));
        blocks.filter(|(_, used)| *used != u64::MAX).flat_map(|(first, used)| {
            (0..BLOCK).filter(move |bit| used >> bit & 1 == 0).map(move |bit| first + bit)
        })
    }

    /// Claims a block that no process has, if there is one.
    fn claim_block(&mut self, directory: &mut Directory, space: PortSpace) -> Result<bool> {
        let (low, high) = *self.range.get_or_insert_with(host_range);
        let firsts: Vec<u16> =
            (low.div_ceil(BLOCK)..high.div_euclid(BLOCK)).map(|at| at * BLOCK).collect();
        let start = random() as usize % firsts.len().max(1);
        for first in firsts.iter().cycle().skip(start).take(firsts.len()) {
            match directory.claim(&format!("ports/{:x}/{first}", space as u16)) {
                Ok(_) => {
                    self.blocks.insert((space, *first), 0);
                    self.next = *first;
                    return Ok(true);
                }
                Err(NameError::InUse { .. }) => {}
                Err(error) => refuse!(NoMemory, "a block of ports: {error}"),
            }
        }
        Ok(false)
    }

    /// One endpoint more, or one less, uses a port.
    fn count_user(&mut self, bound: &Bound, change: isize) {
        let key = (bound.space, bound.port);
        let users = self.users.entry(key).or_default();
        *users = users.saturating_add_signed(change);
        let is_used = *users > 0;
        if !is_used {
            self.users.remove(&key);
        }
        let first = bound.port / BLOCK * BLOCK;
        if let Some(used) = self.blocks.get_mut(&(bound.space, first)) {
            let bit = 1 << (bound.port - first);
            *used = if is_used { *used | bit } else { *used & !bit };
        }
    }
}

/// The host's range of ephemeral ports (ip(7), `ip_local_port_range`).
fn host_range() -> (u16, u16) {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let text = text.unwrap_or_default();
    let mut numbers = text.split_ascii_whitespace().map_while(|word| word.parse().ok());
    match (numbers.next(), numbers.next()) {
        // At least two blocks.
        (Some(low), Some(high)) if low >= BLOCK && high > low && high - low >= 3 * BLOCK => {
            (low, high)
        }
        _ => RANGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(ip: [u8; 4], port: u16) -> Bound {
        Bound {
            space: PortSpace::Tcp,
            ip: ip.into(),
            port,
            reuse: false,
            af_only: false,
            listening: false,
        }
    }

    #[test]
    fn ports_collide_by_space_family_and_address() {
        let (any, one, other) =
            (bound([0; 4], 5), bound([10, 0, 0, 1], 5), bound([10, 0, 0, 2], 5));
        assert!(any.collides(&one) && one.collides(&any) && one.collides(&one));
        assert!(!one.collides(&other) && !any.collides(&bound([0; 4], 6)));
        let six = Bound { ip: Ipv6Addr::UNSPECIFIED.into(), ..any };
        assert!(six.collides(&any) && one.collides(&six));
        let six_only = Bound { af_only: true, ..six };
        assert!(!six_only.collides(&any) && !one.collides(&six_only));
        let reuse = |bound| Bound { reuse: true, ..bound };
        assert!(!reuse(one).collides(&reuse(any)) && reuse(one).collides(&any));
        assert!(Bound { listening: true, ..reuse(one) }.collides(&reuse(any)));
        let udp = Bound { space: PortSpace::Udp, ..any };
        assert!(!udp.collides(&any));
    }

    #[test]
    fn processes_share_the_ports_of_their_host() {
        let nic = format!("ports-{}", std::process::id());
        let directory = |vf| Directory::new(&nic, vf).expect("descriptors");
        let (mut a, mut b) = ((Ports::default(), directory(1)), (Ports::default(), directory(2)));
        let own = [IpAddr::from([10, 0, 0, 1])];
        let bind = |(ports, directory): &mut (Ports, Directory), id, bound| {
            ports.bind(directory, CmId(id), bound, &own)
        };
        let refused = |result: Result<SocketAddr>| result.expect_err("it is another's").kind();
        let in_use = |result| assert_eq!(refused(result), Kind::AddressInUse);
        let not_available = |result| assert_eq!(refused(result), Kind::AddressNotAvailable);
        bind(&mut a, 1, bound([10, 0, 0, 1], 7174)).expect("free");
        in_use(bind(&mut a, 2, bound([10, 0, 0, 1], 7174)));
        in_use(bind(&mut b, 1, bound([10, 0, 0, 1], 7174)));
        not_available(bind(&mut a, 2, bound([0; 4], 7174)));
        not_available(bind(&mut b, 1, bound([0; 4], 7174)));
        a.0.release(&mut a.1, CmId(1));
        bind(&mut b, 1, bound([0; 4], 7174)).expect("free again");
        not_available(bind(&mut a, 1, bound([10, 0, 0, 1], 7174)));
        not_available(bind(&mut b, 2, bound([10, 0, 0, 1], 7174)));
        not_available(bind(&mut a, 1, bound([0; 4], 7174)));
        not_available(bind(&mut b, 2, bound([0; 4], 7174)));

        let mut seen = std::collections::BTreeSet::new();
        for id in 10..110 {
            for side in [&mut a, &mut b] {
                let addr = bind(side, id, bound([10, 0, 0, 1], 0)).expect("there are thousands");
                assert!(seen.insert(addr.port()), "{} was given out twice", addr.port());
            }
        }
        assert_eq!((a.0.blocks.len(), b.0.blocks.len()), (2, 2), "few descriptors");
        // Refusals name the process that has the port.
        bind(&mut a, 199, bound([10, 0, 0, 1], 7175)).expect("free");
        let refusal = bind(&mut b, 199, bound([0; 4], 7175)).expect_err("it is another's");
        assert!(refusal.what().contains(&format!("pid {}", std::process::id())), "{refusal:?}");

        let addr = bind(&mut a, 200, bound([0; 4], 0)).expect("there are thousands");
        a.0.listen(&mut a.1, CmId(200), &own).expect("it is ours");
        not_available(bind(&mut b, 200, bound([0; 4], addr.port())));
    }

    #[test]
    fn a_free_port_is_the_next_one_and_comes_again_after_all_others() {
        let nic = format!("next-{}", std::process::id());
        let (mut ours, mut ports) =
            (Directory::new(&nic, 1).expect("descriptors"), Ports::default());
        let mut stranger = Directory::new(&nic, 2).expect("descriptors");
        let own = [IpAddr::from([10, 0, 0, 1])];
        let mut free = |ports: &mut Ports, id| {
            let at = ports.bind(&mut ours, CmId(id), bound([10, 0, 0, 1], 0), &own);
            at.expect("there are thousands").port()
        };
        let first = free(&mut ports, 0);
        // Another process listens on the port after it.
        let taken = name_of(PortSpace::Tcp.service_id(first + 1), own[0]);
        stranger.claim(&taken).expect("nobody has it");
        let mut given = vec![first];
        given.extend((1..u32::from(BLOCK) - 1).map(|id| free(&mut ports, id)));
        let rest = (2..BLOCK).map(|at| first + at);
        assert_eq!(given, iter::once(first).chain(rest).collect::<Vec<_>>());
        assert_eq!(ports.blocks.len(), 1);
        // Two endpoints with one port: it is free when both are gone.
        let (mut ours, two) = (Directory::new(&nic, 3).expect("descriptors"), [100, 101].map(CmId));
        let shared = Bound { reuse: true, ..bound([10, 0, 0, 1], given[5]) };
        ports.release(&mut ours, CmId(5));
        for id in two {
            ports.bind(&mut ours, id, shared, &own).expect("both share it");
        }
        let is_unused = |ports: &Ports| ports.unused(PortSpace::Tcp).any(|port| port == given[5]);
        ports.release(&mut ours, two[0]);
        assert!(!is_unused(&ports));
        ports.release(&mut ours, two[1]);
        assert!(is_unused(&ports));
        // The port that was given back first is not given out first.
        ports.release(&mut ours, CmId(20));
        ports.next = given[10];
        assert_eq!(ports.unused(PortSpace::Tcp).collect::<Vec<_>>()[..2], [given[20], first + 1]);
    }

    #[test]
    fn a_port_of_all_addresses_is_held_on_each_even_on_later_ones() {
        let nic = format!("wildcard-{}", std::process::id());
        let directory = |vf| Directory::new(&nic, vf).expect("descriptors");
        let (mut ours, mut ports, mut stranger) = (directory(1), Ports::default(), directory(2));
        let [first, second, third] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        ports.bind(&mut ours, CmId(1), bound([0; 4], 7174), &[first]).expect("free");
        let name = |ip| name_of(PortSpace::Tcp.service_id(7174), ip);
        // A stranger follows no rule but the kernel's.
        let taken = |stranger: &mut Directory, ip| stranger.claim(&name(ip)).is_err();
        assert!(taken(&mut stranger, first));
        stranger.claim(&name(third)).expect("no address of ours");
        ports.follow(&mut ours, &[first, second, third]);
        assert!(taken(&mut stranger, first) && taken(&mut stranger, second));
        // The name of a removed address is free, and the others stay.
        ports.follow(&mut ours, &[second]);
        assert!(!taken(&mut stranger, first) && taken(&mut stranger, second));
        ports.release(&mut ours, CmId(1));
        assert_eq!((ours.names().count(), ports.names.len()), (0, 0));
    }
}

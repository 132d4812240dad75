//! What an engine says of itself.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::codec::{self, BadView, record};
use crate::counts::{ByPort, Counts, add};

/// Objects of a kind that one process describes; of more it says how many it left out.
pub const LIST_MAX: usize = 1 << 16;

record! {
    /// The objects of one process on a NIC.
    Process {
        /// Its VF.
        vf: u16,
        /// Its process id, as it sees it.
        pid: u32,
        /// A number by which this opening of the device is told from an earlier one of the VF.
        nonce: u64,
        /// The index of the netdev below the port.
        ifindex: u32,
        /// Objects that are not in the lists, because there are too many.
        left_out: u64,
        /// The counters of the first port, by name.
        counters: Vec<Counter>,
        /// Those of the other ports that counted something.
        other_ports: Vec<Port>,
        /// Contexts.
        contexts: Vec<Context>,
        /// Protection domains.
        pds: Vec<Pd>,
        /// Completion queues.
        cqs: Vec<Cq>,
        /// Queue pairs.
        qps: Vec<Qp>,
        /// Memory regions.
        mrs: Vec<Mr>,
        /// Shared receive queues.
        srqs: Vec<Srq>,
        /// Identifiers of the connection manager.
        cm_ids: Vec<CmId>,
        /// Why work requests failed, the latest last; told as keys are.
        failures: Vec<String>,
    }
}

record! {
    /// A port other than the first.
    Port {
        /// Its number.
        number: u32,
        /// Its counters that are not 0, by name.
        counters: Vec<Counter>,
    }
}

record! {
    /// A counter.
    Counter {
        /// Its name.
        name: String,
        /// Its value.
        value: u64,
    }
}

record! {
    /// An open device.
    Context {
        /// Its number.
        id: u32,
    }
}

record! {
    /// A protection domain.
    Pd {
        /// Its number.
        id: u32,
        /// The context it belongs to.
        context: u32,
        /// Objects in it.
        users: u64,
    }
}

record! {
    /// A completion queue.
    Cq {
        /// Its number.
        id: u32,
        /// The context it belongs to.
        context: u32,
        /// Completions it has room for.
        capacity: u32,
        /// Completions that the program has not taken.
        held: u32,
        /// Queues that complete here.
        users: u64,
        /// Whether it overran.
        is_overrun: bool,
    }
}

record! {
    /// How the packets of a queue pair go.
    Path {
        /// The carrier: `loopback`, `shm` or `udp`.
        carrier: String,
        /// Why it is this one.
        why: String,
        /// The VF of the peer, if it is a process of this host.
        vf: Option<u16>,
        /// The address of the peer.
        to: Address,
        /// The path MTU in bytes.
        mtu: u32,
    }
}

record! {
    /// A queue pair, or a work queue.
    Qp {
        /// Its number.
        qpn: u32,
        /// The index of its context.
        context: u32,
        /// Its protection domain, unless it is an XRC target.
        pd: Option<u32>,
        /// The queue of its send completions.
        send_cq: Option<u32>,
        /// The queue of its receive completions.
        recv_cq: Option<u32>,
        /// The shared receive queue, if it takes receives from one.
        srq: Option<u32>,
        /// Its type, as `enum ib_qp_type` numbers it.
        kind: u8,
        /// Its state, as `enum ib_qp_state` numbers it.
        state: u8,
        /// Its port; 0 before it has one.
        port: u8,
        /// The peer's number, if it has one peer.
        remote_qpn: Option<u32>,
        /// The next sequence number expected.
        rq_psn: u32,
        /// The next sequence number to send.
        sq_psn: u32,
        /// The path migration state: 0 migrated, 1 rearm, 2 armed.
        path_mig_state: u8,
        /// Sends posted and not completed.
        sends: u32,
        /// Receives posted and not completed.
        receives: u32,
        /// Timeouts since an answer last came.
        timeouts: u32,
        /// How its packets go, if it is connected.
        path: Option<Path>,
    }
}

record! {
    /// A memory region.
    Mr {
        /// Its number.
        id: u32,
        /// Its protection domain.
        pd: u32,
        /// Its local and remote key, and the address of its first byte as work requests name it.
        /// The process tells them only where whoever learns them may read its memory anyway.
        key: Option<u32>,
        /// See `key`.
        iova: Option<u64>,
        /// Its length in bytes.
        length: u64,
        /// The rights, as `enum ibv_access_flags` numbers them.
        access: u32,
        /// Its memory: `user`, `peer`, `dmabuf` or `dm`.
        memory: String,
        /// Whether its memory was revoked.
        is_revoked: bool,
    }
}

record! {
    /// A shared receive queue.
    Srq {
        /// Its number.
        id: u32,
        /// The context it belongs to.
        context: u32,
        /// Its protection domain, unless it has none.
        pd: Option<u32>,
        /// Its type, as `enum ib_srq_type` numbers it.
        kind: u8,
        /// Receives it holds.
        receives: u32,
        /// Receives it has room for.
        max_wr: u32,
    }
}

record! {
    /// An identifier of the connection manager.
    CmId {
        /// Its number.
        id: u32,
        /// Its port space, as `enum rdma_ucm_port_space` numbers it.
        port_space: u32,
        /// Its state, as `enum rdma_cm_state` numbers it.
        state: u8,
        /// The type of its queue pair, as `enum ib_qp_type` numbers it.
        kind: u8,
        /// Its queue pair, if it has one.
        qpn: Option<u32>,
        /// The local address, if it is bound.
        local: Option<Address>,
        /// The peer's address, if it is resolved.
        remote: Option<Address>,
    }
}

record! {
    /// An address and a port; IPv4 as a mapped address.
    Address {
        /// The address.
        ip: [u8; 16],
        /// The port.
        port: u16,
        /// The interface of an address of the link.
        scope: u32,
    }
}

impl Address {
    /// As a socket address.
    pub fn to_socket(&self) -> SocketAddr {
        let ip = Ipv6Addr::from(self.ip);
        match ip.to_ipv4_mapped() {
            Some(ip) => (ip, self.port).into(),
            None => std::net::SocketAddrV6::new(ip, self.port, 0, self.scope).into(),
        }
    }

    /// The address alone.
    pub fn to_ip(&self) -> IpAddr {
        self.to_socket().ip()
    }
}

impl From<SocketAddr> for Address {
    fn from(from: SocketAddr) -> Self {
        let (ip, scope) = match from {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        Self { ip: ip.octets(), port: from.port(), scope }
    }
}

impl Process {
    /// The description as bytes.
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// The description in bytes that another process gave.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadView> {
        codec::decode(bytes)
    }

    /// The counters of each port, by its number.
    pub fn ports(&self) -> impl Iterator<Item = (u32, &[Counter])> {
        let others = self.other_ports.iter().map(|port| (port.number, &port.counters[..]));
        std::iter::once((1, &self.counters[..])).chain(others)
    }

    /// The counters of each port, to be added up.
    pub(crate) fn by_port(&self) -> ByPort {
        let mut all = ByPort::default();
        self.ports().for_each(|(port, counters)| all.add(port, of(counters)));
        all
    }

    /// The counters of all ports together, by name.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::new();
        self.ports().for_each(|(_, counters)| add(&mut sum, of(counters)));
        sum
    }

    /// A counter of all ports together, by name; 0 if there is none.
    pub fn counter(&self, name: &str) -> u64 {
        let all = self.ports().flat_map(|(_, counters)| counters);
        all.filter(|counter| counter.name == name).fold(0, |sum, it| sum.wrapping_add(it.value))
    }

    /// Counts everything on the first port.
    pub(crate) fn count_as_one(&mut self) {
        let counter = |(name, value)| Counter { name, value };
        self.counters = self.counts().into_iter().map(counter).collect();
        self.other_ports.clear();
    }
}

/// Counters by name, to be added up.
pub(crate) fn of(counters: &[Counter]) -> impl Iterator<Item = (&str, u64)> {
    counters.iter().map(|counter| (counter.name.as_str(), counter.value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> Process {
        let to = Address::from(SocketAddr::from(([10, 0, 0, 1], 4791)));
        Process {
            vf: 3,
            pid: 4711,
            nonce: 9,
            ifindex: 2,
            left_out: 0,
            counters: vec![Counter { name: "tx_udp_packets".into(), value: 7 }],
            other_ports: vec![Port {
                number: 2,
                counters: vec![Counter { name: "tx_udp_packets".into(), value: 35 }],
            }],
            contexts: vec![Context { id: 0 }],
            pds: vec![Pd { id: 1, context: 0, users: 2 }],
            cqs: vec![Cq { id: 2, capacity: 16, held: 1, users: 1, ..Cq::default() }],
            qps: vec![Qp {
                qpn: 0xc010,
                kind: 2,
                state: 3,
                remote_qpn: Some(0xc011),
                path: Some(Path {
                    carrier: "udp".into(),
                    why: "another host".into(),
                    vf: None,
                    to: to.clone(),
                    mtu: 1024,
                }),
                ..Qp::default()
            }],
            mrs: vec![Mr {
                key: Some(0x101),
                length: 4096,
                memory: "user".into(),
                ..Mr::default()
            }],
            srqs: vec![Srq { id: 5, pd: Some(1), ..Srq::default() }],
            cm_ids: vec![CmId { port_space: 0x106, local: Some(to), ..CmId::default() }],
            failures: vec!["a reason".into()],
        }
    }

    #[test]
    fn a_description_survives_a_round_trip() {
        assert_eq!(Process::decode(&example().encode()), Ok(example()));
        assert_eq!(Process::decode(&Process::default().encode()), Ok(Process::default()));
    }

    #[test]
    fn the_counters_of_a_device_are_those_of_all_its_ports() {
        let mut process = example();
        assert_eq!(process.counter("tx_udp_packets"), 42);
        assert_eq!(process.counts(), Counts::from([("tx_udp_packets".to_owned(), 42)]));
        process.count_as_one();
        assert_eq!((process.counter("tx_udp_packets"), process.ports().count()), (42, 1));
    }

    #[test]
    fn what_is_cut_off_or_continued_is_refused() {
        let whole = example().encode();
        for end in 0..whole.len() {
            assert!(Process::decode(&whole[..end]).is_err(), "{end} bytes");
        }
        let mut longer = whole;
        longer.push(0);
        assert_eq!(Process::decode(&longer), Err(BadView::Long));
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = example().encode();
        bytes[..4].copy_from_slice(&7_u32.to_ne_bytes());
        assert_eq!(Process::decode(&bytes), Err(BadView::Version(7)));
    }

    #[test]
    fn a_list_that_claims_more_than_there_is_takes_no_memory() {
        let mut bytes = codec::VERSION.to_ne_bytes().to_vec();
        // All numbers before the counters, and then a count that no answer can have.
        bytes.extend([0; 2 + 4 + 8 + 4 + 8]);
        bytes.extend(u32::MAX.to_ne_bytes());
        assert_eq!(Process::decode(&bytes), Err(BadView::Short));
    }

    #[test]
    fn control_characters_of_another_process_are_refused() {
        let mut process = example();
        process.failures = vec!["\x1b[2J".into()];
        assert_eq!(Process::decode(&process.encode()), Err(BadView::Value));
    }

    proptest! {
        #[test]
        fn anything_decodes_or_is_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..400),
            at: usize,
            to: u8,
        ) {
            let _ = Process::decode(&bytes);
            let mut damaged = example().encode();
            let at = at % damaged.len();
            damaged[at] = to;
            if let Ok(process) = Process::decode(&damaged) {
                prop_assert_eq!(Process::decode(&process.encode()), Ok(process));
            }
        }
    }
}

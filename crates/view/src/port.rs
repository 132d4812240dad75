//! The counters of a NIC's ports: sums over its processes.

use std::collections::{BTreeMap, BTreeSet};

use crate::counts::{ByPort, Counts, add};
use crate::gather::Gathered;
use crate::ledger::Ledger;

/// The counters of a NIC's ports, as someone sees them that looks from time to time.
///
/// A process that ends leaves what it counted in a [`Ledger`]. One that was killed cannot; it stays
/// in the sum with the values that were seen last, so that no counter ever falls.
#[derive(Clone, Debug, Default)]
pub struct PortTotals {
    /// The processes that are there, by VF and nonce.
    there: BTreeMap<(u16, u64), ByPort>,
    /// The sum of those that were killed.
    killed: ByPort,
}

impl PortTotals {
    /// Takes in what the processes of the NIC show now.
    pub fn see(&mut self, gathered: &Gathered, ledger: &Ledger) {
        for (_, _, process) in &gathered.processes {
            self.there.insert((process.vf, process.nonce), process.by_port());
        }
        let is_there = |vf: u16, nonce: u64| {
            gathered.processes.iter().any(|(_, _, it)| (it.vf, it.nonce) == (vf, nonce))
                || gathered.missing.iter().any(|missing| missing.vf == vf)
        };
        for ((vf, nonce), counts) in std::mem::take(&mut self.there) {
            if ledger.has(vf, nonce) {
                continue;
            }
            if is_there(vf, nonce) {
                self.there.insert((vf, nonce), counts);
            } else {
                self.killed.merge(&counts);
            }
        }
    }

    /// Whether a counter is one that is made from others.
    pub fn is_made(name: &str) -> bool {
        PORT.iter().any(|made| made.name == name)
    }

    /// What is in the sums: those that were killed, those that have ended, those that are there.
    fn parts<'a>(&'a self, ledger: &'a Ledger) -> impl Iterator<Item = &'a ByPort> {
        // One may have ended since it was seen.
        let there = self.there.iter().filter(|((vf, nonce), _)| !ledger.has(*vf, *nonce));
        [&self.killed, ledger.counts()].into_iter().chain(there.map(|(_, counts)| counts))
    }

    /// The ports that something was counted on.
    pub fn ports(&self, ledger: &Ledger) -> BTreeSet<u32> {
        self.parts(ledger).flat_map(|part| part.each().map(|(port, _)| port)).collect()
    }

    /// The counters of a port by the names of the device's counters, and of the port counters of
    /// the InfiniBand specification that are made from them.
    pub fn counts(&self, ledger: &Ledger, port: u32) -> Counts {
        let mut sum = Counts::new();
        self.parts(ledger).for_each(|part| add(&mut sum, part.port(port)));
        let of = |names: &[&str]| {
            let values = names.iter().filter_map(|name| sum.get(*name));
            // Another process can say anything.
            values.fold(0_u64, |sum, value| sum.wrapping_add(*value))
        };
        let value = |made: &Made| of(made.of).saturating_sub(of(made.without)) / made.unit;
        let made = PORT.map(|made| (made.name.to_owned(), value(&made)));
        sum.extend(made);
        sum
    }
}

/// A port counter, and the counters of the device that it is made from.
struct Made {
    name: &'static str,
    /// What is added up.
    of: &'static [&'static str],
    /// What is in that sum and does not belong there.
    without: &'static [&'static str],
    /// How many one of it is.
    unit: u64,
}

const fn sum(name: &'static str, of: &'static [&'static str]) -> Made {
    Made { name, of, without: &[], unit: 1 }
}

/// `PortXmitData` and `PortRcvData` count words of 32 bits (IBA 16.1.3.5).
const fn words(name: &'static str, of: &'static [&'static str]) -> Made {
    Made { unit: 4, ..sum(name, of) }
}

/// The process that the kernel gives a datagram to and the one that it is for both count it as
/// received.
const fn received(name: &'static str) -> Made {
    Made { without: &["forwarded_packets"], ..sum(name, &RECEIVED) }
}

/// Packets between processes of this host are packets of the port. One-sided operations that need
/// none are not.
const PORT: [Made; 9] = [
    sum("port_xmit_packets", &SENT),
    sum("unicast_xmit_packets", &SENT),
    received("port_rcv_packets"),
    received("unicast_rcv_packets"),
    sum("multicast_xmit_packets", &["tx_multicast_packets"]),
    sum("multicast_rcv_packets", &["rx_multicast_packets"]),
    words("port_xmit_data", &["tx_bytes"]),
    words("port_rcv_data", &["rx_bytes"]),
    sum("port_rcv_errors", &["rx_malformed_packets", "rx_icrc_encapsulated"]),
];
const SENT: [&str; 4] = ["tx_udp_packets", "tx_shm_packets", "tx_raw_packets", "loopback_packets"];
const RECEIVED: [&str; 4] =
    ["rx_udp_packets", "rx_shm_packets", "rx_raw_packets", "rx_loopback_packets"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::Missing;
    use crate::process::{Counter, Port, Process};

    fn process(vf: u16, nonce: u64, sent: u64) -> (String, u32, Process) {
        let counters = vec![Counter { name: "tx_udp_packets".into(), value: sent }];
        (String::new(), 1, Process { vf, nonce, counters, ..Process::default() })
    }

    fn seen(processes: Vec<(String, u32, Process)>, missing: &[u16]) -> Gathered {
        let missing = missing.iter().map(|vf| Missing {
            vf: *vf,
            pid: None,
            uid: 0,
            comm: None,
            reason: String::new(),
        });
        Gathered { processes, missing: missing.collect() }
    }

    fn sent(totals: &PortTotals, ledger: &Ledger) -> u64 {
        totals.counts(ledger, 1)["port_xmit_packets"]
    }

    #[test]
    fn a_process_that_ends_counts_all_it_did_and_once() {
        let (mut totals, mut ledger) = (PortTotals::default(), Ledger::default());
        ledger.add(&process(3, 1, 100).2);
        assert_eq!(sent(&totals, &ledger), 100, "nobody had seen it");
        totals.see(&seen(vec![process(0, 1, 5)], &[]), &ledger);
        ledger.add(&process(0, 1, 8).2);
        assert_eq!(sent(&totals, &ledger), 108, "it went on after it was seen");
        totals.see(&seen(vec![process(0, 1, 8)], &[]), &ledger);
        assert_eq!(sent(&totals, &ledger), 108, "it was seen again before it was gone");
        totals.see(&seen(vec![], &[]), &ledger);
        assert_eq!(sent(&totals, &ledger), 108);
    }

    #[test]
    fn data_is_counted_in_words_and_what_is_forwarded_once() {
        let counters = [
            ("tx_bytes", 4098),
            ("rx_bytes", 80),
            ("tx_shm_packets", 9),
            ("tx_udp_packets", 7),
            ("rx_udp_packets", 5),
            ("forwarded_packets", 1),
        ];
        let counter = |(name, value): (&str, u64)| Counter { name: name.to_owned(), value };
        let counters = counters.map(counter).to_vec();
        let process = (String::new(), 1, Process { counters, ..Process::default() });
        let mut totals = PortTotals::default();
        let ledger = Ledger::default();
        totals.see(&seen(vec![process], &[]), &ledger);
        let counts = totals.counts(&ledger, 1);
        let values = [
            ("port_xmit_data", 1024),
            ("port_rcv_data", 20),
            ("port_xmit_packets", 16),
            ("port_rcv_packets", 4),
        ];
        for (name, value) in values {
            assert_eq!(counts[name], value, "{name}");
        }
    }

    #[test]
    fn the_counters_of_a_port_are_those_of_all_its_processes_and_never_fall() {
        let (mut totals, ledger) = (PortTotals::default(), Ledger::default());
        totals.see(&seen(vec![process(0, 1, 5), process(1, 2, 7)], &[]), &ledger);
        assert_eq!(sent(&totals, &ledger), 12);
        totals.see(&seen(vec![process(1, 2, 8)], &[]), &ledger);
        assert_eq!(sent(&totals, &ledger), 13, "one has ended");
        totals.see(&seen(vec![process(0, 9, 1), process(1, 2, 8)], &[]), &ledger);
        assert_eq!(sent(&totals, &ledger), 14, "another process has its VF");
        totals.see(&seen(vec![], &[0, 1]), &ledger);
        assert_eq!(sent(&totals, &ledger), 14, "both are stopped");
        totals.see(&seen(vec![process(0, 9, 2)], &[1]), &ledger);
        assert_eq!(sent(&totals, &ledger), 15, "each counts once");
    }

    #[test]
    fn each_port_has_its_own_counters_whether_a_process_is_there_killed_or_has_ended() {
        let two = |vf: u16, first: u64, second: u64| {
            let (comm, pid, mut process) = process(vf, 1, first);
            let counters = vec![Counter { name: "tx_udp_packets".into(), value: second }];
            process.other_ports = vec![Port { number: 2, counters }];
            (comm, pid, process)
        };
        let (mut totals, mut ledger) = (PortTotals::default(), Ledger::default());
        totals.see(&seen(vec![two(0, 1, 10), two(1, 2, 20)], &[]), &ledger);
        totals.see(&seen(vec![two(1, 2, 20)], &[]), &ledger);
        ledger.add(&two(2, 4, 40).2);
        let sent = |port| totals.counts(&ledger, port)["port_xmit_packets"];
        assert_eq!([1, 2, 3].map(sent), [7, 70, 0]);
        assert_eq!(totals.ports(&ledger).into_iter().collect::<Vec<_>>(), [1, 2]);
    }
}

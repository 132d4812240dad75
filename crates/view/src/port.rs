//! The counters of a port: the sum over its processes.

use std::collections::BTreeMap;

use crate::gather::Gathered;
use crate::process::Process;

/// Counters by name.
pub type Counts = BTreeMap<String, u64>;

/// The counters of a port, as someone sees them that looks from time to time.
///
/// Those of a process that has ended stay in the sum with the values that were seen last, so that
/// no counter ever falls. What a process counted after that, or between two looks if it lived no
/// longer, is in nobody's memory.
#[derive(Clone, Debug, Default)]
pub struct PortTotals {
    /// The processes that are there, by VF and nonce.
    there: BTreeMap<(u16, u64), Counts>,
    /// The sum of those that have ended.
    ended: Counts,
}

impl PortTotals {
    /// Takes in what the processes of the port show now.
    pub fn see(&mut self, gathered: &Gathered) {
        for (_, _, process) in &gathered.processes {
            self.there.insert((process.vf, process.nonce), counts(process));
        }
        let is_there = |vf: u16, nonce: u64| {
            gathered.processes.iter().any(|(_, _, it)| (it.vf, it.nonce) == (vf, nonce))
                || gathered.missing.iter().any(|missing| missing.vf == vf)
        };
        for ((vf, nonce), counts) in std::mem::take(&mut self.there) {
            if is_there(vf, nonce) {
                self.there.insert((vf, nonce), counts);
            } else {
                add(&mut self.ended, &counts);
            }
        }
    }

    /// Whether a counter is one that is made from others.
    pub fn is_made(name: &str) -> bool {
        PORT.iter().any(|(made, _)| *made == name)
    }

    /// The counters of the port by the names of the device's counters, and of the port counters of
    /// the InfiniBand specification that are made from them.
    pub fn counts(&self) -> Counts {
        let mut sum = self.ended.clone();
        self.there.values().for_each(|counts| add(&mut sum, counts));
        let of = |names: &[&str]| names.iter().filter_map(|name| sum.get(*name)).sum::<u64>();
        let made = PORT.map(|(name, parts)| (name.to_owned(), of(parts)));
        sum.extend(made);
        sum
    }
}

/// Port counters, and the counters of the device whose sum each is. Packets between processes of
/// this host are packets of the port. One-sided operations that need none are not.
const PORT: [(&str, &[&str]); 7] = [
    ("port_xmit_packets", &SENT),
    ("unicast_xmit_packets", &SENT),
    ("port_rcv_packets", &RECEIVED),
    ("unicast_rcv_packets", &RECEIVED),
    ("multicast_xmit_packets", &["tx_multicast_packets"]),
    ("multicast_rcv_packets", &["rx_multicast_packets"]),
    ("port_rcv_errors", &["rx_malformed_packets", "rx_icrc_encapsulated"]),
];
const SENT: [&str; 4] = ["tx_udp_packets", "tx_shm_packets", "tx_raw_packets", "loopback_packets"];
const RECEIVED: [&str; 4] =
    ["rx_udp_packets", "rx_shm_packets", "rx_raw_packets", "loopback_packets"];

fn counts(process: &Process) -> Counts {
    process.counters.iter().map(|counter| (counter.name.clone(), counter.value)).collect()
}

fn add(sum: &mut Counts, counts: &Counts) {
    for (name, value) in counts {
        let total = sum.entry(name.clone()).or_default();
        *total = total.wrapping_add(*value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::Missing;
    use crate::process::Counter;

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

    fn sent(totals: &PortTotals) -> u64 {
        totals.counts()["port_xmit_packets"]
    }

    #[test]
    fn the_counters_of_a_port_are_those_of_all_its_processes_and_never_fall() {
        let mut totals = PortTotals::default();
        totals.see(&seen(vec![process(0, 1, 5), process(1, 2, 7)], &[]));
        assert_eq!(sent(&totals), 12);
        totals.see(&seen(vec![process(1, 2, 8)], &[]));
        assert_eq!(sent(&totals), 13, "one has ended");
        totals.see(&seen(vec![process(0, 9, 1), process(1, 2, 8)], &[]));
        assert_eq!(sent(&totals), 14, "another process has its VF");
        totals.see(&seen(vec![], &[0, 1]));
        assert_eq!(sent(&totals), 14, "both are stopped");
        totals.see(&seen(vec![process(0, 9, 2)], &[1]));
        assert_eq!(sent(&totals), 15, "each counts once");
    }
}

//! What processes that have ended had counted.

use std::collections::{BTreeSet, VecDeque};
use std::io;

use link::registry;

use crate::codec::{self, BadView, Coded};
use crate::counts::{ByPort, Counts};
use crate::process::{Counter, Port, Process, of};

/// Ended processes that are known by their number, so that none counts twice. One that is not among
/// them any more would count again if a look still finds it.
const KNOWN: usize = 1 << 16;

/// Those that another keeper is told of: only a process that ends while that one begins may come
/// twice.
const TOLD: usize = 4096;

/// The counters of processes that have ended, as they left them.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    counts: ByPort,
    known: BTreeSet<(u16, u64)>,
    /// The same in their order.
    order: VecDeque<(u16, u64)>,
}

/// Leaves what a process counted with all that keep a ledger of `nic`. For a process that ends.
///
/// # Errors
///
/// If they cannot be found, because /proc cannot be read.
pub fn leave(nic: &str, mut process: Process) -> io::Result<()> {
    process.counters.retain(|counter| counter.value > 0);
    if process.counters.is_empty() && process.other_ports.is_empty() {
        return Ok(());
    }
    let mut bytes = process.encode();
    if bytes.len() > registry::LEFT_MAX {
        process.count_as_one();
        bytes = process.encode();
    }
    registry::leave(nic, &bytes)
}

impl Ledger {
    /// Takes in what a process left; once, however often it comes.
    pub fn add(&mut self, process: &Process) {
        if self.know((process.vf, process.nonce)) {
            self.counts.merge(&process.by_port());
        }
    }

    /// Whether a process has left what it counted.
    pub(crate) fn has(&self, vf: u16, nonce: u64) -> bool {
        self.known.contains(&(vf, nonce))
    }

    /// The sums of those that have ended.
    pub(crate) fn counts(&self) -> &ByPort {
        &self.counts
    }

    /// False if it was known.
    fn know(&mut self, opening: (u16, u64)) -> bool {
        if !self.known.insert(opening) {
            return false;
        }
        self.order.push_back(opening);
        if self.order.len() > KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }

    /// For another keeper, which begins.
    pub fn encode(&self) -> Vec<u8> {
        let bytes = codec::encode(self);
        if bytes.len() <= registry::LEFT_MAX {
            return bytes;
        }
        let mut small = self.clone();
        small.counts.count_as_one();
        codec::encode(&small)
    }

    /// What another keeper told.
    ///
    /// # Errors
    ///
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadView> {
        codec::decode(bytes)
    }
}

impl Coded for Ledger {
    fn put(&self, out: &mut Vec<u8>) {
        let counter =
            |(name, value): (&String, &u64)| Counter { name: name.clone(), value: *value };
        let port = |(number, counts): (u32, &Counts)| {
            let counters = counts.iter().map(counter).collect();
            Port { number, counters }
        };
        let ports: Vec<Port> = self.counts.each().map(port).collect();
        let latest = self.order.iter().skip(self.order.len().saturating_sub(TOLD));
        let (vfs, nonces): (Vec<u16>, Vec<u64>) = latest.copied().unzip();
        ports.put(out);
        vfs.put(out);
        nonces.put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, BadView> {
        let ports = Vec::<Port>::take(from)?;
        let (vfs, nonces) = (Vec::<u16>::take(from)?, Vec::<u64>::take(from)?);
        if vfs.len() != nonces.len() {
            return Err(BadView::Value);
        }
        let mut ledger = Self::default();
        ports.iter().for_each(|it| ledger.counts.add(it.number, of(&it.counters)));
        for opening in vfs.into_iter().zip(nonces) {
            ledger.know(opening);
        }
        Ok(ledger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(vf: u16, nonce: u64, sent: u64) -> Process {
        let counters = vec![Counter { name: "tx_udp_packets".into(), value: sent }];
        Process { vf, nonce, counters, ..Process::default() }
    }

    /// What was sent on all ports.
    fn sent(ledger: &Ledger) -> u64 {
        ledger.counts().each().map(|(_, counts)| counts["tx_udp_packets"]).sum()
    }

    #[test]
    fn each_process_counts_once_also_with_a_keeper_that_begins() {
        let mut old = Ledger::default();
        old.add(&ended(1, 1, 5));
        old.add(&ended(1, 2, 7));
        old.add(&ended(1, 2, 7));
        assert_eq!(sent(&old), 12);
        let mut new = Ledger::decode(&old.encode()).expect("a ledger");
        new.add(&ended(1, 2, 7));
        new.add(&ended(2, 1, 1));
        assert_eq!(sent(&new), 13);
    }

    #[test]
    fn what_is_no_ledger_is_refused() {
        let mut ledger = Ledger::default();
        ledger.add(&ended(1, 1, 5));
        let whole = ledger.encode();
        for end in 0..whole.len() {
            assert!(Ledger::decode(&whole[..end]).is_err(), "{end} bytes");
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(Ledger::decode(&longer).err(), Some(BadView::Long));
    }

    #[test]
    fn a_ledger_is_bounded() {
        let mut ledger = Ledger::default();
        for nonce in 0..KNOWN as u64 + 2 {
            ledger.add(&ended(0, nonce, 1));
        }
        assert_eq!(sent(&ledger), KNOWN as u64 + 2);
        assert!(!ledger.has(0, 1) && ledger.has(0, 2));
        assert!(ledger.encode().len() < 1 << 16, "it fits in a message");
    }

    #[test]
    fn more_ports_than_a_message_holds_are_counted_as_one() {
        let ports = |count: u32| {
            let name = |at: u32| format!("a_counter_with_a_name_of_usual_length_{at}");
            let counters: Vec<Counter> =
                (0..20).map(|at| Counter { name: name(at), value: 1 }).collect();
            let port = |number| {
                let sent = Counter { name: "tx_udp_packets".into(), value: 2 };
                Port { number, counters: [&counters[..], &[sent]].concat() }
            };
            Process { other_ports: (2..count + 2).map(port).collect(), ..ended(1, 1, 1) }
        };
        for (count, numbers) in [(2, vec![1, 2, 3]), (1000, vec![1])] {
            let mut old = Ledger::default();
            old.add(&ports(count));
            let bytes = old.encode();
            assert!(bytes.len() <= registry::LEFT_MAX, "{count} ports: {}", bytes.len());
            let new = Ledger::decode(&bytes).expect("a ledger");
            assert_eq!(sent(&new), 1 + 2 * u64::from(count));
            assert_eq!(new.counts().each().map(|(port, _)| port).collect::<Vec<_>>(), numbers);
        }
    }
}

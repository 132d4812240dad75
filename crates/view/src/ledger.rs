//! What processes that have ended had counted.

use std::collections::{BTreeSet, VecDeque};
use std::io;

use link::registry;

use crate::codec::{self, BadView, Coded};
use crate::port::{Counts, add};
use crate::process::{Counter, Process};

/// Ended processes that are known by their number, so that none counts twice. One that is not among
/// them any more would count again if a look still finds it.
const KNOWN: usize = 1 << 16;

/// Those that another keeper is told of: only a process that ends while that one begins may come
/// twice.
const TOLD: usize = 4096;

/// The counters of processes that have ended, as they left them.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    counts: Counts,
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
    if process.counters.is_empty() {
        return Ok(());
    }
    registry::leave(nic, &process.encode())
}

impl Ledger {
    /// Takes in what a process left; once, however often it comes.
    pub fn add(&mut self, process: &Process) {
        if self.know((process.vf, process.nonce)) {
            self.sum(&process.counters);
        }
    }

    fn sum(&mut self, counters: &[Counter]) {
        let counters = counters.iter();
        add(&mut self.counts, counters.map(|counter| (counter.name.as_str(), counter.value)));
    }

    /// Whether a process has left what it counted.
    pub(crate) fn has(&self, vf: u16, nonce: u64) -> bool {
        self.known.contains(&(vf, nonce))
    }

    /// The sums of those that have ended.
    pub(crate) fn counts(&self) -> &Counts {
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
        codec::encode(self)
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
        let counters: Vec<Counter> = self.counts.iter().map(counter).collect();
        let latest = self.order.iter().skip(self.order.len().saturating_sub(TOLD));
        let (vfs, nonces): (Vec<u16>, Vec<u64>) = latest.copied().unzip();
        counters.put(out);
        vfs.put(out);
        nonces.put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, BadView> {
        let counters = Vec::<Counter>::take(from)?;
        let (vfs, nonces) = (Vec::<u16>::take(from)?, Vec::<u64>::take(from)?);
        if vfs.len() != nonces.len() {
            return Err(BadView::Value);
        }
        let mut ledger = Self::default();
        ledger.sum(&counters);
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

    #[test]
    fn each_process_counts_once_also_with_a_keeper_that_begins() {
        let mut old = Ledger::default();
        old.add(&ended(1, 1, 5));
        old.add(&ended(1, 2, 7));
        old.add(&ended(1, 2, 7));
        assert_eq!(old.counts()["tx_udp_packets"], 12);
        let mut new = Ledger::decode(&old.encode()).expect("a ledger");
        new.add(&ended(1, 2, 7));
        new.add(&ended(2, 1, 1));
        assert_eq!(new.counts()["tx_udp_packets"], 13);
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
        assert_eq!(ledger.counts()["tx_udp_packets"], KNOWN as u64 + 2);
        assert!(!ledger.has(0, 1) && ledger.has(0, 2));
        assert!(ledger.encode().len() < 1 << 16, "it fits in a message");
    }
}

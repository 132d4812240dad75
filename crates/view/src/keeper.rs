//! Keeping a ledger.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use link::registry::{self, Visit};

use crate::ledger::Ledger;
use crate::process::Process;

/// Where processes of a NIC leave what they counted.
#[derive(Debug)]
pub struct Keeper(registry::Keeper);

impl Keeper {
    /// Begins to keep a ledger of `nic` in this network namespace, with what another keeper knows
    /// if it answers within `patience`. Call [`Keeper::hear`] when the descriptor is readable.
    ///
    /// # Errors
    ///
    /// If there are too many keepers, or no descriptors.
    pub fn open(nic: &str, patience: Duration) -> io::Result<(Self, Ledger)> {
        let keeper = registry::Keeper::open(nic)?;
        let (told, left) = keeper.ask_another(patience);
        let inherited = told.map_or_else(|| Ok(Ledger::default()), |told| Ledger::decode(&told));
        let mut ledger = inherited.unwrap_or_else(|bad| {
            tracing::info!(target: "peerdma::peer", %bad, "another keeper of {nic}");
            Ledger::default()
        });
        left.iter().for_each(|bytes| take(&mut ledger, bytes));
        Ok((Self(keeper), ledger))
    }

    /// Takes in what was left, and answers keepers that begin.
    pub fn hear(&self, ledger: &mut Ledger) {
        loop {
            let visits = self.0.visits();
            if visits.is_empty() {
                return;
            }
            for visit in visits {
                match visit {
                    Visit::Left(bytes) => take(ledger, &bytes),
                    Visit::Asked(other) => other.answer(&ledger.encode()),
                }
            }
        }
    }
}

fn take(ledger: &mut Ledger, bytes: &[u8]) {
    match Process::decode(bytes) {
        Ok(process) => ledger.add(&process),
        Err(bad) => tracing::info!(target: "peerdma::peer", %bad, "a process that ended"),
    }
}

impl AsFd for Keeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::leave;
    use crate::process::Counter;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn ended(nonce: u64) -> Process {
        let counters = vec![Counter { name: "tx_udp_packets".into(), value: 5 }];
        Process { vf: 1, nonce, counters, ..Process::default() }
    }

    fn sent(ledger: &Ledger) -> u64 {
        let mut sent = ledger.counts().port(1).filter(|(name, _)| *name == "tx_udp_packets");
        sent.next().map_or(0, |(_, sent)| sent)
    }

    #[test]
    fn what_a_process_leaves_is_in_every_ledger_also_in_later_ones() {
        let nic = format!("ledger-{}", std::process::id());
        let (keeper, mut ledger) = Keeper::open(&nic, PATIENCE).expect("a keeper");
        leave(&nic, ended(1)).expect("told");
        leave(&nic, ended(2)).expect("told");
        keeper.hear(&mut ledger);
        assert_eq!(sent(&ledger), 10);
        let (later, mut inherited) = std::thread::scope(|scope| {
            let opened = scope.spawn(|| Keeper::open(&nic, PATIENCE).expect("another"));
            while !opened.is_finished() {
                keeper.hear(&mut ledger);
                std::thread::yield_now();
            }
            opened.join().expect("no panic")
        });
        assert_eq!(sent(&inherited), 10);
        leave(&nic, ended(3)).expect("told");
        later.hear(&mut inherited);
        keeper.hear(&mut ledger);
        assert_eq!(sent(&inherited), 15);
        assert_eq!(sent(&ledger), 15);
    }

    #[test]
    fn a_process_that_counted_nothing_leaves_nothing() {
        let nic = format!("silent-{}", std::process::id());
        let (keeper, mut ledger) = Keeper::open(&nic, PATIENCE).expect("a keeper");
        leave(&nic, Process { nonce: 1, ..Process::default() }).expect("nobody is told");
        keeper.hear(&mut ledger);
        assert!(!ledger.has(0, 1));
    }
}

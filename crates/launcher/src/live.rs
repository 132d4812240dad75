//! What the processes of our NICs have and count, asked when somebody looks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use view::{Counts, Gathered, Keeper, Ledger, PortTotals};

use crate::netlink::Machine;
use crate::sysfs::NicFacts;

/// For how long an answer is good: programs read dozens of counters one after the other. It is the
/// `lifespan` that `hw_counters` has.
const GOOD_FOR: Duration = Duration::from_millis(10);

/// How long to wait for processes that may be stopped.
const PATIENCE: Duration = Duration::from_millis(200);

/// TIMEOUT: how long to wait for what another keeper knows. It answers at once, unless it was
/// stopped; on a busy machine it may be late.
const INHERITANCE: Duration = Duration::from_secs(1);

/// The NICs of a program, and what was last seen of their processes.
#[derive(Debug)]
pub(crate) struct Live {
    nics: Vec<NicFacts>,
    seen: Mutex<BTreeMap<usize, Seen>>,
    /// What processes left that have ended.
    ledgers: Mutex<BTreeMap<usize, Ledger>>,
    /// Where they leave it, by NIC.
    keepers: OnceLock<Vec<(usize, Keeper)>>,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    objects: Arc<Gathered>,
    totals: PortTotals,
}

/// While there is one, nobody is asked anything.
pub(crate) struct Still<'a> {
    _seen: MutexGuard<'a, BTreeMap<usize, Seen>>,
}

impl Live {
    pub(crate) fn new(nics: Vec<NicFacts>) -> Self {
        Self { nics, seen: Mutex::default(), ledgers: Mutex::default(), keepers: OnceLock::new() }
    }

    /// Waits until nobody is being asked, and asks nobody from then on.
    pub(crate) fn keep_still(&self) -> Still<'_> {
        Still { _seen: self.lock() }
    }

    /// The value of a counter of a NIC's port; 0 if no process has counted it.
    pub(crate) fn counter(&self, nic: &str, port: &str, name: &str) -> u64 {
        let nic = self.nics.iter().position(|known| known.name == nic);
        let (Some(nic), Ok(port)) = (nic, port.parse()) else { return 0 };
        self.counters(nic, port).get(name).copied().unwrap_or(0)
    }

    /// The files of all counters of ports that something was counted on, below `/`, and what they
    /// say now. Those of other ports say 0, as they did at first.
    pub(crate) fn counter_files(&self) -> Vec<(String, u64)> {
        let mut files = Vec::new();
        for (index, nic) in self.nics.iter().enumerate() {
            let mut add = |totals: &PortTotals, ledger: &Ledger| {
                for port in totals.ports(ledger).range(1..=nic.ports) {
                    let counts = totals.counts(ledger, *port);
                    let value = |name| counts.get(name).copied().unwrap_or(0);
                    let all = nic.counter_files(*port);
                    files.extend(all.map(|(file, name)| (file, value(name))));
                }
            };
            self.look(index, |seen| self.ledger(index, |ledger| add(&seen.totals, ledger)));
        }
        files
    }

    fn look<T>(&self, nic: usize, read: impl FnOnce(&Seen) -> T) -> T {
        let mut seen = self.lock();
        let now = Instant::now();
        let known = seen.entry(nic).or_insert_with(|| Seen {
            at: now,
            objects: Arc::default(),
            totals: PortTotals::default(),
        });
        let is_new = known.at == now;
        if is_new || now.duration_since(known.at) >= GOOD_FOR {
            match view::gather(&self.nics[nic].name, PATIENCE) {
                Ok(gathered) => {
                    // A process that is not there any more has left its counters by now.
                    self.hear();
                    self.ledger(nic, |ledger| known.totals.see(&gathered, ledger));
                    known.objects = Arc::new(gathered);
                }
                Err(error) => tracing::warn!(%error, "door: the processes of the NIC"),
            }
            known.at = Instant::now();
        }
        read(known)
    }

    /// Begins to keep what processes count that end from now on, and learns from another keeper
    /// what those counted that have ended. The caller calls [`Live::hear`] when one of
    /// [`Live::keepers`] is readable.
    pub(crate) fn keep(&self) {
        let mut keepers = Vec::new();
        for (index, nic) in self.nics.iter().enumerate() {
            match Keeper::open(&nic.name, INHERITANCE) {
                Ok((keeper, inherited)) => {
                    self.ledger(index, |ledger| *ledger = inherited);
                    keepers.push((index, keeper));
                }
                Err(error) => {
                    tracing::info!(%error, "door: what processes count is forgotten with them");
                }
            }
        }
        // Nobody else sets it.
        let _ = self.keepers.set(keepers);
    }

    /// Where processes leave what they counted.
    pub(crate) fn keepers(&self) -> impl Iterator<Item = &Keeper> {
        self.keepers.get().into_iter().flatten().map(|(_, keeper)| keeper)
    }

    /// Takes in what was left. Descriptors are opened and closed meanwhile.
    pub(crate) fn hear(&self) {
        for (nic, keeper) in self.keepers.get().into_iter().flatten() {
            self.ledger(*nic, |ledger| keeper.hear(ledger));
        }
    }

    /// Reads or changes the ledger of a NIC.
    fn ledger<T>(&self, nic: usize, act: impl FnOnce(&mut Ledger) -> T) -> T {
        let mut ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        act(ledgers.entry(nic).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machine for Live {
    fn nics(&self) -> &[NicFacts] {
        &self.nics
    }

    fn objects(&self, nic: usize) -> Arc<Gathered> {
        self.look(nic, |seen| Arc::clone(&seen.objects))
    }

    fn counters(&self, nic: usize, port: u32) -> Counts {
        self.look(nic, |seen| self.ledger(nic, |ledger| seen.totals.counts(ledger, port)))
    }
}

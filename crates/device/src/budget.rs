//! A share of what the processes of a user have together, which ends with the process.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use descriptors::PrivateFd;
use link::registry::budget::{self, Held};

/// How long to wait for others that ask at the same time.
const PATIENCE: Duration = Duration::from_millis(200);

/// The share of this process, VF `vf` of a NIC. No other process must free anything.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Its name in the host registry.
    what: String,
    used: u64,
    /// The name by which others see what we have.
    settled: Option<PrivateFd>,
    /// The name by which we asked for it, kept: a process that looks just now must see one of the
    /// two.
    asked: Option<PrivateFd>,
    /// In the child of a fork: what it allocates reaches no peer, and the names are the parent's.
    is_alone: bool,
}

/// Why there is no more.
#[derive(Debug)]
pub(crate) enum Full {
    /// This process has too much alone.
    Own { used: u64 },
    /// All together have too much.
    Together { used: u64, others: u64 },
    /// The registry cannot be used.
    Registry(io::Error),
}

impl Budget {
    pub(crate) fn new(what: String) -> Self {
        Self { what, used: 0, settled: None, asked: None, is_alone: false }
    }

    /// Takes `amount` more, if all processes of the user together then have no more than `max`.
    pub(crate) fn take(&mut self, nic: &str, vf: u16, amount: u64, max: u64) -> Result<(), Full> {
        let (used, wanted) = (self.used, self.used.saturating_add(amount));
        if wanted > max {
            return Err(Full::Own { used });
        }
        if self.is_alone {
            self.used = wanted;
            return Ok(());
        }
        let start = Instant::now();
        loop {
            let asks = PrivateFd::new(budget::claim(nic, &self.what, vf, wanted, true)?);
            let Held { settled, asked } = budget::held(nic, &self.what, vf)?;
            let others = settled.saturating_add(asked);
            if wanted.saturating_add(others) <= max {
                self.settle(nic, vf, wanted)?;
                end(self.asked.replace(asks));
                return Ok(());
            }
            end(Some(asks));
            if wanted.saturating_add(settled) > max || start.elapsed() > PATIENCE {
                return Err(Full::Together { used, others });
            }
            // Two processes that ask at the same time must not do so again.
            std::thread::sleep(Duration::from_micros(200 * u64::from(1 + vf % 16)));
        }
    }

    /// Says that this process has `amount`, whatever others have.
    pub(crate) fn declare(&mut self, nic: &str, vf: u16, amount: u64) -> Result<(), Full> {
        if !self.is_alone {
            self.settle(nic, vf, amount)?;
        }
        self.used = amount;
        Ok(())
    }

    /// Gives `amount` back.
    pub(crate) fn give(&mut self, nic: &str, vf: u16, amount: u64) {
        let left = self.used.saturating_sub(amount);
        if self.is_alone {
            self.used = left;
            return;
        }
        end(self.asked.take());
        // If it fails others see more in use than is, until the next change.
        if self.settle(nic, vf, left).is_err() {
            self.used = left;
        }
    }

    /// The child of a fork has no VF of its own to name anything by. The descriptors were closed by
    /// the fork.
    pub(crate) fn abandon_in_child(&mut self) {
        self.is_alone = true;
        (self.settled, self.asked) = (None, None);
    }

    fn settle(&mut self, nic: &str, vf: u16, amount: u64) -> io::Result<()> {
        if amount != self.used || self.settled.is_none() {
            let named = match amount {
                0 => None,
                _ => Some(budget::claim(nic, &self.what, vf, amount, false)?),
            };
            end(std::mem::replace(&mut self.settled, named.map(PrivateFd::new)));
        }
        self.used = amount;
        Ok(())
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        if !self.is_alone {
            end(self.settled.take());
            end(self.asked.take());
        }
    }
}

impl From<io::Error> for Full {
    fn from(error: io::Error) -> Self {
        Self::Registry(error)
    }
}

/// Others see at once that it is over.
fn end(claim: Option<PrivateFd>) {
    if let Some(claim) = claim.filter(PrivateFd::is_ours) {
        budget::end(claim.as_fd());
    }
}

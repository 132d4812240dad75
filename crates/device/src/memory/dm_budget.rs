//! All processes of a user share the device memory: `max_dm_size` is what they have together.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use descriptors::PrivateFd;
use link::registry::budget::{self, Held};

use crate::refusal::{Result, no_memory, refuse};

/// How long to wait for others that ask at the same time.
const PATIENCE: Duration = Duration::from_millis(200);
/// The name of the budget.
const WHAT: &str = "dm";

/// The share of this process. It ends with the process, so no other process needs to free anything.
#[derive(Debug, Default)]
pub(crate) struct DmBudget {
    used: u64,
    /// The name by which others see what we have.
    settled: Option<PrivateFd>,
    /// The name by which we asked for it, which is kept: a process that looks at this moment must
    /// see one of the two.
    asked: Option<PrivateFd>,
    /// Whether this is a forked child: its memory reaches no peer, and the names belong to the
    /// parent.
    is_alone: bool,
}

impl DmBudget {
    /// Takes `bytes` more, if all processes of the user together then have no more than `max`.
    pub(crate) fn take(&mut self, nic: &str, vf: u16, bytes: u64, max: u64) -> Result<()> {
        let wanted = self.used.saturating_add(bytes);
        if wanted > max {
            let used = self.used;
            refuse!(NoMemory, "alloc_dm: {bytes} bytes; {used} of {max} are in use");
        }
        if self.is_alone {
            self.used = wanted;
            return Ok(());
        }
        let start = Instant::now();
        loop {
            let asks = budget::claim(nic, WHAT, vf, wanted, true);
            let asks = PrivateFd::new(asks.map_err(|error| no_memory("alloc_dm", &error))?);
            let Held { settled, asked } =
                budget::held(nic, WHAT, vf).map_err(|error| no_memory("alloc_dm", &error))?;
            let (used, others) = (self.used, settled.saturating_add(asked));
            if wanted.saturating_add(others) <= max {
                self.settle(nic, vf, wanted)?;
                end(self.asked.replace(asks));
                return Ok(());
            }
            if wanted.saturating_add(settled) > max || start.elapsed() > PATIENCE {
                end(Some(asks));
                refuse!(
                    NoMemory,
                    "alloc_dm: {bytes} bytes; of {max} this process has {used}, and others of this user have {others}"
                );
            }
            end(Some(asks));
            // Two processes that asked at the same time must not do so again.
            std::thread::sleep(Duration::from_micros(200 * u64::from(1 + vf % 16)));
        }
    }

    /// Gives `bytes` back.
    pub(crate) fn give(&mut self, nic: &str, vf: u16, bytes: u64) {
        let left = self.used.saturating_sub(bytes);
        if self.is_alone {
            self.used = left;
            return;
        }
        end(self.asked.take());
        // If this fails, others see more in use than there is, until the next change.
        if self.settle(nic, vf, left).is_err() {
            self.used = left;
        }
    }

    /// A forked child has no VF of its own for a name. The fork handlers closed the descriptors.
    pub(super) fn abandon_in_child(&mut self) {
        self.is_alone = true;
        (self.settled, self.asked) = (None, None);
    }

    fn settle(&mut self, nic: &str, vf: u16, bytes: u64) -> Result<()> {
        if bytes != self.used || self.settled.is_none() {
            let named = match bytes {
                0 => None,
                _ => Some(
                    budget::claim(nic, WHAT, vf, bytes, false)
                        .map_err(|error| no_memory("alloc_dm", &error))?,
                ),
            };
            end(std::mem::replace(&mut self.settled, named.map(PrivateFd::new)));
        }
        self.used = bytes;
        Ok(())
    }
}

impl Drop for DmBudget {
    fn drop(&mut self) {
        if !self.is_alone {
            end(self.settled.take());
            end(self.asked.take());
        }
    }
}

/// Ends a claim so that others see that at once.
fn end(claim: Option<PrivateFd>) {
    if let Some(claim) = claim.filter(PrivateFd::is_ours) {
        budget::end(claim.as_fd());
    }
}

//! The state of HSA in a process, from `hsa_init` on: mainly its agents.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use umd::handles::{Found, Handles};
use umd::machine::{self, Device};
use umd::process::{Absent, PerProcess};

use crate::locked::Locked;
use crate::signal::Signal;
use crate::space::Space;
use crate::status::{Refusal, Result, Status};

/// The state of a process.
pub(crate) struct Process {
    /// The GPUs. Agent 0 is the CPU, so a GPU's agent number is its index here plus one.
    pub(crate) gpus: Vec<&'static Device>,
    pub(crate) space: Space,
    pub(crate) locked: Locked,
    pub(crate) signals: Handles<Signal>,
    /// The number of `hsa_init` calls without their `hsa_shut_down`.
    opened: AtomicU32,
}

static PROCESS: PerProcess<Process> = PerProcess::new();

/// The preset of GPUs for which the configuration names none.
pub(crate) const PRESET: &str = "amdgpu";

/// The handle of the first agent, the CPU; the GPUs follow.
const AGENTS: u64 = 0x5900_0000_0000;

/// The distance between the handles of two agents.
const STEP: u64 = 64;

/// The most GPUs: one bit is the CPU's.
const MOST: usize = 63;

/// The handle of an agent.
pub(crate) fn agent_handle(index: usize) -> u64 {
    AGENTS + STEP * index as u64
}

/// `hsa_init`: creates the state of the process, unless it exists, and counts the call.
///
/// # Errors
///
/// There is no GPU; the process is a child of one that used a GPU; or there were too many calls.
pub(crate) fn init() -> Result<()> {
    let process = match PROCESS.get() {
        Ok(process) => process,
        Err(Absent::Parents) => return Err(parents()),
        Err(Absent::NotYet) => make()?,
    };
    let more = |count: u32| count.checked_add(1);
    let counted = process.opened.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    counted.map(|_| ()).map_err(|_| {
        Refusal::new(
            Status::REFCOUNT_OVERFLOW,
            "hsa_init was called more often than can be counted",
        )
    })
}

fn make() -> Result<&'static Process> {
    let all = machine::devices(PRESET);
    let mut gpus: Vec<_> = match environment::var("ROCR_VISIBLE_DEVICES") {
        Some(mask) => visible(&mask, all.iter().map(uuid).collect())
            .into_iter()
            .map(|index| &all[index])
            .collect(),
        None => all.iter().collect(),
    };
    gpus.truncate(MOST);
    if gpus.is_empty() {
        return Err(Refusal::new(Status::OUT_OF_RESOURCES, "there is no GPU"));
    }
    let (process, is_new) = PROCESS.set(Process {
        space: Space::new(&gpus)?,
        locked: Locked::default(),
        signals: Handles::new(16),
        opened: AtomicU32::new(0),
        gpus,
    });
    if is_new {
        umd::stray::watch(&process.space, &process.gpus, "hsa_memory_copy");
    }
    Ok(process)
}

/// The state of the process.
///
/// # Errors
///
/// `hsa_init` was not called in this process.
pub(crate) fn get() -> Result<&'static Process> {
    let not_yet = || Refusal::new(Status::NOT_INITIALIZED, "hsa_init was not called");
    match PROCESS.get() {
        Ok(process) if process.opened.load(Ordering::Relaxed) > 0 => Ok(process),
        Ok(_) | Err(Absent::NotYet) => Err(not_yet()),
        Err(Absent::Parents) => Err(parents()),
    }
}

fn parents() -> Refusal {
    Refusal::new(
        Status::NOT_INITIALIZED,
        "the GPU was in use before this process was forked: a child cannot use its parent's",
    )
}

/// The devices that a mask selects, in the mask's order: numbers or UUIDs, separated by commas, up
/// to the first item that is neither.
fn visible(mask: &str, uuids: Vec<String>) -> Vec<usize> {
    let find = |entry: &str| match entry.parse::<usize>() {
        Ok(index) => Some(index).filter(|index| *index < uuids.len()),
        Err(_) => uuids.iter().position(|uuid| uuid.eq_ignore_ascii_case(entry)),
    };
    let mut left = Vec::new();
    for index in mask.split(',').map_while(|entry| find(entry.trim())) {
        if !left.contains(&index) {
            left.push(index);
        }
    }
    left
}

/// The unique name of a GPU.
#[doc(alias = "HSA_AMD_AGENT_INFO_UUID")]
pub(crate) fn uuid(device: &Device) -> String {
    let number = device.uuid[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    format!("GPU-{number:016x}")
}

impl Process {
    /// `hsa_shut_down`: the last call frees everything.
    ///
    /// # Errors
    ///
    /// HSA was not initialised.
    pub(crate) fn shut_down(&self) -> Result<()> {
        let less = |count: u32| count.checked_sub(1);
        match self.opened.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(1) => {
                self.space.free_all(|_| true);
                self.locked.clear();
                for signal in self.signals.all() {
                    self.signals.remove(signal.handle);
                }
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(_) => Err(Refusal::new(Status::NOT_INITIALIZED, "hsa_init was not called")),
        }
    }

    /// How many agents there are.
    pub(crate) fn agents(&self) -> usize {
        self.gpus.len() + 1
    }

    /// The agent number of a handle.
    ///
    /// # Errors
    ///
    /// There is no such object.
    pub(crate) fn agent(&self, handle: u64) -> Result<usize> {
        let from = handle.wrapping_sub(AGENTS);
        let index = usize::try_from(from / STEP).ok().filter(|index| *index < self.agents());
        index.filter(|_| from.is_multiple_of(STEP)).ok_or_else(|| {
            Refusal::new(Status::INVALID_AGENT, format!("{handle:#x} is not an agent"))
        })
    }

    /// The signal of a handle.
    ///
    /// # Errors
    ///
    /// There is no such object.
    pub(crate) fn signal(&self, handle: u64) -> Result<Arc<Signal>> {
        let what = match self.signals.find(handle) {
            Found::Live(signal) => return Ok(signal),
            Found::Gone => format!("signal {handle:#x} was destroyed"),
            Found::Unknown => format!("{handle:#x} is not a signal"),
        };
        Err(Refusal::new(Status::INVALID_SIGNAL, what))
    }

    /// Whether one GPU reaches the memory of another.
    pub(crate) fn reaches(&self, gpu: usize, owner: usize) -> bool {
        self.gpus[gpu].reaches(self.gpus[owner])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_selects_the_devices_that_it_names_in_its_order() {
        let uuids = || vec!["GPU-0a".to_owned(), "GPU-0b".to_owned()];
        assert_eq!(visible("1, 0", uuids()), [1, 0]);
        assert_eq!(visible("gpu-0B,0,0", uuids()), [1, 0]);
        assert_eq!(visible("1,7,0", uuids()), [1]);
        assert!(visible("", uuids()).is_empty());
    }
}

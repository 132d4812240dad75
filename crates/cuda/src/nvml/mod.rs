//! `libnvidia-ml.so.1`: names, PCI addresses and memory use of the GPUs.
//!
//! It numbers the GPUs as [`crate::machine::devices`] does, regardless of `CUDA_VISIBLE_DEVICES`,
//! and works without `cuInit`. A GPU is opened only when a program asks for its memory use.

mod call;
mod device;
mod link;
mod pci;
mod processes;
mod system;
mod topology;

use crate::boundary::{Calls, Function};

pub use system::DRIVER_VERSION;

/// All functions that are served.
const ALL: &[Calls] = &[
    device::CALLS,
    link::CALLS,
    pci::CALLS,
    processes::CALLS,
    system::BEGINNING,
    system::GENERAL,
    topology::CALLS,
];

/// The function of a name.
pub(crate) fn find(name: &str) -> Option<Function> {
    // The only function that does not return a number.
    if name == "nvmlErrorString" {
        return Some(Function(system::error_string as *const ()));
    }
    let mut served = ALL.iter().copied().flatten();
    served.find(|(served, _)| *served == name).map(|(_, function)| *function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_served_twice_and_each_is_a_name_of_the_library() {
        let known: Vec<_> = include_str!("../../names/nvml.txt").lines().collect();
        let served = ALL.iter().copied().flatten().map(|(name, _)| *name);
        crate::names::are_served_once(served, &known);
    }
}

//! The functions, as in the headers.

mod agent;
mod copy;
mod export;
mod ipc;
mod memory;
mod pointer;
mod queue;
mod region;
mod signal;
mod system;

use crate::boundary::{Calls, Function};

/// All functions that are served, except operations on the values of signals.
const ALL: &[Calls] = &[
    agent::CALLS,
    copy::CALLS,
    export::CALLS,
    ipc::CALLS,
    memory::CALLS,
    pointer::CALLS,
    queue::CALLS,
    region::CALLS,
    signal::CALLS,
    signal::WAITS,
    system::CALLS,
];

/// Parts of the names of functions that need an agent that computes.
const COMPUTES: [&str; 11] = [
    "_queue_",
    "_isa_",
    "_executable_",
    "_code_",
    "_program_",
    "_image_",
    "_sampler_",
    "_wavefront_",
    "_dispatch_",
    "_pcs_",
    "_spm_",
];

/// The function with a name.
pub(crate) fn find(name: &str) -> Option<Function> {
    let mut served = ALL.iter().copied().flatten();
    let found = served.find(|(known, _)| *known == name).map(|(_, function)| *function);
    found.or_else(|| crate::signal::function(name))
}

/// Whether a function of this name is of use only to programs that compute.
pub(crate) fn computes(name: &str) -> bool {
    COMPUTES.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_served_twice_and_the_library_has_each() {
        let known: Vec<_> = include_str!("../../names/names.txt").lines().collect();
        let mut names: Vec<_> = ALL.iter().copied().flatten().map(|(name, _)| *name).collect();
        for name in &names {
            assert!(known.contains(name), "{name} is in no header");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        // Ten operations in seven memory orders each, and two in three each: the header has fewer.
        let values = known.iter().filter(|name| crate::signal::function(name).is_some());
        assert_eq!(values.count(), 60);
    }

    #[test]
    fn all_functions_that_libfabric_and_ucx_call_are_served() {
        for name in include_str!("../../names/clients.txt").lines() {
            assert!(name.starts_with('#') || find(name).is_some(), "{name}");
        }
    }
}

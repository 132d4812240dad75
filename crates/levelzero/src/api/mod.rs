//! The functions, as in the headers.

mod append;
mod context;
mod device;
mod driver;
mod event;
mod fence;
mod ipc;
mod list;
mod memory;
mod queue;
mod refused;
mod sysman;
mod vmm;

use crate::boundary::{Calls, Function};

/// All functions that are served.
const ALL: &[Calls] = &[
    append::CALLS,
    context::CALLS,
    device::CALLS,
    driver::CALLS,
    event::CALLS,
    fence::CALLS,
    ipc::CALLS,
    list::CALLS,
    memory::CALLS,
    queue::CALLS,
    refused::CALLS,
    sysman::CALLS,
    vmm::CALLS,
];

/// The function of a name.
pub(crate) fn find(name: &str) -> Option<Function> {
    let mut served = ALL.iter().copied().flatten();
    served.find(|(known, _)| *known == name).map(|(_, function)| *function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_served_twice_and_each_is_in_a_table() {
        let known = include_str!("../../names/tables.txt");
        let mut names: Vec<_> = ALL.iter().copied().flatten().map(|(name, _)| *name).collect();
        for name in &names {
            assert!(known.contains(&format!("  {name} ")), "{name} is not in any table");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

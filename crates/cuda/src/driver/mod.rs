//! `libcuda.so.1`: the functions of the driver, as in its header.

pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod copy3d;
pub(crate) mod device;
pub(crate) mod event;
mod export;
pub(crate) mod host;
pub(crate) mod init;
mod ipc;
pub(crate) mod managed;
pub(crate) mod memory;
mod module;
mod pointer;
pub(crate) mod pool;
pub(crate) mod stream;
mod stream_memory;
pub(crate) mod vmm;

use crate::boundary::{Calls, Function};

/// All functions that are served.
const ALL: &[Calls] = &[
    context::CALLS,
    copy::CALLS,
    copy3d::CALLS,
    device::CALLS,
    event::CALLS,
    export::CALLS,
    host::CALLS,
    init::CALLS,
    ipc::CALLS,
    managed::CALLS,
    memory::CALLS,
    module::CALLS,
    pointer::CALLS,
    pool::CALLS,
    stream::CALLS,
    stream_memory::CALLS,
    vmm::CALLS,
];

/// The function of a symbol. The variant for the per-thread stream is the same function: work is
/// done in order either way.
pub(crate) fn find(symbol: &str) -> Option<Function> {
    let plain = crate::names::plain(symbol);
    let served = ALL.iter().copied().flatten();
    let exact = || served.clone().find(|(name, _)| *name == symbol);
    exact()
        .or_else(|| served.clone().find(|(name, _)| *name == plain))
        .map(|(_, function)| *function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_served_twice_and_each_is_a_name_of_the_library() {
        let list = include_str!("../../names/driver.txt");
        let known: Vec<_> = list.lines().filter_map(|line| line.split(' ').next()).collect();
        let served = ALL.iter().copied().flatten().map(|(name, _)| *name);
        crate::names::are_served_once(served, &known);
    }
}

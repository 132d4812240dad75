//! `libcudart.so.12` and `libcudart.so.13`: the runtime, a thin layer over the driver.
//!
//! A thread works on its device's primary context, or on any context that the program has made
//! current through the driver. Work is passed to the functions of [`crate::driver`]. Those that
//! allocate and free are called as programs resolve them ([`crate::exported`]), so that a program's
//! hook on `cuMemAlloc` sees `cudaMalloc` as well.

mod call;
mod device;
mod error;
mod event;
mod host;
mod ipc;
mod kernel;
mod memcpy;
mod memcpy3d;
mod memory;
mod pool;
mod properties;
mod stream;
mod thread;
mod version;

use crate::boundary::{Calls, Function};

pub(crate) use call::Library;

/// The functions that are the same in both.
const ALL: &[Calls] = &[
    device::CALLS,
    device::QUERIES,
    error::CALLS,
    event::CALLS,
    host::CALLS,
    ipc::CALLS,
    kernel::CALLS,
    memcpy::CALLS,
    memcpy3d::CALLS,
    memory::CALLS,
    memory::QUERIES,
    pool::CALLS,
    stream::CALLS,
    thread::CALLS,
    thread::QUERIES,
    version::CALLS,
    version::QUERIES,
];

/// The functions that only one of them has, or that differ between the two.
const ONLY_12: &[Calls] = &[
    event::ONLY_12,
    memcpy::ONLY_12,
    memory::ONLY_12,
    memory::POINTERS_12,
    properties::ONLY_12,
    stream::ONLY_12,
    thread::ONLY_12,
    version::ONLY_12,
];
const ONLY_13: &[Calls] = &[
    memcpy::ONLY_13,
    memory::ONLY_13,
    memory::POINTERS_13,
    properties::ONLY_13,
    stream::ONLY_13,
    version::ONLY_13,
];

/// Functions that do not return an error code.
const OTHERS: &[Calls] = &[error::TEXTS, kernel::REGISTRATION];

/// The function of a name. The variant for the per-thread stream is the same function: work is done
/// in order either way.
pub(crate) fn find(library: Library, symbol: &str) -> Option<Function> {
    let plain = crate::names::plain(symbol);
    let only = match library {
        Library::Twelve => ONLY_12,
        Library::Thirteen => ONLY_13,
    };
    if version::is_refused(library) && !version::NEEDS_NO_DRIVER.contains(&plain) {
        return Some(version::REFUSAL);
    }
    let mut served = [only, ALL, OTHERS].into_iter().flatten().copied().flatten();
    served.find(|(name, _)| *name == plain).map(|(_, function)| *function)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(library: Library) -> impl Iterator<Item = &'static str> {
        let only = match library {
            Library::Twelve => ONLY_12,
            Library::Thirteen => ONLY_13,
        };
        let all = [only, ALL, OTHERS].into_iter().flatten().copied().flatten();
        all.map(|(name, _)| *name)
    }

    #[test]
    fn no_name_is_served_twice_and_each_is_a_name_of_its_library() {
        let list = include_str!("../../names/runtime.txt");
        for (library, number) in [(Library::Twelve, "12"), (Library::Thirteen, "13")] {
            let known: Vec<_> = list
                .lines()
                .filter(|line| line.split(' ').skip(1).any(|version| version == number))
                .filter_map(|line| line.split(' ').next())
                .collect();
            crate::names::are_served_once(served(library), &known);
        }
    }

    #[test]
    fn a_form_for_the_threads_stream_is_the_plain_one() {
        let at = |name: &str| find(Library::Twelve, name).map(|function| function.0);
        assert!(at("cudaMemcpyAsync").is_some());
        assert_eq!(at("cudaMemcpyAsync_ptsz"), at("cudaMemcpyAsync"));
        assert_eq!(at("cudaMemcpy_ptds"), at("cudaMemcpy"));
    }
}

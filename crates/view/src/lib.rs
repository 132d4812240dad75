//! The RDMA objects of all processes of a NIC, as the kernel's restrack knows them for its own.
//!
//! Each process has an engine of its own, and no other process knows its objects. An engine that
//! is asked describes them as a [`Process`]; [`gather()`] asks all engines of a NIC. `peerdma top`,
//! the netlink socket and the counters in `/sys` are faces of what it returns.
//!
//! ```text
//!   peerdma top     netlink, /sys (launcher::door)
//!         \            /
//!          v          v
//!        view::gather ------ link::registry::look ---> engine of another process
//!              |                                            | device describes itself
//!              v                                            v
//!        Process::decode <---- bytes in a sealed file --- Process::encode
//! ```
//!
//! An engine answers processes of its own user only. What it answers is input from another process:
//! every length is checked, and what does not decode is refused in words. A process that is stopped
//! or has no time to answer is [`Missing`] after the caller's patience.
//!
//! A process that ends leaves its counters with those that keep a [`Ledger`], so that the counters
//! of a port do not fall.
//!
//! This crate describes; it changes nothing and owns nothing.
#![forbid(unsafe_code)]

mod codec;
mod counts;
mod gather;
mod keeper;
mod ledger;
mod names;
mod port;
mod process;

pub use codec::BadView;
pub use counts::Counts;
pub use gather::{Gathered, Missing, gather};
pub use keeper::Keeper;
pub use ledger::{Ledger, leave};
pub use names::{cm_state_name, port_space_name, qp_state_name, qp_type_name};
pub use port::PortTotals;
pub use process::{
    Address, CmId, Context, Counter, Cq, LIST_MAX, Mr, Path, Pd, Port, Process, Qp, Srq,
};

/// Entry points for fuzz targets.
#[cfg(fuzzing)]
pub mod fuzzing {
    use crate::{Gathered, Ledger, PortTotals, Process};

    /// Reads `bytes` as the answer of a process; what decodes must encode to something that decodes
    /// to the same, and is counted, both while the process is there and when it has ended.
    pub fn process(bytes: &[u8]) -> bool {
        let Ok(process) = Process::decode(bytes) else { return false };
        assert_eq!(Process::decode(&process.encode()).as_ref(), Ok(&process));
        let (mut totals, mut ledger) = (PortTotals::default(), Ledger::default());
        let processes = vec![(String::new(), 1, process.clone())];
        totals.see(&Gathered { processes, missing: Vec::new() }, &ledger);
        let counts = |totals: &PortTotals, ledger: &Ledger| {
            let ports = totals.ports(ledger).into_iter();
            ports.map(|port| totals.counts(ledger, port)).collect::<Vec<_>>()
        };
        let while_there = counts(&totals, &ledger);
        ledger.add(&process);
        let told = Ledger::decode(&ledger.encode()).expect("what we encoded");
        assert_eq!(counts(&PortTotals::default(), &told).len(), while_there.len());
        true
    }
}

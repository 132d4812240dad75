//! Queues: no agent has one.

use crate::boundary::{LOG, calls};
use crate::c::Out;
use crate::process;
use crate::status::{Refusal, Status, invalid};

calls! { CALLS:
    // Refused with the status for an agent that has no queues of this kind, and explained once in
    // the log.
    fn hsa_queue_create(
        agent: u64,
        size: u32,
        kind: u32,
        _act: u64,
        _data: u64,
        _private: u32,
        _group: u32,
        out: Out<u64>,
    ) {
        let process = process::get()?;
        out.check()?;
        if !size.is_power_of_two() || kind > 2 {
            return Err(invalid(format!("a queue of {size} packets, of kind {kind}")));
        }
        process.agent(agent)?;
        let what = "not served: the software GPU has memory and no cores (docs/HSA.md)";
        if umd::boundary::is_first(c"hsa_queue_create") {
            tracing::warn!(target: LOG, "hsa_queue_create: {what}");
        }
        Err(Refusal::new(Status::INVALID_QUEUE_CREATION, what))
    }
}

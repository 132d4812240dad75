//! RDMA by hardware, as one thing that another use needs.

use crate::finding::{Finding, Use, Verdict, bad, good, unknown};
use crate::host::Host;
use crate::uses::hardware;

/// What a use of GPUs says about the NIC.
pub(super) fn finding(host: &Host) -> Finding {
    let hardware = Use { key: "", title: "", findings: hardware::findings(host) };
    match hardware.verdict() {
        Verdict::Works => good("RDMA by hardware works"),
        Verdict::DoesNotWork => bad("RDMA by hardware does not work", "see RDMA by hardware"),
        Verdict::Unknown => unknown("RDMA by hardware is unknown", "see RDMA by hardware"),
    }
}

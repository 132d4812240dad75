//! A sample for tests.

use std::time::Instant;

use view::{Counter, Gathered, Process, Qp};

use super::sample::Sample;

/// A sample of one process with one queue pair.
pub(super) fn sample(at: Instant, sent: u64, sq_psn: u32) -> Sample {
    let counters = vec![Counter { name: "tx_udp_packets".into(), value: sent }];
    let path = view::Path {
        carrier: "UDP".into(),
        why: "the address belongs to another host".into(),
        mtu: 1024,
        ..view::Path::default()
    };
    let qp = Qp { qpn: 17, kind: 2, state: 3, sq_psn, path: Some(path), ..Qp::default() };
    let process = Process { nonce: 1, counters, qps: vec![qp], ..Process::default() };
    let processes = vec![("ping".to_owned(), 4711, process)];
    let gathered = Gathered { processes, missing: Vec::new() };
    Sample { at, nics: vec![("peerdma0".to_owned(), gathered)], gpus: Vec::new() }
}

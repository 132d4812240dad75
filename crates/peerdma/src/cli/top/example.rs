//! Samples for tests.

use std::net::SocketAddr;
use std::time::Instant;

use ::gpu::Member;
use serde_json::json;
use view::{Counter, Gathered, Missing, Mr, Process, Qp};

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

/// The `n`th sample of a host with much to see: two processes, one that is stopped, and a GPU.
pub(super) fn busy(at: Instant, n: u32) -> Sample {
    let counter =
        |name: &str, value: u32| Counter { name: name.to_owned(), value: u64::from(value) };
    let path = |carrier: &str, why: &str| view::Path {
        carrier: carrier.to_owned(),
        why: why.to_owned(),
        to: SocketAddr::from(([10, 0, 0, 2], 4791)).into(),
        mtu: 4096,
        ..view::Path::default()
    };
    let ping = Process {
        vf: 1,
        nonce: 1,
        counters: vec![
            counter("tx_udp_packets", n * 1500),
            counter("rx_udp_packets", n * 40),
            counter("local_ack_timeout_err", n * 2),
        ],
        mrs: vec![Mr { length: 4 << 20, ..Mr::default() }],
        qps: vec![
            Qp {
                qpn: 0x811,
                kind: 2,
                state: 3,
                remote_qpn: Some(0x21),
                sq_psn: n * 1500,
                rq_psn: n * 40,
                sends: 16,
                timeouts: 1,
                path: Some(path("UDP", "the address belongs to another host")),
                ..Qp::default()
            },
            Qp { qpn: 0x812, kind: 4, state: 6, ..Qp::default() },
        ],
        failures: vec!["a WRITE of 64 bytes was refused: no such key".to_owned()],
        ..Process::default()
    };
    let pong = Process {
        vf: 2,
        nonce: 2,
        counters: vec![counter("direct_bytes", n << 22)],
        qps: vec![Qp {
            qpn: 0x1011,
            kind: 2,
            state: 3,
            remote_qpn: Some(0x812),
            path: Some(path("shm", "a process of this host")),
            ..Qp::default()
        }],
        ..Process::default()
    };
    let missing = Missing {
        vf: 7,
        pid: Some(99),
        uid: 1000,
        comm: Some("stopped".to_owned()),
        reason: "it did not answer in time".to_owned(),
    };
    let processes = vec![("ping".to_owned(), 4711, ping), ("pong".to_owned(), 4712, pong)];
    let gathered = Gathered { processes, missing: vec![missing] };
    Sample { at, nics: vec![("peerdma0".to_owned(), gathered)], gpus: vec![gpu(n)] }
}

/// A GPU with one buffer, which moved `n` times.
fn gpu(n: u32) -> Member {
    let buffer = json!({
        "number": 1, "size": 1 << 20, "place": "GTT", "offset": 4096, "pins": 0, "moves": n,
        "dma_bufs": 1, "by_address": 0, "importers": ["peerdma0 (dynamic)"],
    });
    let view = json!({
        "name": "gpu0", "preset": "xe", "pci": "0000:03:00.0", "vram": 16_u64 << 30,
        "bar": 16_u64 << 30, "gtt": 8_u64 << 30, "vram_used": 3_u64 << 29, "gtt_used": 1 << 20,
        "memory": 1, "is_removed": false, "next": 0, "buffers": [buffer],
    });
    let view = serde_json::from_value(view).map_err(|error| error.to_string());
    Member { gpu: "gpu0".to_owned(), member: 0, pid: Some(4711), view }
}

//! The benches, in the order they run.

mod connect;
mod fd_backed;
pub(crate) mod latency;
mod memory;
mod peer_memory;
mod wire;
mod write;

use crate::Outcome;
use crate::report::Report;

/// One of them.
#[derive(Clone, Copy)]
pub(crate) struct Bench {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Measures this often, and adds rows.
    pub(crate) run: fn(u32, &mut Report) -> Outcome<()>,
}

pub(crate) const ALL: [Bench; 10] = [
    Bench { name: "write", about: "ib_write_bw beside process_vm_writev", run: write::run },
    Bench { name: "fd-backed", about: "WRITE between memfds beside memcpy", run: fd_backed::run },
    Bench {
        name: "write-lat",
        about: "ib_write_lat beside a process_vm_writev ping-pong",
        run: latency::write,
    },
    Bench {
        name: "send-lat",
        about: "ib_send_lat beside a ping-pong of two cache lines",
        run: latency::send,
    },
    Bench {
        name: "wire",
        about: "ib_write_bw over a veth beside a bare UDP stream",
        run: wire::run,
    },
    Bench {
        name: "wire-lat",
        about: "ib_send_lat over a veth beside a UDP ping-pong",
        run: wire::latency,
    },
    Bench { name: "memory", about: "resident memory of a context", run: memory::context },
    Bench {
        name: "peer-memory",
        about: "GPU and device memory beside host memory; registering and moving buffers",
        run: peer_memory::run,
    },
    Bench { name: "connect", about: "cmtime beside TCP connections", run: connect::run },
    Bench { name: "qps", about: "10,000 QPs in one process", run: memory::qps },
];

/// Runs two measurements in turns: which comes first changes from one repetition to the next. A repetition in which one of
/// them failed does not count, and is told of.
fn in_turns<T, U>(
    bench: &'static str,
    reps: u32,
    report: &mut Report,
    mut ours: impl FnMut() -> Outcome<T>,
    mut theirs: impl FnMut() -> Outcome<U>,
) -> Outcome<(Vec<T>, Vec<U>)> {
    let (mut all_ours, mut all_theirs) = (Vec::new(), Vec::new());
    for rep in 0..reps {
        let both = if rep % 2 == 0 {
            theirs().and_then(|theirs| Ok((ours()?, theirs)))
        } else {
            ours().and_then(|ours| Ok((ours, theirs()?)))
        };
        match both {
            Ok((ours, theirs)) => {
                all_ours.push(ours);
                all_theirs.push(theirs);
            }
            Err(error) => report.note(bench, format!("repetition {} FAILED: {error}", rep + 1)),
        }
    }
    if all_ours.is_empty() {
        return Err("no repetition succeeded".into());
    }
    Ok((all_ours, all_theirs))
}

//! CUDA's driver over the software GPU, and UCX in GPU memory.

use std::path::PathBuf;

use super::in_turns;
use crate::Outcome;
use crate::child::{Program, Role, free_port, peerdma};
use crate::report::{Report, Row, Target};
use crate::ucx;

const NAME: &str = "cuda";

/// Nanoseconds to learn that an address is the program's own.
const ATTRIBUTES_LIMIT: f64 = 100.0;
/// Microseconds to allocate and free 1 MiB.
const ALLOC_LIMIT: f64 = 20.0;
/// Milliseconds from loading the driver to the first memory.
const FIRST_LIMIT: f64 = 50.0;

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let peerdma = peerdma()?.to_string_lossy().into_owned();
    let prefix = [peerdma.as_str(), "run", "--gpu=nvidia", "--"].map(str::to_owned);
    let mut first = Vec::new();
    for _ in 0..reps {
        let (_, words) = Role::start(&prefix, NAME, &[])?;
        first.push(words.get(0)?);
    }
    let (mut role, _) = Role::start(&prefix, NAME, &[])?;
    let mut figures =
        |what: &str| -> Outcome<Vec<f64>> { (0..reps).map(|_| role.ask(what)?.get(0)).collect() };
    let rows = [
        ("attributes of host memory", figures("attributes")?, "ns", ATTRIBUTES_LIMIT),
        ("cuMemAlloc and cuMemFree, 1 MiB", figures("alloc")?, "us", ALLOC_LIMIT),
        ("first use of the driver", first, "ms", FIRST_LIMIT),
    ];
    for (what, ours, unit, limit) in rows {
        let theirs = vec![limit; ours.len()];
        row(report, what, (ours, theirs), "limit", unit, Target::AtMost(1.0));
    }
    for (what, name) in [
        ("htod", "cuMemcpyHtoD, 64 MiB"),
        ("dtoh", "cuMemcpyDtoH, 64 MiB"),
        ("dtod", "cuMemcpyDtoD, 64 MiB"),
    ] {
        let role = std::cell::RefCell::new(&mut role);
        let figure = |what: &str| -> Outcome<f64> { role.borrow_mut().ask(what)?.get(0) };
        let rates = in_turns(NAME, reps, report, || figure(what), || figure("memcpy"))?;
        row(report, name, rates, "memcpy", "MiB/s", Target::AtLeast(0.9));
    }
    ucx(reps, report)
}

/// Messages of 1 MiB that UCX sends over RC from GPU memory into GPU memory, compared with messages
/// in host memory.
fn ucx(reps: u32, report: &mut Report) -> Outcome<()> {
    let Some(program) = ucx_perftest() else {
        report.note(NAME, "no UCX with CUDA: cargo xtask cuda-rdma --build makes it".to_owned());
        return Ok(());
    };
    let rate = |memory: &str| tag_bandwidth(&program, memory);
    let rates = in_turns(NAME, reps, report, || rate("cuda"), || rate("host"))?;
    row(report, "UCX tag_bw, 1 MiB, -m cuda", rates, "-m host", "MiB/s", Target::AtLeast(0.9));
    Ok(())
}

/// What `cargo xtask cuda-rdma` built, in the same target directory.
fn ucx_perftest() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let program = own.parent()?.parent()?.join("cuda-rdma/ucx/bin/ucx_perftest");
    program.is_file().then_some(program)
}

/// MiB/s over all messages, as the client reports.
fn tag_bandwidth(program: &std::path::Path, memory: &str) -> Outcome<f64> {
    const ENV: [(&str, &str); 2] =
        [("UCX_TLS", "rc_v,cuda_copy"), ("UCX_NET_DEVICES", "peerdma0:1")];
    let (peerdma, port) = (peerdma()?, free_port()?);
    let (peerdma, program) = (peerdma.to_string_lossy(), program.to_string_lossy());
    let number = port.to_string();
    let words = [&peerdma, "run", "--gpu=nvidia", "--", &program, "-t", "tag_bw", "-m", memory];
    let words = [&words[..], &["-s", "1048576", "-n", "2000", "-w", "200", "-p", &number]].concat();
    let mut server = Program::start(&[], &ENV, &words)?;
    server.wait_listening(port)?;
    let client = [&words[..], &["127.0.0.1"]].concat();
    let text = Program::start(&[], &ENV, &client)?.finish()?;
    server.finish()?;
    let figures = ucx::figures(&text).ok_or_else(|| format!("no result in {text}"))?;
    Ok(figures.bandwidth)
}

fn row(
    report: &mut Report,
    what: &str,
    (ours, theirs): (Vec<f64>, Vec<f64>),
    beside: &str,
    unit: &'static str,
    target: Target,
) {
    let (ours, theirs) = (ours.into(), theirs.into());
    let (what, beside) = (what.to_owned(), beside.to_owned());
    report.row(Row { bench: NAME, what, ours, beside, theirs, unit, target });
}

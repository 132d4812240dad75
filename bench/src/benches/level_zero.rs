//! Level Zero's driver over the software GPU, by the system's loader, and libfabric in its memory.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use super::in_turns;
use crate::Outcome;
use crate::child::{Program, Role, free_port, peerdma};
use crate::netns::Veth;
use crate::report::{Report, Row, Target};

const NAME: &str = "level-zero";

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let peerdma = peerdma()?.to_string_lossy().into_owned();
    let prefix = [peerdma.as_str(), "run", "--gpu=xe", "--"].map(str::to_owned);
    let (mut role, _) = Role::start(&prefix, NAME, &[])?;
    for (what, name) in [
        ("htod", "zeCommandListAppendMemoryCopy to the device, 64 MiB"),
        ("dtoh", "zeCommandListAppendMemoryCopy from the device, 64 MiB"),
        ("dtod", "zeCommandListAppendMemoryCopy on the device, 64 MiB"),
    ] {
        let role = RefCell::new(&mut role);
        let figure = |what: &str| -> Outcome<f64> { role.borrow_mut().ask(what)?.get(0) };
        let (ours, theirs) = in_turns(NAME, reps, report, || figure(what), || figure("memcpy"))?;
        report.row(Row {
            bench: NAME,
            what: name.to_owned(),
            ours: ours.into(),
            beside: "memcpy".to_owned(),
            theirs: theirs.into(),
            unit: "MiB/s",
            target: Target::AtLeast(0.9),
        });
    }
    libfabric(reps, report)
}

/// Messages of 1 MiB that libfabric sends on one host, from GPU memory into GPU memory, compared
/// with those in host memory on the same route.
fn libfabric(reps: u32, report: &mut Report) -> Outcome<()> {
    let Some(program) = tagged_bw() else {
        report.note(NAME, "no libfabric: cargo xtask libfabric --build makes it".to_owned());
        return Ok(());
    };
    // The connection manager wants an address of a netdev.
    let veth = Veth::new(1500)?;
    let rate = |memory: &[&str]| tagged_bandwidth(&program, &veth, memory);
    let (ours, theirs) = in_turns(NAME, reps, report, || rate(&["-D", "ze"]), || rate(&[]))?;
    report.row(Row {
        bench: NAME,
        what: "fi_rdm_tagged_bw over verbs;ofi_rxm, 1 MiB, -D ze".to_owned(),
        ours: ours.into(),
        beside: "host memory".to_owned(),
        theirs: theirs.into(),
        unit: "MB/s",
        target: Target::AtLeast(0.9),
    });
    Ok(())
}

/// What `cargo xtask libfabric` built, in the same target directory.
fn tagged_bw() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let program = own.parent()?.parent()?.join("libfabric/installed/bin/fi_rdm_tagged_bw");
    program.is_file().then_some(program)
}

/// MB/s, as the client reports.
fn tagged_bandwidth(program: &Path, veth: &Veth, memory: &[&str]) -> Outcome<f64> {
    let (peerdma, port, place) = (peerdma()?, free_port()?, veth.place());
    let (peerdma, program) = (peerdma.to_string_lossy(), program.to_string_lossy());
    // The sides meet on TCP: docs/LIBFABRIC.md.
    let meet = format!("-b={port}");
    let words = [&peerdma, "run", "--gpu=xe", "--", &program, "-p", "verbs;ofi_rxm", &meet];
    let words = [&words[..], &["-S", "1048576", "-I", "2000", "-w", "200"], memory].concat();
    let mut server = Program::start(&place.server, &[], &words)?;
    server.wait_listening(port)?;
    let client = [&words[..], &[&place.host]].concat();
    let text = Program::start(&place.server, &[], &client)?.finish()?;
    server.finish()?;
    rate(&text).ok_or_else(|| format!("no result in {text}").into())
}

/// A line of the size, messages, bytes, seconds, MB/s and more.
fn rate(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("1m "))?;
    line.split_whitespace().nth(4)?.parse().ok()
}

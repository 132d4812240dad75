//! Posting by crate `verbs` against the library's own call, in a machine whose clock counts
//! instructions: with Debian's library on the kernel's device, and with ours.

use std::path::Path;

use crate::Outcome;
use crate::child::peerdma;
use crate::report::{Report, Row, Target};
use crate::sample::Sample;
use crate::vm::{Guest, Said, Vm};

const NAME: &str = "vm-post";

const GUEST: Guest = Guest {
    script: "post.sh",
    modules: &["virtio_pci", "veth", "rdma_rxe", "ib_uverbs"],
    programs: &["ip", "rdma"],
    counts: true,
};
/// Crate `verbs` looks it up when it runs.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
/// Both providers once, on a machine that is busy.
const SECONDS_EACH: usize = 300;

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let library = peerdma()?.with_file_name("libpeerdma.so");
    let own = std::env::current_exe()?;
    let to = |path: &Path, name: &str| format!("{}:{name}", path.display());
    let mut files = vec![to(&own, "/bin/bench"), to(&library, "/opt/libpeerdma.so")];
    files.push(format!("{LIBRARY}:{LIBRARY}"));
    files.extend(Vm::driver());
    let limit = 120 + reps as usize * SECONDS_EACH;
    let said = Vm::fetch()?.boot(&GUEST, &files, &format!("reps={reps}"), limit)?;
    for (provider, beside) in [
        ("system", "Debian's post_send on rdma_rxe"),
        ("libpeerdma.so", "libpeerdma.so's post_send"),
    ] {
        let pairs =
            (0..reps).map(|rep| figures(&said, rep, provider)).collect::<Outcome<Vec<_>>>()?;
        let (ours, theirs): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let more = Sample::from(pairs.iter().map(|(a, b)| a - b).collect::<Vec<f64>>());
        report.row(Row {
            bench: NAME,
            what: "a WRITE of 8 bytes, posted".to_owned(),
            ours: ours.into(),
            beside: beside.to_owned(),
            theirs: theirs.into(),
            unit: "instr.",
            target: Target::None,
        });
        report.note(NAME, format!("{:.0} instructions more than {beside}", more.median()));
    }
    report.note(NAME, said.machine());
    Ok(())
}

/// By crate `verbs`, and directly: the second line, as the first says that the program is ready.
fn figures(said: &Said, rep: u32, provider: &str) -> Outcome<(f64, f64)> {
    let text = said.section(&format!("{rep} {provider}"));
    let words = text.lines().nth(1).and_then(|line| line.strip_prefix("ok "));
    let mut figures = words.into_iter().flat_map(str::split_whitespace).map(str::parse::<f64>);
    match (figures.next(), figures.next()) {
        (Some(Ok(ours)), Some(Ok(theirs))) => Ok((ours, theirs)),
        _ => Err(format!("{provider}: {text}").into()),
    }
}

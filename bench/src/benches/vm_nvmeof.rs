//! NVMe over Fabrics: the kernel's host reads from our target and from the kernel's own, on one
//! machine.

use crate::Outcome;
use crate::child::peerdma;
use crate::report::{Report, Row, Target};
use crate::vm::{Guest, Said, Vm};

const NAME: &str = "vm-nvmeof";

const GUEST: Guest = Guest {
    script: "nvmeof.sh",
    modules: &["veth", "rdma_rxe", "nvme-rdma", "nvmet-rdma", "nvme-tcp", "nvmet-tcp"],
    programs: &["ip", "rdma", "nvme", "fio"],
    counts: false,
};
/// A read of all targets once, on a machine that is busy.
const SECONDS_EACH: usize = 120;

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let target = peerdma()?.with_file_name("nvmet");
    if !target.exists() {
        return Err("target/release/nvmet is not built: cargo build --release -p nvmet".into());
    }
    let files = [format!("{}:/bin/nvmet", target.display())];
    let limit = 60 + reps as usize * SECONDS_EACH;
    let said = Vm::fetch()?.boot(&GUEST, &files, &format!("reps={reps}"), limit)?;
    let ours = (0..reps).map(|rep| figure(&said, rep, "peerdma")).collect::<Outcome<Vec<f64>>>()?;
    for (carrier, beside) in
        [("tcp", "the kernel's target by TCP"), ("rxe", "the kernel's target by rdma_rxe")]
    {
        let theirs = (0..reps).map(|rep| figure(&said, rep, carrier));
        report.row(Row {
            bench: NAME,
            what: "4 KiB random reads, 32 under way".to_owned(),
            ours: ours.clone().into(),
            beside: beside.to_owned(),
            theirs: theirs.collect::<Outcome<Vec<f64>>>()?.into(),
            unit: "reads/s",
            target: Target::None,
        });
    }
    report.note(NAME, format!("the kernel's host, by rdma_rxe and by TCP: {}", said.machine()));
    Ok(())
}

/// What fio came to.
fn figure(said: &Said, rep: u32, target: &str) -> Outcome<f64> {
    let text = said.section(&format!("{rep} {target}"));
    let iops = text.lines().find_map(|line| line.strip_prefix("iops "));
    iops.and_then(|iops| iops.parse().ok()).ok_or_else(|| format!("{target}: {text}").into())
}

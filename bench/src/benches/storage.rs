//! A file into memory of a GPU, beside direct I/O into ordinary memory.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use providers::{Kind, Machine};
use storage::{Buffer, Client, File, OpenOptions};
use umem::HostBuf;
use verbs::soft;

use super::in_turns;
use crate::Outcome;
use crate::report::{Report, Row, Target};

const STORAGE: &str = "storage";
const LENGTH: u64 = 256 << 20;
/// What a client has in memory: the file goes through it piece by piece.
const BUFFER: u64 = 16 << 20;

/// A file that goes with the bench.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let made = make()?;
    let file = File::open(&made.0, &OpenOptions::default())?;
    if !file.is_direct() {
        report.note(STORAGE, "there is no direct I/O here: the page cache is measured".to_owned());
    }
    let machine = Machine::new();
    let nic = soft::device(machine.nic())?.open()?;
    let disk = machine.disk()?;
    // CAST: some megabytes.
    let host = disk.attach_host(&HostBuf::anonymous(BUFFER as usize)?);
    let gpu = ("GPU memory", Kind::Gpu, Target::AtLeast(0.9));
    let cmb = ("a controller's memory buffer", Kind::Cmb, Target::None);
    for (what, kind, target) in [gpu, cmb] {
        let _published = machine.publish(kind, &nic)?;
        let placed = machine.orchestrator().place(&machine.clients(), BUFFER)?;
        let device = disk.attach(placed.buffer())?;
        let rate = |buffer: &Buffer| read(&disk, &file, buffer);
        let (ours, theirs) = in_turns(STORAGE, reps, report, || rate(&device), || rate(&host))?;
        report.row(Row {
            bench: STORAGE,
            what: format!("a file into {what}"),
            ours: ours.into(),
            beside: "into ordinary memory".to_owned(),
            theirs: theirs.into(),
            unit: "MiB/s",
            target,
        });
    }
    let bounced = disk.stats().bounced;
    if bounced > 0 {
        report.note(STORAGE, format!("{bounced} bytes were bounced"));
    }
    Ok(())
}

fn make() -> Outcome<Made> {
    let path = std::env::temp_dir().join(format!("peerdma-bench-{}", std::process::id()));
    let mut file = fs::File::create_new(&path)?;
    let made = Made(path);
    let piece = vec![0x5a; 1 << 20];
    for _ in 0..LENGTH >> 20 {
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(made)
}

/// MiB per second of the whole file.
fn read(disk: &Client, file: &File, buffer: &Buffer) -> Outcome<f64> {
    let began = Instant::now();
    for at in (0..LENGTH).step_by(BUFFER as usize) {
        let got = disk.read(file, at, buffer, 0, BUFFER)?;
        if got != BUFFER {
            return Err("the file is short".into());
        }
    }
    Ok((LENGTH >> 20) as f64 / began.elapsed().as_secs_f64())
}

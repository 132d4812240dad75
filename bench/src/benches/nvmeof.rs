//! NVMe over Fabrics: random reads by our host from our target, beside the same reads of the file.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nvmet::host::{Data, Host, Who};
use nvmet::target::Target;
use nvmet::target::subsystem::{Namespace, Subsystem};
use nvmet::wire::capsule::opcode;
use nvmet::wire::{Command, Status};
use providers::{Kind, Machine};
use storage::{Client, File, OpenOptions};
use umem::HostBuf;
use verbs::Context;
use verbs::soft::{self, NicConfig};

use super::in_turns;
use crate::Outcome;
use crate::report::{Report, Row, Target as Goal};

const NVMEOF: &str = "nvmeof";
const NQN: &str = "nqn.2026-11.org.example:bench";
const LENGTH: u64 = 256 << 20;
const BLOCK: u64 = 4 << 10;
const DEPTH: u16 = 32;
const READS: u64 = 20_000;
/// Far longer than a read takes.
const PATIENCE: Duration = Duration::from_secs(10);

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
        report.note(NVMEOF, "there is no direct I/O here: the page cache is measured".to_owned());
    }
    for kind in [Kind::System, Kind::Gpu] {
        let machine = Machine::new();
        let name = format!("bench-nvmeof-{}-{kind}", std::process::id());
        let nic = soft::device(NicConfig { name, ..machine.nic() })?;
        let (ours, other) = (nic.open()?, soft::open_another(&nic)?);
        let _published = machine.publish(kind, &ours)?;
        let subsystem = Subsystem::new(NQN, vec![Namespace::open(&made.0)?]);
        let ip = ours.default_gid().ok_or("the NIC has no address")?.gid.to_ip();
        let at = SocketAddr::new(ip, 0);
        let target = Target::start(&machine, &ours, at, subsystem, DEPTH.into())?;
        let mut remote = Remote::new(&other, &target)?;
        let local = machine.disk()?;
        let (far, near) = in_turns(NVMEOF, reps, report, || remote.rate(), || rate(&local, &file))?;
        report.row(Row {
            bench: NVMEOF,
            what: format!("4 KiB random reads, 32 under way, through memory {kind}"),
            ours: far.into(),
            beside: "io_uring on the file, 32 under way".to_owned(),
            theirs: near.into(),
            unit: "reads/s",
            target: Goal::None,
        });
    }
    report.note(NVMEOF, "vm-nvmeof has the kernel's target beside it".to_owned());
    Ok(())
}

fn make() -> Outcome<Made> {
    let path = std::env::temp_dir().join(format!("peerdma-bench-nvmeof-{}", std::process::id()));
    let mut file = fs::File::create_new(&path)?;
    let made = Made(path);
    for block in 0..LENGTH / BLOCK {
        file.write_all(&block.to_le_bytes().repeat(BLOCK as usize / 8))?;
    }
    file.sync_all()?;
    Ok(made)
}

/// The block of a read: all over the file, in no order, the same for both sides.
fn block_of(read: u64) -> u64 {
    read.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & (LENGTH / BLOCK - 1)
}

struct Remote {
    host: Host,
    blocks_in_read: u16,
}

impl Remote {
    fn new(context: &Context, target: &Target) -> Outcome<Self> {
        let mut host = Host::connect_io(context, &Who::new(target.addr(), NQN), 1, DEPTH)?;
        let block = host.namespaces()?.first().ok_or("no namespace")?.block;
        let blocks_in_read = u16::try_from(BLOCK / u64::from(block))?;
        Ok(Self { host, blocks_in_read })
    }

    /// Reads per second. Each block says which one it is.
    fn rate(&mut self) -> Outcome<f64> {
        let (per, queue) = (self.blocks_in_read, self.host.io()?);
        let mut asked = std::collections::HashMap::new();
        let (mut next, mut done) = (0, 0);
        let began = Instant::now();
        while done < READS {
            while next < READS {
                let block = block_of(next);
                let command = Command::io(opcode::READ, 1, block * u64::from(per), per);
                let data = Data::In { len: BLOCK as usize, invalidate: true };
                let Some(cid) = queue.submit(&command, data)? else { break };
                asked.insert(cid, block);
                next += 1;
            }
            let (cid, answer) = queue.wait_timeout(PATIENCE)?.ok_or("a read is not answered")?;
            if answer.completion.status() != Status::SUCCESS {
                return Err(format!("a read ended with {}", answer.completion.status()).into());
            }
            let mut first = [0; 8];
            queue.take(cid, &mut first)?;
            if Some(u64::from_le_bytes(first)) != asked.remove(&cid) {
                return Err("another block came".into());
            }
            done += 1;
        }
        Ok(READS as f64 / began.elapsed().as_secs_f64())
    }
}

/// The same reads by the storage client alone.
fn rate(disk: &Client, file: &File) -> Outcome<f64> {
    let memory = HostBuf::anonymous(usize::from(DEPTH) * BLOCK as usize)?;
    let (buffer, queue) = (disk.attach_host(&memory), disk.queue());
    let mut asked = vec![0; DEPTH.into()];
    let mut free: Vec<u64> = (0..DEPTH.into()).collect();
    let (mut next, mut done) = (0, 0);
    let began = Instant::now();
    while done < READS {
        while next < READS {
            let Some(slot) = free.pop() else { break };
            let block = block_of(next);
            asked[slot as usize] = block;
            queue.read(slot, file, block * BLOCK, &buffer, slot * BLOCK, BLOCK as u32)?;
            next += 1;
        }
        let completion = queue.wait(PATIENCE).ok_or("a read is not answered")?;
        let slot = completion.id;
        let mut first = [0; 8];
        memory.read((slot * BLOCK) as usize, &mut first)?;
        if completion.result? != BLOCK || u64::from_le_bytes(first) != asked[slot as usize] {
            return Err("another block came".into());
        }
        free.push(slot);
        done += 1;
    }
    Ok(READS as f64 / began.elapsed().as_secs_f64())
}

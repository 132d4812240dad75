//! `peerdma demo --storage`: a file goes to another process through memory of a device.
//!
//! ```text
//!   file --(direct I/O)--> memory of a disk, a GPU, a NIC --(RDMA WRITE)--> the target's memory
//! ```
//!
//! The orchestrator places the memory near the NIC and the disk, both attach to it, and no byte
//! passes through host memory. The same pipeline through host memory runs for comparison. After
//! each, the target reports the checksum of what has arrived.

mod report;
mod target;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dmabuf::DmaBuf;
use orchestrator::Placed;
use providers::{Kind, Machine};
use storage::{Buffer, Client, File, OpenOptions, Queue};
use umem::ways::bytes_by_way;
use verbs::{Access, Context, Cq, Mr, Pd, Qp, QpSpec, Remote, SendRequest, soft};

use super::peer::{self, Outcome, PATIENCE, Peer, endpoint};
use report::{Report, Row};

pub(super) use target::run as run_target;

/// Bytes that travel at once.
const PIECE: u32 = 256 << 10;
/// Pieces of the memory, and how many are read or sent at the same time.
const PIECES: u64 = 8;
/// Bytes of the file that the demo creates if it is given none.
const LENGTH: u64 = 64 << 20;

/// A file that is removed when the demo ends.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Where the bytes are between the file and the wire.
struct Stage {
    buffer: Buffer,
    mr: Mr,
    placed: Option<Placed>,
}

/// One end of the connection, and the disk.
struct Side {
    machine: Machine,
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    disk: Client,
}

/// Moves `file`, or one that is created for this, once through each kind of memory.
pub(super) fn run(file: Option<&Path>) -> Outcome<()> {
    let made = file.is_none().then(make).transpose()?;
    let path = file.or(made.as_ref().map(|made| made.0.as_path())).ok_or("there is no file")?;
    let file = File::open(path, &OpenOptions::default())?;
    let length = file.size()?;
    if length == 0 {
        return Err(format!("{} is empty", path.display()).into());
    }
    let sum = checksum(path)?;
    let side = Side::open()?;
    let mut peer = Peer::spawn(&["--storage", "--length", &length.to_string()])?;
    let there = side.connect(&mut peer)?;
    let mut report = Report::new(path, length, &file, &side.disk);
    for kind in Kind::ALL {
        peer.ask("clear")?;
        let row = measure(&side, &file, length, kind, there)
            .map_err(|error| format!("through memory of kind {kind}: {error}"))?;
        let got = peer.ask("checksum")?;
        if got != sum.to_string() {
            return Err(format!("through memory of kind {kind}: other bytes arrived").into());
        }
        report.row(row);
    }
    print!("{report}");
    Ok(())
}

/// Creates a temporary file with a pattern that no wrong offset can produce.
fn make() -> Outcome<Made> {
    let path = std::env::temp_dir().join(format!("peerdma-demo-{}", std::process::id()));
    let mut file = fs::File::create_new(&path)?;
    let made = Made(path);
    let mut piece = Vec::with_capacity(PIECE as usize);
    for start in (0..LENGTH).step_by(PIECE as usize) {
        piece.clear();
        let words = (start..start + u64::from(PIECE)).step_by(8);
        piece.extend(words.flat_map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()));
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(made)
}

/// The checksum of a file as any program reads it.
fn checksum(path: &Path) -> Outcome<u32> {
    struct Sum(crc32fast::Hasher);
    impl Write for Sum {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut sum = Sum(crc32fast::Hasher::new());
    std::io::copy(&mut fs::File::open(path)?, &mut sum)?;
    Ok(sum.0.finalize())
}

/// Moves the file once, and returns how.
fn measure(side: &Side, file: &File, length: u64, kind: Kind, there: Remote) -> Outcome<Row> {
    let published = side.machine.publish(kind, &side.context)?;
    let stage = Stage::new(side, kind)?;
    let before = bytes_by_way();
    let start = Instant::now();
    side.pump(file, length, &stage, there)?;
    let took = start.elapsed();
    let ways = bytes_by_way().since(&before);
    // The disk writes each byte into the memory, and the NIC reads it there.
    if kind != Kind::System && (ways.bus_address != 2 * length || ways.bounced > 0) {
        return Err(format!("not every byte went from device to device:\n{ways}").into());
    }
    let row = Row::new(kind, stage.placed.as_ref(), took, length, ways);
    drop((stage, published));
    Ok(row)
}

impl Stage {
    fn new(side: &Side, kind: Kind) -> Outcome<Self> {
        let length = PIECES * u64::from(PIECE);
        if kind == Kind::System {
            return Self::on(side, &DmaBuf::export(length, "stage")?, None);
        }
        let placed = side.machine.orchestrator().place(&side.machine.clients(), length)?;
        let buffer = placed.buffer().clone();
        Self::on(side, &buffer, Some(placed))
    }

    fn on(side: &Side, buffer: &DmaBuf, placed: Option<Placed>) -> Outcome<Self> {
        let mr = side.pd.reg_whole_dmabuf(buffer, Access::LOCAL_WRITE)?;
        Ok(Self { buffer: side.disk.attach(buffer)?, mr, placed })
    }
}

impl Side {
    fn open() -> Outcome<Self> {
        let machine = Machine::new();
        let context = soft::device(machine.nic())?.open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(64)?;
        let qp = pd.create_qp(&QpSpec::rc(&cq))?;
        let disk = machine.disk()?;
        Ok(Self { machine, context, pd, cq, qp, disk })
    }

    /// Connects, and learns where the target's memory is.
    fn connect(&self, peer: &mut Peer) -> Outcome<Remote> {
        let answer = peer.ask(&peer::connect_line(&self.qp.endpoint()?))?;
        let words: Vec<&str> = answer.split_whitespace().collect();
        let &[gid, qpn, psn, memory] = words.as_slice() else {
            return Err("the target's endpoint is incomplete".into());
        };
        self.qp.connect(&endpoint(gid, qpn, psn)?)?;
        peer::remote(memory)
    }

    /// Reads each piece of the file into the stage, and writes it from there to the target.
    fn pump(&self, file: &File, length: u64, stage: &Stage, there: Remote) -> Outcome<()> {
        let queue = self.disk.queue();
        let mut free: Vec<u64> = (0..PIECES).rev().collect();
        let (mut next, mut read, mut sent) = (0, 0, 0);
        // The offset in the file of what lies in each piece, and its length.
        let mut inside = [(0, 0); PIECES as usize];
        let began = Instant::now();
        while sent < length {
            let before = (next, read, sent);
            while next < length
                && let Some(piece) = free.pop()
            {
                // CAST: no more than a piece.
                let count = (length - next).min(PIECE.into()) as u32;
                inside[piece as usize] = (next, count);
                self.ask(&queue, file, stage, piece, next)?;
                next += u64::from(count);
            }
            while let Some(done) = queue.poll() {
                let (at, count) = inside[done.id as usize];
                let got = done.result?;
                if got < u64::from(count) {
                    return Err(format!("the file ended at {}", at + got).into());
                }
                read += got;
                let slice = stage.mr.slice(done.id * u64::from(PIECE), count);
                let write = SendRequest::write(done.id, &[slice], there.add(at));
                self.qp.post_send(&write.signaled())?;
            }
            while let Some(wc) = self.cq.poll() {
                if !wc.is_success() {
                    return Err(format!("an RDMA WRITE ended with {:?}", wc.status).into());
                }
                sent += u64::from(inside[wc.wr_id as usize].1);
                free.push(wc.wr_id);
            }
            if before == (next, read, sent) {
                if began.elapsed() > PATIENCE + Duration::from_millis(length >> 10) {
                    return Err("the pipeline has stalled".into());
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Asks the disk for a piece: whole sectors, as direct I/O requires, also at the end of the
    /// file.
    fn ask(&self, q: &Queue, file: &File, stage: &Stage, piece: u64, at: u64) -> Outcome<()> {
        Ok(q.read(piece, file, at, &stage.buffer, piece * u64::from(PIECE), PIECE)?)
    }
}

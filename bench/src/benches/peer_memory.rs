//! GPU memory and device memory compared with host memory; what registering and moving a buffer
//! costs.

use std::time::{Duration, Instant};

use gpu::{Bo, CopyMode, Domain, Gpu, GpuConfig, Place};
use verbs::{Access, Context, Cq, HostBuf, Mr, Pd, Qp, QpSpec, Remote, SendRequest, soft};

use super::in_turns;
use crate::child::Role;
use crate::report::{Report, Row, Target};
use crate::sample::Sample;
use crate::{Outcome, exchange};

const NAME: &str = "peer-memory";
const MIB: u64 = 1 << 20;
/// How many bytes each bandwidth measurement moves.
const BYTES: u64 = 2 << 30;
/// Requests in flight: the last of this many is signaled.
const WINDOW: u32 = 16;
/// Requests of 64 bytes in each measurement.
const SMALL: u32 = 100_000;
const MARK: u8 = 0x5a;
/// A registration of a buffer of any size, in microseconds.
const REGISTER_LIMIT: f64 = 50.0;
/// An invalidation with this many attachments, in microseconds.
const IDLE: usize = 1000;
const INVALIDATE_LIMIT: f64 = 1000.0;
/// The buffer whose move is measured by the byte.
const MOVED: u64 = 64 * MIB;

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let context = verbs::devices()?.first().ok_or("there is no device")?.open()?;
    let large = BYTES / MIB;
    for (operation, name) in [(Operation::Write, "WRITE"), (Operation::Read, "READ")] {
        let what = format!("{name} GPU memory, 1 MiB");
        let kinds = ("gpu", "memfd", "host memory, a file");
        let rates = beside(&context, reps, report, operation, kinds, MIB as u32, large as u32)?;
        row(report, what, rates, kinds.2, "MiB/s", Target::AtLeast(0.9));
    }
    // Ordinary host memory costs a system call per WRITE; a file and device memory are written
    // alike.
    let hosts = [
        ("anonymous", "host memory", Target::AtMost(1.0)),
        ("memfd", "host memory, a file", Target::None),
    ];
    for (kind, beside_what, target) in hosts {
        let kinds = ("dm", kind, beside_what);
        let rates = beside(&context, reps, report, Operation::Write, kinds, 64, SMALL)?;
        let time = |rate: &f64| 64.0 / f64::from(1 << 20) / rate * 1e6;
        let times = (rates.0.iter().map(time).collect(), rates.1.iter().map(time).collect());
        let what = "WRITE device memory, 64 bytes".to_owned();
        row(report, what, times, kinds.2, "us", target);
    }
    let pd = context.alloc_pd()?;
    register(&pd, reps, report)?;
    invalidate(&pd, reps, report)?;
    moves(&pd, reps, report)
}

#[derive(Clone, Copy)]
enum Operation {
    Write,
    Read,
}

/// A peer with memory of some kind, connected.
struct Peer {
    owner: Role,
    there: Remote,
    buffer: HostBuf,
    mr: Mr,
    cq: Cq,
    qp: Qp,
    length: u32,
}

impl Peer {
    fn start(context: &Context, kind: &str, length: u32) -> Outcome<Self> {
        let (mut owner, words) = Role::start(&[], "owner", &[kind.to_owned(), length.to_string()])?;
        let (peer, memory): (String, String) = (words.get(0)?, words.get(1)?);
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(64)?;
        let buffer = HostBuf::memfd("bench-source", length as usize)?;
        let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE)?;
        let qp = pd.create_qp(&QpSpec::rc(&cq))?;
        owner.ask(&format!("connect {}", exchange::show(&qp.endpoint()?)))?;
        qp.connect(&exchange::endpoint(&peer)?)?;
        let there = exchange::memory(&memory)?;
        let mut peer = Self { owner, there, buffer, mr, cq, qp, length };
        // The first operations wait for the peer's answer; then the path is known. This also
        // checks that the measured operations are correct.
        peer.buffer.fill(0, MARK, length as usize)?;
        peer.go(Operation::Write, WINDOW)?;
        peer.owner.ask(&format!("check {MARK}"))?;
        peer.owner.ask("fill 7")?;
        peer.go(Operation::Read, WINDOW)?;
        let mut found = vec![0; length as usize];
        peer.buffer.read(0, &mut found)?;
        match found.iter().all(|byte| *byte == 7) {
            true => Ok(peer),
            false => Err(format!("a READ of {kind} memory returned other bytes").into()),
        }
    }

    /// `count` operations, a multiple of [`WINDOW`]; MiB in a second.
    fn go(&self, operation: Operation, count: u32) -> Outcome<f64> {
        let local = [self.mr.slice(0, self.length)];
        let request = match operation {
            Operation::Write => SendRequest::write(0, &local, self.there),
            Operation::Read => SendRequest::read(0, &local, self.there),
        };
        let last = request.clone().signaled();
        let start = Instant::now();
        for _ in 0..count / WINDOW {
            for _ in 1..WINDOW {
                self.qp.post_send(&request)?;
            }
            self.qp.post_send(&last)?;
            let wc = self.cq.wait_timeout(Duration::from_secs(20))?;
            let wc = wc.ok_or("no completion in 20 seconds")?;
            if !wc.is_success() {
                return Err(format!("an operation ended with {:?}", wc.status).into());
            }
        }
        let mib = f64::from(count) * f64::from(self.length) / f64::from(1 << 20);
        Ok(mib / start.elapsed().as_secs_f64())
    }
}

/// The same operation on two kinds of memory.
fn beside(
    context: &Context,
    reps: u32,
    report: &mut Report,
    operation: Operation,
    (ours, theirs, _): (&str, &str, &str),
    length: u32,
    count: u32,
) -> Outcome<(Vec<f64>, Vec<f64>)> {
    let (ours_at, theirs_at) =
        (Peer::start(context, ours, length)?, Peer::start(context, theirs, length)?);
    let count = count / WINDOW * WINDOW;
    let before = soft::counters(context)?.direct_operations;
    let rates = in_turns(
        NAME,
        reps,
        report,
        || ours_at.go(operation, count),
        || theirs_at.go(operation, count),
    )?;
    let direct = soft::counters(context)?.direct_operations - before;
    let all = 2 * u64::from(count) * u64::from(reps);
    if direct < all {
        report
            .note(NAME, format!("{ours}, {length} bytes: {direct} of {all} took the direct path"));
    }
    Ok(rates)
}

/// A GPU whose copies are done when [`Gpu::step`] is called, so that the rest of a move can be
/// timed.
fn a_gpu(vram: u64) -> Outcome<Gpu> {
    Ok(Gpu::open(&GpuConfig {
        vram,
        gtt: vram,
        shared: false,
        copy_engine: CopyMode::Manual,
        ..GpuConfig::default()
    })?)
}

fn registered(pd: &Pd, bo: &Bo) -> Outcome<Mr> {
    Ok(pd.reg_whole_dmabuf(&bo.export()?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?)
}

fn microseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// Registering a buffer repeatedly. The first time, it has no bus address yet; that is reported
/// separately.
fn register(pd: &Pd, reps: u32, report: &mut Report) -> Outcome<()> {
    let gpu = a_gpu(2 << 30)?;
    let (large, small) = (gpu.alloc(1 << 30, Place::VRAM)?, gpu.alloc(MIB, Place::VRAM)?);
    let mut cold = Vec::new();
    let (mut large_times, mut small_times) = (Vec::new(), Vec::new());
    for (bo, times) in [(&large, &mut large_times), (&small, &mut small_times)] {
        let _exported = bo.export()?;
        for rep in 0..reps * 20 {
            let start = Instant::now();
            let mr = registered(pd, bo)?;
            let took = microseconds(start);
            if rep == 0 {
                cold.push(took);
            }
            times.push(took);
            drop(mr);
        }
    }
    let limit: Vec<f64> = large_times.iter().map(|_| REGISTER_LIMIT).collect();
    let what = "register 1 GiB, dynamic".to_owned();
    let sides = (large_times.clone(), limit);
    row(report, what.clone(), sides, "limit", "us", Target::AtMost(1.0));
    row(report, what, (large_times, small_times), "1 MiB", "us", Target::AtMost(1.5));
    let first: Vec<_> = cold.iter().map(|took| format!("{took:.0} us")).collect();
    report.note(NAME, format!("the first registration: {} (1 GiB, 1 MiB)", first.join(", ")));
    Ok(())
}

/// Taking a buffer back from a thousand idle regions.
fn invalidate(pd: &Pd, reps: u32, report: &mut Report) -> Outcome<()> {
    let gpu = a_gpu(64 * MIB)?;
    let bo = gpu.alloc(MIB, Place::VRAM)?;
    let (mut times, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..reps {
        let one = registered(pd, &bo)?;
        alone.push(timed_move(&gpu, &bo)?);
        drop(one);
        let idle = (0..IDLE).map(|_| registered(pd, &bo)).collect::<Outcome<Vec<_>>>()?;
        times.push(timed_move(&gpu, &bo)?);
        drop(idle);
    }
    let limit: Vec<f64> = times.iter().map(|_| INVALIDATE_LIMIT).collect();
    let what = format!("invalidate, {IDLE} idle regions");
    row(report, what, (times, limit), "limit", "us", Target::AtMost(1.0));
    let one: Sample = alone.into();
    report.note(NAME, format!("the same with one region: {:.0} us", one.median()));
    Ok(())
}

/// The time of the call itself, in microseconds: it stops all access, tells importers, and retires
/// the address. Bytes are copied afterwards.
fn timed_move(gpu: &Gpu, bo: &Bo) -> Outcome<f64> {
    let to = match bo.domain()? {
        Domain::Vram => Domain::Gtt,
        Domain::Gtt => Domain::Vram,
    };
    let start = Instant::now();
    gpu.move_to(bo, to)?;
    let took = microseconds(start);
    while gpu.step() {}
    Ok(took)
}

/// The cost of a move per resident byte, in all and without the copy.
fn moves(pd: &Pd, reps: u32, report: &mut Report) -> Outcome<()> {
    let gpu = a_gpu(2 * MOVED)?;
    let bo = gpu.alloc(MOVED, Place::VRAM)?;
    let bytes = vec![MARK; MOVED as usize];
    let mut copy = bytes.clone();
    let (context, cq) = (pd.context(), pd.context().create_cq(64)?);
    let side = || pd.create_qp(&QpSpec::rc(&cq));
    let (qp, other) = (side()?, side()?);
    qp.connect(&other.endpoint()?)?;
    other.connect(&qp.endpoint()?)?;
    let source = HostBuf::anonymous(MIB as usize)?;
    let local = pd.reg_mr(&source, Access::LOCAL_WRITE)?;
    let mr = registered(pd, &bo)?;
    let (mut told, mut whole, mut bare) = (Sample::default(), Vec::new(), Vec::new());
    for _ in 0..reps {
        // Written through the region, so that every page of its bus address is present.
        for at in 0..MOVED / MIB {
            let all = [local.slice(0, MIB as u32)];
            qp.post_send(&SendRequest::write(1, &all, mr.remote(at * MIB)).signaled())?;
            cq.wait_timeout(Duration::from_secs(20))?.ok_or("no completion in 20 seconds")?;
        }
        let start = Instant::now();
        told.push(timed_move(&gpu, &bo)?);
        whole.push((MOVED / MIB) as f64 / start.elapsed().as_secs_f64());
        let start = Instant::now();
        copy.copy_from_slice(std::hint::black_box(&bytes));
        std::hint::black_box(&mut copy);
        bare.push((MOVED / MIB) as f64 / start.elapsed().as_secs_f64());
    }
    row(report, "move of 64 MiB".to_owned(), (whole, bare), "memcpy", "MiB/s", Target::None);
    let per_page = told.median() * 1e3 / (MOVED / 4096) as f64;
    let us = told.median();
    report.note(NAME, format!(
        "of the move, stopping and telling took {us:.0} us: {per_page:.1} ns for each page of 4 KiB that was there; {} faults",
        soft::counters(context)?.page_faults
    ));
    Ok(())
}

fn row(
    report: &mut Report,
    what: String,
    (ours, theirs): (Vec<f64>, Vec<f64>),
    beside: &str,
    unit: &'static str,
    target: Target,
) {
    let (ours, theirs) = (ours.into(), theirs.into());
    report.row(Row { bench: NAME, what, ours, beside: beside.to_owned(), theirs, unit, target });
}

//! The lists of the screen: what each has a line for, and the values of a line.

use ::gpu::{BufferView, GpuView, Member};
use view::{Missing, Process, Qp, qp_state_name, qp_type_name};

use super::cell::Cell;
use super::sample::{LOSSES, RECEIVED, Rates, SENT, Sample};

/// A list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pane {
    Processes,
    Qps,
    Losses,
    Gpus,
    Buffers,
}

/// A column of a list.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// How wide it is, in columns of the terminal; a text in the last one takes what is left.
    pub(super) width: u16,
    /// Those with a larger number are left out first where there is no room.
    pub(super) rank: u8,
}

/// A line of a list.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// What tells it from the other lines, in this sample and the next.
    pub(super) id: String,
    /// A value for each column.
    pub(super) cells: Vec<Cell>,
    /// What there is no room for in columns.
    pub(super) detail: String,
}

const fn column(name: &'static str, width: u16, rank: u8) -> Column {
    Column { name, width, rank }
}

const PROCESSES: [Column; 10] = [
    column("PID", 8, 0),
    column("NAME", 15, 0),
    column("OUT/s", 6, 1),
    column("IN/s", 6, 1),
    column("DIRECT B/s", 10, 2),
    column("LOSSES", 6, 1),
    column("QPs", 5, 2),
    column("MRs", 5, 3),
    column("REGISTERED", 10, 3),
    column("NIC", 9, 4),
];

const QPS: [Column; 10] = [
    column("QPN", 8, 0),
    column("TYPE", 10, 3),
    column("STATE", 5, 0),
    column("OUT/s", 6, 1),
    column("IN/s", 6, 1),
    column("POSTED", 6, 2),
    column("RETRIES", 7, 1),
    column("PEER", 8, 3),
    column("PROCESS", 15, 2),
    column("PATH", 8, 1),
];

const LOST: [Column; 4] = [
    column("COUNTER", 26, 0),
    column("TOTAL", 8, 0),
    column("PER s", 6, 1),
    column("PROCESS", 15, 1),
];

const GPUS: [Column; 8] = [
    column("GPU", 10, 0),
    column("PROCESS", 8, 1),
    column("VRAM", 8, 0),
    column("OF", 8, 2),
    column("GTT", 8, 1),
    column("OF", 8, 3),
    column("BUFFERS", 7, 2),
    column("MOVES", 6, 1),
];

const BUFFERS: [Column; 8] = [
    column("GPU", 10, 0),
    column("PROCESS", 8, 2),
    column("BUFFER", 6, 0),
    column("SIZE", 8, 1),
    column("PLACE", 7, 0),
    column("MOVES", 6, 1),
    column("PINS", 4, 2),
    column("IMPORTERS", 9, 1),
];

impl Pane {
    pub(super) const ALL: [Self; 5] =
        [Self::Processes, Self::Qps, Self::Losses, Self::Gpus, Self::Buffers];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Processes => "Processes",
            Self::Qps => "Queue pairs",
            Self::Losses => "Losses",
            Self::Gpus => "GPUs",
            Self::Buffers => "GPU buffers",
        }
    }

    pub(super) const fn columns(self) -> &'static [Column] {
        match self {
            Self::Processes => &PROCESSES,
            Self::Qps => &QPS,
            Self::Losses => &LOST,
            Self::Gpus => &GPUS,
            Self::Buffers => &BUFFERS,
        }
    }

    /// Its lines, in the order in which the sample has them.
    pub(super) fn lines(self, sample: &Sample, rates: &Rates) -> Vec<Line> {
        match self {
            Self::Processes => processes(sample, rates),
            Self::Qps => qps(sample, rates),
            Self::Losses => losses(sample, rates),
            Self::Gpus => sample.gpus.iter().map(gpu).collect(),
            Self::Buffers => sample.gpus.iter().flat_map(buffers).collect(),
        }
    }
}

/// A process that showed itself, and where it was found.
struct Found<'a> {
    nic: usize,
    nic_name: &'a str,
    comm: &'a str,
    pid: u32,
    process: &'a Process,
}

impl Found<'_> {
    fn id(&self, what: impl std::fmt::Display) -> String {
        let Process { vf, nonce, .. } = self.process;
        format!("{} {vf} {nonce} {what}", self.nic)
    }

    fn label(&self) -> String {
        format!("{} {}", self.pid, self.comm)
    }
}

fn found(sample: &Sample) -> impl Iterator<Item = Found<'_>> {
    sample.nics.iter().enumerate().flat_map(|(nic, (nic_name, gathered))| {
        gathered.processes.iter().map(move |(comm, pid, process)| Found {
            nic,
            nic_name,
            comm,
            pid: *pid,
            process,
        })
    })
}

fn processes(sample: &Sample, rates: &Rates) -> Vec<Line> {
    let shown = found(sample).map(|found| process(&found, rates));
    let missing = sample.nics.iter().flat_map(|(nic, gathered)| {
        gathered.missing.iter().map(move |missing| missing_process(nic, missing))
    });
    shown.chain(missing).collect()
}

fn process(found: &Found<'_>, rates: &Rates) -> Line {
    let Found { nic, process, .. } = found;
    let count = |objects: usize| Cell::Count(Some(objects as u64));
    let registered = process.mrs.iter().map(|mr| mr.length).sum();
    let cells = vec![
        Cell::Count(Some(found.pid.into())),
        Cell::text(found.comm),
        Cell::Rate(rates.sum(*nic, process, &SENT)),
        Cell::Rate(rates.sum(*nic, process, &RECEIVED)),
        Cell::BytesRate(rates.of(*nic, process, "direct_bytes")),
        Cell::Count(Some(LOSSES.iter().map(|name| process.counter(name)).sum())),
        count(process.qps.len()),
        count(process.mrs.len()),
        Cell::Bytes(Some(registered)),
        Cell::text(found.nic_name),
    ];
    let mut detail = format!(
        "VF {}: {} contexts, {} PDs, {} CQs, {} SRQs, {} connection ids",
        process.vf,
        process.contexts.len(),
        process.pds.len(),
        process.cqs.len(),
        process.srqs.len(),
        process.cm_ids.len(),
    );
    if process.left_out > 0 {
        detail += &format!("; {} more objects", process.left_out);
    }
    if let Some(failure) = process.failures.last() {
        detail += &format!("; last failure: {failure}");
    }
    Line { id: found.id(""), cells, detail }
}

/// One that has a VF and shows nothing.
fn missing_process(nic: &str, missing: &Missing) -> Line {
    let unknown = || Cell::Rate(None);
    let mut cells = vec![
        Cell::Count(missing.pid.map(u64::from)),
        Cell::text(missing.comm.as_deref().unwrap_or("?")),
    ];
    cells.extend((0..7).map(|_| unknown()));
    cells.push(Cell::text(nic));
    let detail = format!("VF {}, uid {}: {}", missing.vf, missing.uid, missing.reason);
    Line { id: format!("{nic} missing {}", missing.vf), cells, detail }
}

fn qps(sample: &Sample, rates: &Rates) -> Vec<Line> {
    let of = |found: Found<'_>| {
        let line = |it: &Qp| qp(&found, it, rates);
        found.process.qps.iter().map(line).collect::<Vec<_>>()
    };
    found(sample).flat_map(of).collect()
}

fn qp(found: &Found<'_>, qp: &Qp, rates: &Rates) -> Line {
    let rate = rates.of_qp(found.nic, found.process, qp);
    let path = qp.path.as_ref();
    let cells = vec![
        Cell::Hex(Some(qp.qpn)),
        Cell::text(qp_type_name(qp.kind)),
        Cell::text(qp_state_name(qp.state)),
        Cell::Rate(rate.as_ref().map(|rate| rate.sent)),
        Cell::Rate(rate.as_ref().map(|rate| rate.received)),
        Cell::Count(Some(u64::from(qp.sends) + u64::from(qp.receives))),
        Cell::Count(Some(qp.timeouts.into())),
        Cell::Hex(qp.remote_qpn),
        Cell::text(found.label()),
        Cell::text(path.map_or("", |path| &path.carrier)),
    ];
    let mut detail = format!("{} sends and {} receives posted", qp.sends, qp.receives);
    if qp.timeouts > 0 {
        detail += &format!(", {} timeouts since the last answer", qp.timeouts);
    }
    if let Some(path) = path {
        let (to, mtu) = (path.to.to_ip(), path.mtu);
        detail += &format!("; to {to} by {}: {}; path MTU {mtu}", path.carrier, path.why);
    }
    Line { id: found.id(qp.qpn), cells, detail }
}

fn losses(sample: &Sample, rates: &Rates) -> Vec<Line> {
    let of = |found: Found<'_>| {
        let lost = LOSSES.iter().map(|name| (*name, found.process.counter(name)));
        let line = |(name, count): (&str, u64)| Line {
            id: found.id(name),
            cells: vec![
                Cell::text(name),
                Cell::Count(Some(count)),
                Cell::Rate(rates.of(found.nic, found.process, name)),
                Cell::text(found.label()),
            ],
            detail: found.process.failures.last().cloned().unwrap_or_default(),
        };
        lost.filter(|(_, count)| *count > 0).map(line).collect::<Vec<_>>()
    };
    found(sample).flat_map(of).collect()
}

fn gpu(member: &Member) -> Line {
    let view = member.view.as_ref();
    let known = |of: fn(&GpuView) -> u64| view.ok().map(of);
    let cells = vec![
        Cell::text(&member.gpu),
        Cell::Count(member.pid.map(u64::from)),
        Cell::Bytes(known(|view| view.vram_used)),
        Cell::Bytes(known(|view| view.vram)),
        Cell::Bytes(known(|view| view.gtt_used)),
        Cell::Bytes(known(|view| view.gtt)),
        Cell::Count(known(|view| view.buffers.len() as u64)),
        Cell::Count(known(|view| view.buffers.iter().map(|buffer| buffer.moves).sum())),
    ];
    let detail = match view {
        Ok(view) => {
            let in_vram = view.buffers.iter().filter(|buffer| buffer.place == "VRAM").count();
            let gone = if view.is_removed { "; it was removed" } else { "" };
            let all = view.buffers.len();
            format!(
                "{}, rules of {}: {in_vram} of {all} buffers in VRAM{gone}",
                view.name, view.preset
            )
        }
        Err(why) => why.clone(),
    };
    Line { id: format!("{} {}", member.gpu, member.member), cells, detail }
}

fn buffers(member: &Member) -> Vec<Line> {
    let buffers = member.view.as_ref().map_or(&[][..], |view| &view.buffers);
    buffers.iter().map(|it| buffer(member, it)).collect()
}

fn buffer(member: &Member, buffer: &BufferView) -> Line {
    let importers = buffer.importers.join(", ");
    let cells = vec![
        Cell::text(&member.gpu),
        Cell::Count(member.pid.map(u64::from)),
        Cell::Count(Some(buffer.number)),
        Cell::Bytes(Some(buffer.size)),
        Cell::text(&buffer.place),
        Cell::Count(Some(buffer.moves)),
        Cell::Count(Some(buffer.pins)),
        Cell::text(&importers),
    ];
    let detail = format!(
        "{} bytes at {:#x} of {}, {} moves, {} pins, {} dma-bufs, {} registrations by address; \
         importers: {}",
        buffer.size,
        buffer.offset,
        buffer.place,
        buffer.moves,
        buffer.pins,
        buffer.dma_bufs,
        buffer.by_address,
        if importers.is_empty() { "none" } else { &importers },
    );
    Line { id: format!("{} {} {}", member.gpu, member.member, buffer.number), cells, detail }
}

//! `peerdma demo`: two processes move every kind of memory to every other, and check each byte.
//!
//! This process is the initiator; it starts itself once more as the target. The two speak over the
//! target's standard input and output, a line for a request and a line for its answer. Payload goes
//! by RDMA alone. Each side has a GPU that evicts its buffer and brings it back, all the time.

mod memory;
mod mover;
mod report;
mod target;

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use verbs::{Context, Cq, Endpoint, Gid, Psn, Qp, QpSpec, Qpn, RKey, Remote, SendRequest};

use gpu::{Gpu, Machine};
use memory::{Kind, Memory};
use mover::Mover;
use report::{BothSides, Cell, PeerMemory, Report};

/// What `peerdma demo` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Bytes of each message; at least 64, a multiple of 8, and no more than the NIC has device
    /// memory (256 KiB, unless max_dm_size says otherwise)
    #[arg(long, default_value_t = 64 << 10)]
    size: u32,
    /// Messages of each speed measurement
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// Be the target: used by the demo itself
    #[arg(long, hide = true)]
    target: bool,
}

/// The operations, in the order of the table.
const OPERATIONS: [&str; 6] = ["SEND", "WRITE", "WRITE_IMM", "READ", "CMP_SWAP", "FETCH_ADD"];
/// Nothing on one host takes this long.
const PATIENCE: Duration = Duration::from_secs(20);

type Outcome<T> = Result<T, Box<dyn Error>>;

pub(crate) fn main(args: Args) -> ExitCode {
    if args.size < 64 || !args.size.is_multiple_of(8) || args.rounds == 0 {
        eprintln!("peerdma demo: --size: a multiple of 8 from 64; --rounds: at least 1");
        return ExitCode::from(2);
    }
    let outcome = if args.target { target::run(args.size) } else { run(&args) };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peerdma demo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The QP of either side with what it needs.
struct Side {
    context: Context,
    cq: Cq,
    qp: Qp,
    memories: Vec<Memory>,
    gpu: Gpu,
    _mover: Mover,
}

impl Side {
    fn open(size: u32) -> Outcome<Self> {
        let devices = verbs::devices()?;
        let device = devices.first().ok_or("there is no device")?;
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(512)?;
        let qp = pd.create_qp(&QpSpec::rc(&cq))?;
        let gpu = Machine::load()?.open_first()?;
        let memories = Kind::ALL
            .into_iter()
            .map(|kind| Memory::new(&pd, &gpu, kind, u64::from(size)))
            .collect::<Outcome<Vec<_>>>()?;
        let bos = memories.iter().filter_map(Memory::bo).cloned().collect();
        let mover = Mover::start(&gpu, bos);
        Ok(Self { context, cq, qp, memories, gpu, _mover: mover })
    }

    /// The next completion, which must be a good one.
    fn completion(&self) -> Outcome<verbs::Wc> {
        let wc = self.cq.wait_timeout(PATIENCE)?.ok_or("no completion within 20 seconds")?;
        if !wc.is_success() {
            return Err(format!("work request {} ended with {:?}", wc.wr_id, wc.status).into());
        }
        Ok(wc)
    }

    fn post(&self, request: &SendRequest) -> Outcome<()> {
        Ok(self.qp.post_send(request)?)
    }
}

/// The target, as the initiator sees it. Dropping it ends it.
struct Peer {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    memories: Vec<Remote>,
}

impl Peer {
    fn start(size: u32) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["demo", "--target", "--size", &size.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take();
        let from = child.stdout.take().ok_or("the target has no standard output")?;
        Ok(Self { child, to, from: BufReader::new(from), memories: Vec::new() })
    }

    /// Says a line and gives the answer to it, which must begin with `ok`.
    fn ask(&mut self, line: &str) -> Outcome<String> {
        self.tell(line)?;
        self.answer(line)
    }

    fn tell(&mut self, line: &str) -> Outcome<()> {
        let to = self.to.as_mut().ok_or("the target was told to end")?;
        writeln!(to, "{line}")?;
        Ok(to.flush()?)
    }

    fn answer(&mut self, line: &str) -> Outcome<String> {
        let mut answer = String::new();
        self.from.read_line(&mut answer)?;
        match answer.trim().strip_prefix("ok") {
            Some(rest) => Ok(rest.trim().to_owned()),
            None if answer.is_empty() => Err("the target ended".into()),
            None => Err(format!("{line}: the target says: {}", answer.trim()).into()),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Without its input the target ends by itself.
        self.to = None;
        let _ = self.child.wait();
    }
}

fn run(args: &Args) -> Outcome<()> {
    let side = Side::open(args.size)?;
    let mut peer = Peer::start(args.size)?;
    connect(&side, &mut peer)?;
    let mut report = Report::new(&side.context, &side.memories, args.size);
    for (from, own) in Kind::ALL.into_iter().zip(&side.memories) {
        for to in Kind::ALL {
            let cells = OPERATIONS
                .into_iter()
                .map(|operation| measure(&side, &mut peer, own, to, operation, args))
                .collect::<Outcome<Vec<Cell>>>()
                .map_err(|error| format!("{from} to {to}: {error}"))?;
            report.row(from, to, cells);
        }
    }
    print!("{report}");
    let here = PeerMemory::of(&side);
    let there = PeerMemory::parse(&peer.ask("gpu")?)?;
    let stale = here.stale + there.stale;
    print!("\n{}", BothSides { here, there });
    if stale > 0 {
        return Err("an access went through an address that the GPU had retired".into());
    }
    Ok(())
}

/// Exchanges endpoints and learns where the target's memories are.
fn connect(side: &Side, peer: &mut Peer) -> Outcome<()> {
    let here = side.qp.endpoint()?;
    let gid: String = here.gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let line = format!("connect {gid} {} {}", here.qpn.value(), here.psn.value());
    let answer = peer.ask(&line)?;
    let words: Vec<&str> = answer.split_whitespace().collect();
    let [gid, qpn, psn, memories @ ..] = words.as_slice() else {
        return Err("the target's endpoint is incomplete".into());
    };
    side.qp.connect(&endpoint(gid, qpn, psn)?)?;
    for memory in memories {
        let (addr, rkey) = memory.split_once(':').ok_or("a memory without a key")?;
        peer.memories.push(Remote { addr: addr.parse()?, rkey: RKey(rkey.parse()?) });
    }
    Ok(())
}

fn endpoint(gid: &str, qpn: &str, psn: &str) -> Outcome<Endpoint> {
    let gid = u128::from_str_radix(gid, 16)?;
    Ok(Endpoint {
        gid: Gid(gid.to_be_bytes()),
        qpn: Qpn::new(qpn.parse()?),
        psn: Psn::new(psn.parse()?),
    })
}

/// One operation between two kinds of memory: once with every byte checked, then often for the
/// speed.
fn measure(
    side: &Side,
    peer: &mut Peer,
    own: &Memory,
    to: Kind,
    operation: &'static str,
    args: &Args,
) -> Outcome<Cell> {
    let before = side.context.counters();
    check(side, peer, own, to, operation, args.size)
        .map_err(|error| format!("{operation}: {error}"))?;
    let path = report::path(&before, &side.context.counters());

    let there = peer.memories[to as usize];
    let all = own.mr().slice(0, args.size);
    let request = |round: u32| match operation {
        "SEND" => SendRequest::send(0, &[all]),
        "WRITE" => SendRequest::write(0, &[all], there),
        "WRITE_IMM" => SendRequest::write_with_imm(0, &[all], there, round),
        "READ" => SendRequest::read(0, &[all], there),
        "CMP_SWAP" => SendRequest::compare_swap(0, own.mr().slice(0, 8), there, 0, 0),
        _ => SendRequest::fetch_add(0, own.mr().slice(0, 8), there, 1),
    };
    let receives = matches!(operation, "SEND" | "WRITE_IMM");
    if receives {
        peer.ask(&format!("sink {to} {} {}", args.size, args.rounds))?;
    }
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < args.rounds {
        while posted < args.rounds && posted - done < 16 {
            side.post(&request(posted).signaled())?;
            posted += 1;
        }
        side.completion()?;
        done += 1;
    }
    let each = start.elapsed() / args.rounds;
    if receives {
        peer.answer("sink")?;
    }
    let is_atomic = matches!(operation, "CMP_SWAP" | "FETCH_ADD");
    Ok(Cell { path, each, bytes: if is_atomic { None } else { Some(args.size) } })
}

/// One operation with every byte checked on the side it goes to, and the bytes around it.
fn check(
    side: &Side,
    peer: &mut Peer,
    own: &Memory,
    to: Kind,
    operation: &str,
    size: u32,
) -> Outcome<()> {
    let there = peer.memories[to as usize];
    let seed = own.kind() as u8 * 16 + to as u8 + operation.len() as u8;
    // Not the whole memory, so that a byte too many shows.
    let (offset, length) = (16, size - 48);
    let local = [own.mr().slice(u64::from(offset), length)];
    let place = there.add(u64::from(offset));
    match operation {
        "READ" => {
            own.clear()?;
            peer.ask(&format!("fill {to} {offset} {length} {seed}"))?;
            side.post(&SendRequest::read(1, &local, place).signaled())?;
            side.completion()?;
            own.check(offset, length, seed)
        }
        "CMP_SWAP" | "FETCH_ADD" => {
            let old = own.mr().slice(8, 8);
            peer.ask(&format!("word {to} 24 {}", 1000 + u64::from(seed)))?;
            let (at, start) = (there.add(24), 1000 + u64::from(seed));
            let (request, want) = if operation == "FETCH_ADD" {
                (SendRequest::fetch_add(1, old, at, 7), start + 7)
            } else {
                (SendRequest::compare_swap(1, old, at, start, 42), 42)
            };
            side.post(&request.signaled())?;
            side.completion()?;
            let got = own.word(8)?;
            if got != start {
                return Err(
                    format!("{operation} gave back {got}, not the old value {start}").into()
                );
            }
            peer.ask(&format!("isword {to} 24 {want}")).map(drop)
        }
        _ => {
            own.fill(offset, length, seed)?;
            peer.ask(&format!("clear {to}"))?;
            let request = match operation {
                "SEND" => {
                    peer.ask(&format!("receive {to} {offset} {length}"))?;
                    SendRequest::send(1, &local)
                }
                "WRITE" => SendRequest::write(1, &local, place),
                _ => {
                    peer.ask(&format!("receive {to} 0 0"))?;
                    SendRequest::write_with_imm(1, &local, place, 0x1234_5678)
                }
            };
            side.post(&request.signaled())?;
            side.completion()?;
            if operation != "WRITE" {
                let imm = if operation == "SEND" { 0 } else { 0x1234_5678 };
                peer.ask(&format!("received {length} {imm}"))?;
            }
            peer.ask(&format!("check {to} {offset} {length} {seed}")).map(drop)
        }
    }
}

//! `peerdma demo`: two processes move every kind of memory to every other, and check every byte.
//!
//! This process is the initiator; it starts itself again as the target. The two communicate over
//! the target's standard input and output, one line for a request and one for its answer. Payload
//! travels by RDMA alone. On each side a GPU keeps evicting its buffer and bringing it back.

mod memory;
mod mover;
mod peer;
mod report;
mod side;
mod storage;
mod target;
mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use verbs::{SendRequest, soft};

use memory::{Kind, Memory};
use peer::{Outcome, Peer, connect_line, endpoint, remote};
use report::{BothSides, Cell, OPERATIONS, PeerMemory, Report};
use side::Side;
use terminal::Progress;

/// What `peerdma demo` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Bytes of each message: a multiple of 8, at least 64, and at most the size of the NIC's
    /// device memory (256 KiB, unless max_dm_size says otherwise)
    #[arg(long, default_value_t = 64 << 10)]
    size: u32,
    /// Messages in each speed measurement
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// Move a file from storage to the other process instead, through memory of the host, a disk's
    /// controller, a GPU and a NIC
    #[arg(long)]
    storage: bool,
    /// The file that --storage moves, instead of a temporary one of 64 MiB
    #[arg(long, requires = "storage", value_name = "PATH")]
    file: Option<PathBuf>,
    /// Be the target (the demo uses this itself)
    #[arg(long, hide = true)]
    target: bool,
    /// Bytes of the file (for the target)
    #[arg(long, hide = true, default_value_t = 0)]
    length: u64,
}

pub(crate) fn main(args: Args) -> ExitCode {
    if args.size < 64 || !args.size.is_multiple_of(8) || args.rounds == 0 {
        eprintln!(
            "peerdma demo: --size must be a multiple of 8 and at least 64, --rounds at least 1"
        );
        return ExitCode::from(2);
    }
    let outcome = match (args.storage, args.target) {
        (false, false) => run(&args),
        (false, true) => target::run(args.size),
        (true, false) => storage::run(args.file.as_deref()),
        (true, true) => storage::run_target(args.length),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peerdma demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Outcome<()> {
    let side = Side::open(args.size)?;
    let mut peer = Peer::spawn(&["--size", &args.size.to_string()])?;
    connect(&side, &mut peer)?;
    let mut report = Report::new(&side.context, &side.memories, args.size);
    let mut progress = Progress::new(Kind::ALL.len() * Kind::ALL.len() * OPERATIONS.len());
    for (from, own) in Kind::ALL.into_iter().zip(&side.memories) {
        for to in Kind::ALL {
            let cells = OPERATIONS
                .into_iter()
                .map(|operation| {
                    progress.step(format_args!("{from} to {to}: {operation}"));
                    measure(&side, &mut peer, own, to, operation, args)
                })
                .collect::<Outcome<Vec<Cell>>>()
                .map_err(|error| format!("{from} to {to}: {error}"))?;
            report.row(from, to, cells);
        }
    }
    drop(progress);
    print!("{report}{}", terminal::bars(&report).unwrap_or_default());
    let here = PeerMemory::of(&side)?;
    let there = PeerMemory::parse(&peer.ask("gpu")?)?;
    let stale = here.stale + there.stale;
    print!("\n{}", BothSides { here, there });
    if stale > 0 {
        return Err("an access went through an address that the GPU had retired".into());
    }
    Ok(())
}

/// Exchanges endpoints and learns where the target's memory is.
fn connect(side: &Side, peer: &mut Peer) -> Outcome<()> {
    let answer = peer.ask(&connect_line(&side.qp.endpoint()?))?;
    let words: Vec<&str> = answer.split_whitespace().collect();
    let [gid, qpn, psn, memories @ ..] = words.as_slice() else {
        return Err("the target's endpoint is incomplete".into());
    };
    side.qp.connect(&endpoint(gid, qpn, psn)?)?;
    for memory in memories {
        peer.memories.push(remote(memory)?);
    }
    Ok(())
}

/// One operation between two kinds of memory: once with every byte checked, then repeatedly for the
/// speed.
fn measure(
    side: &Side,
    peer: &mut Peer,
    own: &Memory,
    to: Kind,
    operation: &'static str,
    args: &Args,
) -> Outcome<Cell> {
    let before = soft::counters(&side.context)?;
    check(side, peer, own, to, operation, args.size)
        .map_err(|error| format!("{operation}: {error}"))?;
    let path = report::path(&before, &soft::counters(&side.context)?);

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

/// One operation, with every byte checked on the receiving side, and the bytes around it.
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
    // Not the whole memory, so that a byte too many is seen.
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
                return Err(format!("{operation} returned {got}, not the old value {start}").into());
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

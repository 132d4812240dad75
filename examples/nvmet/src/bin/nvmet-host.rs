//! The host: `nvmet-host 192.0.2.1:4420 list`.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

use clap::{Parser, Subcommand};
use nvmet::host::{Data, Host, HostError, NamespaceInfo, Queue, Who, discover};
use nvmet::wire::capsule::opcode;
use nvmet::wire::{Command, Status};
use verbs::soft::{self, NicConfig};

/// Uses namespaces of an NVMe over Fabrics target over RDMA.
#[derive(Debug, Parser)]
struct Options {
    /// Where the target listens.
    target: SocketAddr,
    /// The name of the subsystem.
    #[arg(long, default_value = "nqn.2014-08.org.nvmexpress:peerdma:files")]
    nqn: String,
    /// The netdev of the NIC; that of the default route if none is named.
    #[arg(long)]
    netdev: Option<String>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists the subsystems.
    Discover,
    /// Lists the namespaces.
    List,
    /// Reads blocks of a namespace to standard output.
    Read {
        /// The namespace.
        nsid: u32,
        /// The first block.
        slba: u64,
        /// The number of blocks.
        blocks: u16,
    },
    /// Writes standard input to blocks of a namespace. The last block is padded with zeros.
    Write {
        /// The namespace.
        nsid: u32,
        /// The first block.
        slba: u64,
    },
    /// Writes blocks in random order, reads each back and compares. This overwrites the namespace.
    Verify {
        /// The namespace.
        nsid: u32,
        /// Bytes of each command.
        #[arg(long, default_value_t = 4096)]
        bytes: usize,
        /// Commands that are outstanding at once.
        #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(2..=128))]
        depth: u16,
        /// Commands of each kind.
        #[arg(long, default_value_t = 10_000)]
        count: u64,
    },
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let options = Options::parse();
    let config = NicConfig { netdev: options.netdev, ..NicConfig::default() };
    let context = soft::device(config)?.open()?;
    if let What::Discover = options.what {
        for entry in discover(&context, options.target)? {
            println!("{} at {}", entry.subnqn, entry.addr);
        }
        return Ok(());
    }
    let depth = if let What::Verify { depth, .. } = options.what { depth } else { 32 };
    let who = Who::new(options.target, &options.nqn);
    let mut host = Host::connect_io(&context, &who, 1, depth)?;
    let namespaces = host.namespaces()?;
    let find = |nsid| {
        let found = namespaces.iter().find(|one| one.nsid == nsid);
        found.copied().ok_or_else(|| format!("there is no namespace {nsid}"))
    };
    match options.what {
        What::Discover | What::List => {
            println!("{:>4} {:>16} {:>6}  NGUID", "nsid", "blocks", "bytes");
            for NamespaceInfo { nsid, blocks, block, nguid, .. } in &namespaces {
                let nguid: String = nguid.iter().map(|byte| format!("{byte:02x}")).collect();
                println!("{nsid:>4} {blocks:>16} {block:>6}  {nguid}");
            }
        }
        What::Read { nsid, slba, blocks } => {
            let block = find(nsid)?.block as usize;
            let mut done = 0;
            while done < blocks {
                let piece = (blocks - done).min((128 << 10 >> block.trailing_zeros()) as u16);
                let mut bytes = vec![0; usize::from(piece) * block];
                host.read(nsid, slba + u64::from(done), piece, &mut bytes)?;
                std::io::stdout().write_all(&bytes)?;
                done += piece;
            }
        }
        What::Write { nsid, slba } => {
            let (block, mut bytes) = (find(nsid)?.block as usize, Vec::new());
            std::io::stdin().read_to_end(&mut bytes)?;
            bytes.resize(bytes.len().next_multiple_of(block), 0);
            for (at, piece) in bytes.chunks(128 << 10).enumerate() {
                let slba = slba + (at * (128 << 10) / block) as u64;
                host.write(nsid, slba, (piece.len() / block) as u16, piece)?;
            }
            host.plain(&Command::new(opcode::FLUSH, nsid))?;
        }
        What::Verify { nsid, bytes, count, .. } => {
            let namespace = find(nsid)?;
            for opcode in [opcode::WRITE, opcode::READ] {
                let began = Instant::now();
                let most = host.in_capsule();
                verify(host.io()?, &namespace, opcode, bytes, count, most)?;
                let rate = count as f64 / began.elapsed().as_secs_f64();
                let name = if opcode == opcode::READ { "reads" } else { "writes" };
                println!("{count} {name} of {bytes} bytes: {rate:.0} in a second");
            }
        }
    }
    Ok(host.shut_down()?)
}

/// The contents of a place, which no other place has.
fn pattern(place: u64, len: usize) -> Vec<u8> {
    let words = (0..).map(|n: u64| (place << 20 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).take(len).collect()
}

/// Writes places of a namespace, or reads and compares them. Capsules carry at most `in_capsule`
/// bytes.
fn verify(
    queue: &mut Queue,
    namespace: &NamespaceInfo,
    opcode: u8,
    len: usize,
    count: u64,
    in_capsule: usize,
) -> Outcome {
    let block = namespace.block as usize;
    if len == 0 || !len.is_multiple_of(block) || len > 128 << 10 {
        return Err(
            format!("a command must have a multiple of {block} bytes, at most 128 KiB").into()
        );
    }
    let blocks = (len / block) as u16;
    let places = namespace.blocks / u64::from(blocks);
    if places == 0 {
        return Err("the namespace is shorter than a command".into());
    }
    // A step that shares no divisor with the number of places goes through all of them.
    let step = (0x9e37_79b9 % places..).find(|step| gcd(*step, places) == 1).unwrap_or(1);
    let place = |n: u64| (u128::from(n) * u128::from(step) % u128::from(places)) as u64;
    let mut under_way = vec![0; usize::from(queue.depth())];
    let (mut sent, mut done, count) = (0, 0, count.min(places));
    let mut seen = vec![0; len];
    while done < count {
        while sent < count && queue.busy() + 1 < usize::from(queue.depth()) {
            let at = place(sent);
            let bytes = if opcode == opcode::WRITE { pattern(at, len) } else { Vec::new() };
            let data = match opcode {
                opcode::READ => Data::In { len, invalidate: true },
                _ if len <= in_capsule => Data::Capsule(&bytes),
                _ => Data::Out { bytes: &bytes, invalidate: true },
            };
            let slba = at * u64::from(blocks);
            let command = Command::io(opcode, namespace.nsid, slba, blocks);
            let cid = queue.submit(&command, data)?.ok_or("the queue is full")?;
            under_way[usize::from(cid)] = at;
            sent += 1;
        }
        let (cid, answer) = queue.wait()?;
        let (status, result) = (answer.completion.status(), answer.completion.result.get());
        if status != Status::SUCCESS {
            return Err(HostError::Status { status, result }.into());
        }
        let at = under_way[usize::from(cid)];
        if opcode == opcode::READ {
            queue.take(cid, &mut seen)?;
            if seen != pattern(at, len) {
                return Err(format!("block {} has wrong bytes", at * u64::from(blocks)).into());
            }
        }
        done += 1;
    }
    Ok(())
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

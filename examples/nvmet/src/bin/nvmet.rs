//! The target: `nvmet --listen 0.0.0.0:4420 disk.img`.
//!
//! Lines of standard input change it while it serves: `add PATH`, `remove NSID`, `revalidate NSID`
//! after the file's length changed, `queues COUNT` for the I/O queues of a host, and `unplug`, by
//! which the memory's provider leaves.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use nvmet::target::Target;
use nvmet::target::subsystem::{Namespace, Subsystem};
use orchestrator::Published;
use providers::{Kind, Machine};
use tracing_subscriber::EnvFilter;
use verbs::Context;
use verbs::soft::{self, NicConfig};

/// Serves files and block devices to NVMe over Fabrics hosts over RDMA.
#[derive(Debug, Parser)]
struct Options {
    /// Where to listen; with 0.0.0.0, at all addresses of the NIC.
    #[arg(long, default_value = "0.0.0.0:4420")]
    listen: SocketAddr,
    /// The name of the subsystem.
    #[arg(long, default_value = "nqn.2014-08.org.nvmexpress:peerdma:files")]
    nqn: String,
    /// A host that may connect, by its name; may be repeated. All, if there is none.
    #[arg(long = "host", value_name = "NQN")]
    hosts: Vec<String>,
    /// The UUID of a namespace, in the order of the namespaces; may be repeated. Those without one
    /// have one that is made of the names of the subsystem and the file.
    #[arg(long = "uuid", value_name = "UUID", value_parser = uuid)]
    uuids: Vec<[u8; 16]>,
    /// The kind of memory that data pass through.
    #[arg(long, default_value_t, value_name = "system|cmb|gpu|nic")]
    memory: Kind,
    /// The netdev of the NIC; that of the default route if none is named.
    #[arg(long)]
    netdev: Option<String>,
    /// Pieces of 128 KiB of that memory.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=256))]
    pieces: u32,
    /// Ends after this many seconds, rather than at the end of standard input, and does not read
    /// that.
    #[arg(long)]
    seconds: Option<u64>,
    /// What to log to standard error: `nvmet=debug` names each command that fails.
    #[arg(long, default_value = "nvmet=warn", value_name = "FILTER")]
    log: EnvFilter,
    /// The namespaces: 1, 2, and so on.
    #[arg(required = true)]
    namespaces: Vec<PathBuf>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let log = tracing_subscriber::fmt().with_env_filter(options.log).with_writer(std::io::stderr);
    log.with_ansi(std::io::stderr().is_terminal()).init();
    let namespaces = options.namespaces.iter().map(Namespace::open);
    let mut namespaces: Vec<Namespace> = namespaces.collect::<Result<_, _>>()?;
    if options.uuids.len() > namespaces.len() {
        return Err("there are more UUIDs than namespaces".into());
    }
    for (namespace, uuid) in namespaces.iter_mut().zip(options.uuids) {
        *namespace = namespace.clone().with_uuid(uuid);
    }
    let mut subsystem = Subsystem::new(&options.nqn, namespaces);
    if !options.hosts.is_empty() {
        subsystem = subsystem.for_hosts(options.hosts);
    }
    let machine = Machine::new();
    let config = NicConfig { netdev: options.netdev, ..machine.nic() };
    let context = soft::device(config)?.open()?;
    let mut published = machine.publish(options.memory, &context)?;
    let pieces = options.pieces;
    let target = Target::start(&machine, &context, options.listen, subsystem, pieces)?;
    println!("{}, data through {}", options.nqn, target.memory().provider());
    for address in addresses(&context, target.addr()) {
        println!("  at {address}");
    }
    match options.seconds {
        Some(seconds) => {
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(seconds) {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        // The user ends it with Ctrl-D.
        None => {
            for line in std::io::stdin().lock().lines() {
                match obey(&line?, &target, &mut published) {
                    Ok(done) => println!("{done}"),
                    Err(why) => eprintln!("{why}"),
                }
            }
        }
    }
    print!("{}", target.report());
    Ok(())
}

/// Does what a line of standard input asks for.
fn obey(
    line: &str,
    target: &Target,
    published: &mut Option<Published>,
) -> Result<String, Box<dyn std::error::Error>> {
    let (word, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    match word {
        "add" => match target.add_namespace(Namespace::open(rest)?) {
            Some(nsid) => Ok(format!("{rest} is namespace {nsid}")),
            None => Err("there are too many namespaces".into()),
        },
        "remove" if target.remove_namespace(rest.parse()?) => Ok(format!("no namespace {rest}")),
        "remove" => Err(format!("there is no namespace {rest}").into()),
        "revalidate" => match target.revalidate(rest.parse()?)? {
            true => Ok(format!("namespace {rest} has another size")),
            false => Ok(format!("namespace {rest} is as it was")),
        },
        "queues" => {
            target.set_queues(rest.parse()?);
            Ok(format!("at most {rest} queues; hosts have to connect again"))
        }
        "unplug" => match published.take() {
            Some(provider) => {
                provider.remove("it was unplugged");
                Ok("the provider left".to_owned())
            }
            None => Err("data pass through the host's memory, which stays".into()),
        },
        _ => Err(format!("{line:?} is none of add, remove, revalidate, queues and unplug").into()),
    }
}

/// A UUID as it is written: 32 hexadecimal digits, in groups.
fn uuid(text: &str) -> Result<[u8; 16], String> {
    let groups: Vec<&str> = text.split('-').collect();
    let digits = groups.concat();
    let is_uuid = groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]);
    let value = u128::from_str_radix(&digits, 16).ok().filter(|_| is_uuid);
    let value = value.filter(|_| !digits.starts_with('+'));
    value.map(u128::to_be_bytes).ok_or(format!("{text:?} is not a UUID"))
}

/// The addresses at which hosts find a target that listens at `addr`.
fn addresses(context: &Context, addr: SocketAddr) -> BTreeSet<SocketAddr> {
    if !addr.ip().is_unspecified() {
        return [addr].into();
    }
    let gids = context.gids().into_iter();
    gids.map(|entry| SocketAddr::new(entry.gid.to_ip(), addr.port())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_its_digits_in_groups() {
        let bytes = uuid("91fdba0d-f87b-4c25-b80f-db7be1418b9e").expect("it is one");
        assert_eq!(bytes[..6], [0x91, 0xfd, 0xba, 0x0d, 0xf8, 0x7b]);
        for no in ["", "91fdba0df87b4c25b80fdb7be1418b9e", "+1fdba0d-f87b-4c25-b80f-db7be1418b9e"] {
            assert!(uuid(no).is_err(), "{no}");
        }
    }
}

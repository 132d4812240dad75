//! How fast a bare UDP stream is: the upper bound for RoCEv2 over the same sockets.
//!
//! ```text
//! udp_stream [OPTIONS]              both ends in this process, over loopback
//! udp_stream recv [OPTIONS]         receive until nothing came for a while
//! udp_stream send ADDRESS [OPTIONS] send to another host or namespace
//!
//!   --segment BYTES   UDP payload of each datagram (4096)
//!   --train N         datagrams in one call (as many as the kernel splits)
//!   --seconds S       how long to send (2)
//!   --port N          UDP port (4791)
//!   --no-gso          send datagram by datagram
//!   --no-gro          receive datagram by datagram
//! ```
//!
//! There is no flow control: the figure that counts is the received bytes; the loss shows how much
//! faster the sender was.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::{Duration, Instant};

use link::udp::{Options, SendError, Transmit, UdpLink};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The receiver considers the stream finished after this time without a datagram.
const QUIET: Duration = Duration::from_millis(500);

struct Args {
    role: Option<String>,
    to: IpAddr,
    segment: usize,
    train: usize,
    seconds: f64,
    port: u16,
    options: Options,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = parse(std::env::args().skip(1))?;
    match args.role.as_deref() {
        Some("recv") => receive(UdpLink::bind(args.port, args.options)?, Duration::from_secs(60)),
        Some("send") => send(&args),
        _ => thread::scope(|scope| {
            let link = UdpLink::bind(args.port, args.options)?;
            let receiver = scope.spawn(|| receive(link, QUIET).map_err(|e| e.to_string()));
            send(&args)?;
            Ok(receiver.join().expect("the receiver does not panic")?)
        }),
    }
}

fn send(args: &Args) -> Result<(), Box<dyn Error>> {
    let link = UdpLink::send_only(args.port, args.options)?;
    let train = match args.train {
        0 => link.max_gso_segments(args.segment),
        train => train,
    };
    let contents = vec![0x5a; args.segment * train];
    let src: IpAddr = match args.to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let (mut bytes, mut calls, mut blocked) = (0u64, 0u64, 0u64);
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < args.seconds {
        // Reading the clock for every call would distort the figures of short trains.
        for _ in 0..16 {
            let mut rest = &contents[..];
            while !rest.is_empty() {
                calls += 1;
                let transmit = Transmit {
                    dst: args.to,
                    src,
                    traffic_class: 0,
                    hop_limit: 0,
                    contents: rest,
                    segment_size: Some(args.segment),
                };
                match link.send(transmit) {
                    Ok(()) => rest = &[],
                    Err(SendError::NotSplit { sent }) => rest = &rest[sent..],
                    Err(SendError::WouldBlock { sent }) => {
                        rest = &rest[sent..];
                        blocked += 1;
                        wait(link.fds(), PollFlags::OUT, QUIET)?;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            bytes += contents.len() as u64;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "sent      {:8.2} Gbit/s  {:9.0} datagrams/s  {train} per call  {calls} calls  {blocked} waits",
        bytes as f64 * 8e-9 / seconds,
        bytes as f64 / args.segment as f64 / seconds,
    );
    println!("sent      {} datagrams", bytes / args.segment as u64);
    Ok(())
}

/// Receives from the first datagram, for which it waits `patience`, to the last.
fn receive(mut link: UdpLink, patience: Duration) -> Result<(), Box<dyn Error>> {
    let (mut bytes, mut datagrams, mut calls) = (0u64, 0u64, 0u64);
    let mut first = None;
    let mut last = Instant::now();
    loop {
        let count = link.recv(&mut |datagram| bytes += datagram.bytes.len() as u64)?;
        if count == 0 {
            let patience = if first.is_some() { QUIET } else { patience };
            if !wait(link.fds(), PollFlags::IN, patience)? {
                break;
            }
            continue;
        }
        calls += 1;
        datagrams += count as u64;
        last = Instant::now();
        first.get_or_insert(last);
    }
    let seconds = last.duration_since(first.ok_or("nothing was received")?).as_secs_f64();
    println!(
        "received  {:8.2} Gbit/s  {:9.0} datagrams/s  {:.1} per call",
        bytes as f64 * 8e-9 / seconds,
        datagrams as f64 / seconds,
        datagrams as f64 / calls as f64,
    );
    println!("received  {datagrams} datagrams");
    Ok(())
}

/// Waits until one of `fds` is ready; false if none is ready in time.
fn wait<'a>(
    fds: impl Iterator<Item = std::os::fd::BorrowedFd<'a>>,
    flags: PollFlags,
    patience: Duration,
) -> Result<bool, Box<dyn Error>> {
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, flags)).collect();
    Ok(poll(&mut fds, Some(&Timespec::try_from(patience)?))? > 0)
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, Box<dyn Error>> {
    let mut args = Args {
        role: None,
        to: Ipv4Addr::LOCALHOST.into(),
        segment: 4096,
        train: 0,
        seconds: 2.0,
        port: link::udp::PORT,
        options: Options::default(),
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} wants a value"));
        match word.as_str() {
            "send" => {
                args.to = value()?.parse()?;
                args.role = Some(word);
            }
            "recv" => args.role = Some(word),
            "--segment" => args.segment = value()?.parse::<usize>()?.clamp(1, 65_507),
            "--train" => args.train = value()?.parse()?,
            "--seconds" => args.seconds = value()?.parse()?,
            "--port" => args.port = value()?.parse()?,
            "--no-gso" => args.options.gso = false,
            "--no-gro" => args.options.gro = false,
            _ => return Err(format!("{word}? See the head of examples/udp_stream.rs").into()),
        }
    }
    Ok(args)
}

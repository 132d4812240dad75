//! A bare UDP ping-pong: one datagram each way at a time, and both sides poll.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::{hear, say};
use crate::Outcome;
use crate::benches::latency::{BATCH, WARM_UP};
use crate::sample::Sample;

/// After this time, no answer will come.
const PATIENCE: Duration = Duration::from_secs(10);
/// Polls between two clock reads.
const POLLS: u32 = 1 << 12;

/// Echoes this many datagrams.
pub(super) fn echo(port: u16, rounds: u64) -> Outcome<()> {
    let socket = bind(Ipv4Addr::UNSPECIFIED.into(), port)?;
    say("")?;
    let mut bytes = [0; 2048];
    for _ in 0..rounds + WARM_UP {
        let (length, from) = receive(&socket, &mut bytes)?;
        socket.send_to(&bytes[..length], from)?;
    }
    while hear()?.is_some() {}
    Ok(())
}

/// Sends datagrams of this many bytes, each after the answer to the one before; reports the median
/// of half a round in microseconds.
pub(super) fn ping(to: IpAddr, port: u16, length: usize, rounds: u64) -> Outcome<()> {
    let any =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = bind(any, 0)?;
    let (to, ping, mut pong) = (SocketAddr::new(to, port), vec![0x5a; length], [0; 2048]);
    let mut once = || -> Outcome<()> {
        socket.send_to(&ping, to)?;
        let (got, _) = receive(&socket, &mut pong)?;
        if got == length { Ok(()) } else { Err(format!("{got} bytes came back").into()) }
    };
    for _ in 0..WARM_UP {
        once()?;
    }
    let mut batches = Sample::default();
    for _ in 0..rounds / BATCH {
        let start = Instant::now();
        for _ in 0..BATCH {
            once()?;
        }
        batches.push(start.elapsed().as_secs_f64() * 1e6 / BATCH as f64 / 2.0);
    }
    say(&batches.median().to_string())
}

fn bind(address: IpAddr, port: u16) -> Outcome<UdpSocket> {
    let socket = UdpSocket::bind((address, port))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> Outcome<(usize, SocketAddr)> {
    let mut since = None;
    for polls in 1u32.. {
        match socket.recv_from(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            received => return Ok(received?),
        }
        if polls.is_multiple_of(POLLS)
            && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
        {
            break;
        }
    }
    Err("the other side does not answer".into())
}

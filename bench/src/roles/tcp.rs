//! The passive end of TCP connections, and a ping-pong.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use super::{hear, say};
use crate::Outcome;
use crate::sample::Sample;

/// Reports where it listens, and again when it has accepted this many connections.
pub(super) fn listener(connections: usize) -> Outcome<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // If there were more than the backlog holds, the kernel would drop some (SYN cookies), and no
    // client would retry.
    rustix::net::listen(&listener, i32::try_from(connections)?)?;
    say(&listener.local_addr()?.to_string())?;
    let mut taken = Vec::with_capacity(connections);
    while taken.len() < connections {
        taken.push(listener.accept()?);
    }
    say("")?;
    while hear()?.is_some() {}
    Ok(())
}

/// Reports where it listens, and again when it has sent back this many messages of eight bytes of
/// each of this many connections, one connection after the other.
pub(super) fn echo(connections: usize, messages: usize) -> Outcome<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.local_addr()?.port()));
    say(&here.to_string())?;
    let mut taken = Vec::with_capacity(connections);
    for _ in 0..connections {
        let (mut socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        for _ in 0..messages {
            let mut bytes = [0; 8];
            socket.read_exact(&mut bytes)?;
            socket.write_all(&bytes)?;
        }
        taken.push(socket);
    }
    say("")?;
    while hear()?.is_some() {}
    Ok(())
}

/// Sends eight bytes to an [`echo`] and waits for them, this many times; reports the 99.9th
/// percentile of half a round in microseconds.
pub(super) fn ping(to: SocketAddr, rounds: usize) -> Outcome<()> {
    let mut socket = TcpStream::connect(to)?;
    socket.set_nodelay(true)?;
    let halves = (0..rounds)
        .map(|round| {
            let began = Instant::now();
            socket.write_all(&round.to_ne_bytes())?;
            socket.read_exact(&mut [0; 8])?;
            Ok(began.elapsed().as_secs_f64() * 1e6 / 2.0)
        })
        .collect::<Outcome<Sample>>()?;
    say(&halves.percentile(99.9).to_string())?;
    while hear()?.is_some() {}
    Ok(())
}

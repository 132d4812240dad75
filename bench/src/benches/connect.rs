//! Connections per second: `cmtime` compared with TCP, many in progress at once.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::in_turns;
use crate::Outcome;
use crate::child::{Program, Role, free_port, peerdma};
use crate::report::{Report, Row, Target};

const CONNECT: &str = "connect";
/// Connections at once. Each takes two descriptors of a side of `cmtime`, and a shell's limit is
/// often 1024.
const CONNECTIONS: usize = 400;
/// How often to check for the server, and the longest time between two checks.
const LOOK: Duration = Duration::from_millis(50);
/// How long the server may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let (ours, theirs) = in_turns(CONNECT, reps, report, cmtime, tcp)?;
    report.row(Row {
        bench: CONNECT,
        what: format!("cmtime, {CONNECTIONS} connections at once"),
        ours: ours.into(),
        beside: "TCP connections".to_owned(),
        theirs: theirs.into(),
        unit: "1000/s",
        target: Target::None,
    });
    Ok(())
}

/// Thousands of connections per second, by the step "connect" of `cmtime`: from the first request
/// to the last event. In this time its server makes a QP with two CQs and two channels for each.
fn cmtime() -> Outcome<f64> {
    let number = free_port()?;
    let port = number.to_string();
    let peerdma = peerdma()?.to_string_lossy().into_owned();
    let words = [peerdma.as_str(), "run", "--", "cmtime", "-p", &port];
    let _server = Program::start(&[], &[], &words)?;
    let count = CONNECTIONS.to_string();
    let client = [&words[..], &["-s", "127.0.0.1", "-c", &count]].concat();
    let began = Instant::now();
    // The server serves one client: it would offer the next client the queues of the first. So no
    // client probes whether it listens.
    let name = format!("/cm/106{number:04x}@4");
    while !String::from_utf8_lossy(&std::fs::read("/proc/net/unix")?).contains(&name) {
        if began.elapsed() > PATIENCE {
            return Err("the server of cmtime does not listen".into());
        }
        std::thread::sleep(LOOK);
    }
    std::thread::sleep(LOOK);
    let text = Program::start(&[], &[], &client)?.finish()?;
    if text.contains("error") {
        return Err("cmtime did not make all its connections".into());
    }
    // Step, total in ms, longest in ms, shortest in us, us per connection.
    let line =
        text.lines().find(|line| line.starts_with("connect ")).ok_or("no step \"connect\"")?;
    let each: f64 = line.split_whitespace().last().ok_or("an empty line")?.parse()?;
    Ok(1e3 / each)
}

/// The same for TCP: from the first request until the last connection is established at both ends.
fn tcp() -> Outcome<f64> {
    let (mut listener, words) = Role::start(&[], "tcp-listener", &[CONNECTIONS.to_string()])?;
    let to: SocketAddr = words.get(0)?;
    let began = Instant::now();
    let mut sockets = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        match connect(&socket, &to) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => sockets.push(socket),
            Err(error) => return Err(error.into()),
        }
    }
    for socket in &sockets {
        poll(&mut [PollFd::new(socket, PollFlags::OUT)], None)?;
        sockopt::socket_error(socket)??;
    }
    listener.answer()?;
    let took = began.elapsed();
    let streams: Vec<_> = sockets.into_iter().map(TcpStream::from).collect();
    drop(streams);
    Ok(CONNECTIONS as f64 / took.as_secs_f64() / 1e3)
}

//! Connections: `cmtime` compared with TCP, many in progress at once; ten thousand between two
//! processes; and the first message of each.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::in_turns;
use crate::Outcome;
use crate::child::{Program, Role, free_port, peerdma};
use crate::report::{Report, Row, Target};
use crate::sample::Sample;

const CONNECT: &str = "connect";
/// Connections at once. Each takes two descriptors of a side of `cmtime`, and a shell's limit is
/// often 1024.
const CONNECTIONS: usize = 400;
/// Connections of one pair of processes, and fewer, to compare what each costs.
const MANY: usize = 10_000;
const FEW: usize = 1000;
/// Connections, one after the other, and messages on each.
const IN_TURN: usize = 200;
const MESSAGES: usize = 20;
/// How often to check for the server, and the longest time between two checks.
const LOOK: Duration = Duration::from_millis(50);
/// How long the server may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let (ours, theirs) = in_turns(CONNECT, reps, report, cmtime, || tcp(CONNECTIONS))?;
    report.row(Row {
        bench: CONNECT,
        what: format!("cmtime, {CONNECTIONS} connections at once"),
        ours: ours.into(),
        beside: "TCP connections".to_owned(),
        theirs: theirs.into(),
        unit: "1000/s",
        target: Target::AtLeast(1.0),
    });
    many(reps, report)?;
    first(reps, report)
}

/// Ten thousand connections of two processes, at once: how long they take, and their memory.
fn many(reps: u32, report: &mut Report) -> Outcome<()> {
    let ours = || Ok((pair(MANY)?, pair(FEW)?));
    let (ours, theirs) = in_turns(CONNECT, reps, report, ours, || tcp(MANY))?;
    let per_second = |of: fn(&(Pair, Pair)) -> &Pair| -> Sample {
        ours.iter().map(of).map(|pair| pair.per_second).collect()
    };
    let size = |of: fn(&(Pair, Pair)) -> &Pair| -> Sample {
        ours.iter().map(of).map(|pair| pair.kib).collect()
    };
    let mut row = |what: String, ours, beside: String, theirs, unit, target| {
        report.row(Row { bench: CONNECT, what, ours, beside, theirs, unit, target });
    };
    let at_once = format!("{MANY} connections at once");
    row(
        at_once.clone(),
        per_second(|both| &both.0),
        format!("{MANY} of TCP"),
        theirs.into(),
        "1000/s",
        Target::None,
    );
    row(
        at_once,
        per_second(|both| &both.0),
        format!("{FEW} of them"),
        per_second(|both| &both.1),
        "1000/s",
        Target::AtLeast(0.67),
    );
    row(
        format!("each of {MANY}, both sides"),
        size(|both| &both.0),
        format!("each of {FEW}"),
        size(|both| &both.1),
        "KiB",
        Target::AtMost(1.5),
    );
    Ok(())
}

/// The first message after a connection is established, compared with later ones.
fn first(reps: u32, report: &mut Report) -> Outcome<()> {
    let (ours, theirs) = in_turns(CONNECT, reps, report, first_message, first_bytes)?;
    let column =
        |of: &[Times], which: fn(&Times) -> f64| -> Sample { of.iter().map(which).collect() };
    let mut row = |what: &str, ours, beside: &str, theirs, target| {
        report.row(Row {
            bench: CONNECT,
            what: what.to_owned(),
            ours,
            beside: beside.to_owned(),
            theirs,
            unit: "us",
            target,
        });
    };
    let (ours_first, theirs_first) =
        (column(&ours, |times| times.first), column(&theirs, |times| times.first));
    row(
        "first message and its answer",
        ours_first.clone(),
        "TCP's first",
        theirs_first.clone(),
        Target::AtMost(1.0),
    );
    let later = column(&ours, |times| times.later);
    row("first message and its answer", ours_first, "later ones", later, Target::None);
    let later = column(&theirs, |times| times.later);
    row("TCP's first", theirs_first, "later ones", later, Target::None);
    Ok(())
}

/// Two processes with connections at once.
struct Pair {
    /// In thousands.
    per_second: f64,
    /// Of each connection, both sides together.
    kib: f64,
}

fn pair(count: usize) -> Outcome<Pair> {
    let (mut acceptor, at) = Role::start(&[], "acceptor", &[])?;
    let (mut connector, _) = Role::start(&[], "connector", &[])?;
    let at: SocketAddr = at.get(0)?;
    acceptor.tell(&format!("accept {count}"))?;
    let words = connector.ask(&format!("connect {at} {count}"))?;
    let (took, own): (f64, f64) = (words.get(0)?, words.get(1)?);
    let peers: f64 = acceptor.answer()?.get(0)?;
    Ok(Pair { per_second: count as f64 / took / 1e3, kib: (own + peers) / count as f64 })
}

/// Microseconds of a message and its answer.
struct Times {
    first: f64,
    later: f64,
}

fn first_message() -> Outcome<Times> {
    let (mut acceptor, at) = Role::start(&[], "acceptor", &[])?;
    let (mut connector, _) = Role::start(&[], "connector", &[])?;
    let at: SocketAddr = at.get(0)?;
    acceptor.tell(&format!("echo {IN_TURN} {MESSAGES}"))?;
    let words = connector.ask(&format!("first {at} {IN_TURN} {MESSAGES}"))?;
    acceptor.answer()?;
    Ok(Times { first: words.get(0)?, later: words.get(1)? })
}

/// The same for eight bytes of TCP.
fn first_bytes() -> Outcome<Times> {
    let args = [IN_TURN, MESSAGES].map(|count| count.to_string());
    let (mut echo, words) = Role::start(&[], "tcp-echo", &args)?;
    let to: SocketAddr = words.get(0)?;
    let (mut first, mut later) = (Sample::default(), Sample::default());
    let mut live = Vec::with_capacity(IN_TURN);
    for _ in 0..IN_TURN {
        let mut socket = TcpStream::connect(to)?;
        socket.set_nodelay(true)?;
        for message in 0..MESSAGES {
            let began = Instant::now();
            socket.write_all(&message.to_ne_bytes())?;
            socket.read_exact(&mut [0; 8])?;
            let took = began.elapsed().as_secs_f64() * 1e6;
            if message == 0 { &mut first } else { &mut later }.push(took);
        }
        live.push(socket);
    }
    echo.answer()?;
    Ok(Times { first: first.median(), later: later.median() })
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
fn tcp(count: usize) -> Outcome<f64> {
    let (mut listener, words) = Role::start(&[], "tcp-listener", &[count.to_string()])?;
    let to: SocketAddr = words.get(0)?;
    let began = Instant::now();
    let mut sockets = Vec::with_capacity(count);
    for _ in 0..count {
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
    Ok(count as f64 / took.as_secs_f64() / 1e3)
}

//! The roles of this program as a child of itself: a role prints `ok` and some words, and then
//! answers lines until there are no more.

mod bare;
mod connections;
mod counters;
mod cuda;
mod echo;
mod level_zero;
mod node;
mod owner;
mod post;
mod tcp;
mod udp;
mod udp_ping;

pub(crate) use bare::cell_pair;

use std::ffi::{CStr, c_void};
use std::io::{BufRead, Write};
use std::time::Instant;

use crate::Outcome;

/// Runs the role that `words` name.
pub(crate) fn run(words: &[String]) -> Outcome<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["busy"] => busy(),
        ["acceptor"] => connections::acceptor(),
        ["connector"] => connections::connector(),
        ["memory", length] => bare::memory(length.parse()?),
        ["cells", path, rounds] => bare::cells(path, rounds.parse()?),
        ["pages"] => bare::pages(),
        ["counters"] => counters::run(),
        ["cuda"] => cuda::run(),
        ["echo"] => echo::run(),
        ["level-zero"] => level_zero::run(),
        ["node", qps] => node::run(qps.parse()?),
        ["owner", kind, length] => owner::run(kind, length.parse()?),
        ["post", rounds] => post::run(rounds.parse()?),
        ["target", length] => node::target(length.parse()?),
        ["tcp-echo", connections, messages] => tcp::echo(connections.parse()?, messages.parse()?),
        ["tcp-ping", to, rounds] => tcp::ping(to.parse()?, rounds.parse()?),
        ["tcp-listener", connections] => tcp::listener(connections.parse()?),
        ["udp-echo", port, rounds] => udp_ping::echo(port.parse()?, rounds.parse()?),
        ["udp-ping", to, port, length, rounds] => {
            udp_ping::ping(to.parse()?, port.parse()?, length.parse()?, rounds.parse()?)
        }
        ["udp-receiver", port] => udp::receiver(port.parse()?),
        ["udp-sender", to, port, segment, seconds] => {
            udp::sender(to.parse()?, port.parse()?, segment.parse()?, seconds.parse()?)
        }
        _ => Err(format!("there is no role {words:?}").into()),
    }
}

/// Keeps a processor busy until its standard input ends.
fn busy() -> Outcome<()> {
    say("")?;
    std::thread::spawn(|| {
        loop {
            std::hint::black_box(0);
        }
    });
    while hear()?.is_some() {}
    Ok(())
}

/// Bytes of a large copy.
const LARGE: usize = 64 << 20;

/// The speed of a copy of this many bytes, in MiB/s.
fn large(mut copy: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    copy()?;
    let start = Instant::now();
    for _ in 0..4 {
        copy()?;
    }
    Ok(4.0 * (LARGE >> 20) as f64 / start.elapsed().as_secs_f64())
}

/// A function of a library, with the type from the header.
#[allow(unsafe_code, reason = "the functions are C's")]
fn find<T: Copy>(library: *mut c_void, name: &CStr) -> Outcome<T> {
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    // SAFETY: an open library and a terminated name.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("the library has no {name:?}").into());
    }
    // SAFETY: a function, with the type from the header.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}

fn say(words: &str) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ok {words}")?;
    Ok(out.flush()?)
}

/// The next line, or `None` when this role has done its part.
fn hear() -> Outcome<Option<Vec<String>>> {
    let mut line = String::new();
    let length = std::io::stdin().lock().read_line(&mut line)?;
    Ok((length > 0).then(|| line.split_whitespace().map(str::to_owned).collect()))
}

//! What this program does as a child of itself: it says `ok` and some words, and then answers lines until there are none.

mod bare;
mod cuda;
mod node;
mod owner;
mod tcp;
mod udp;
mod udp_ping;

pub(crate) use bare::cell_pair;

use std::io::{BufRead, Write};

use crate::Outcome;

/// Runs the role that `words` name.
pub(crate) fn run(words: &[String]) -> Outcome<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["memory", length] => bare::memory(length.parse()?),
        ["cells", path, rounds] => bare::cells(path, rounds.parse()?),
        ["pages"] => bare::pages(),
        ["cuda"] => cuda::run(),
        ["node", qps] => node::run(qps.parse()?),
        ["owner", kind, length] => owner::run(kind, length.parse()?),
        ["target", length] => node::target(length.parse()?),
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

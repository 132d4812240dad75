//! `peerdma top`: the processes of the NICs, their objects, how fast and by which path they send,
//! what they lost, and the GPUs.

#[cfg(test)]
mod example;
mod json;
mod sample;
mod table;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use self::sample::{Rates, Sample};
use super::outcome::Outcome;

/// What `peerdma top` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one report and end, instead of one after the other
    #[arg(long)]
    once: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Measure rates over this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
}

/// Clears a terminal and begins in its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(crate) fn main(args: Args) -> ExitCode {
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peerdma top: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Outcome<()> {
    let nics = device::nics()?;
    let nics: Vec<String> = nics.into_iter().map(|nic| nic.config.name).collect();
    let mut out = std::io::stdout();
    let is_screen = out.is_terminal() && !args.json && !args.once;
    let mut before = Sample::take(&nics)?;
    loop {
        std::thread::sleep(Duration::from_secs_f64(args.interval));
        let now = Sample::take(&nics)?;
        let rates = Rates::between(&before, &now);
        let text = if args.json {
            format!("{}\n", json::of(&now, &rates))
        } else {
            table::of(&now, &rates)
        };
        let begin = if is_screen { CLEAR } else { "" };
        match write!(out, "{begin}{text}").and_then(|()| out.flush()) {
            // The reader has seen enough, as `head` has.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            done => done?,
        }
        if args.once {
            return Ok(());
        }
        before = now;
    }
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "no number of seconds".to_owned())?;
    let is_good = (0.01..=3600.0).contains(&seconds);
    is_good.then_some(seconds).ok_or_else(|| "0.01 to 3600 seconds are possible".to_owned())
}

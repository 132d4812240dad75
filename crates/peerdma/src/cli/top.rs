//! `peerdma top`: the processes of the NICs, their objects, how fast and by which path they send,
//! what they lost, and the GPUs.

mod cell;
mod draw;
#[cfg(test)]
mod example;
mod json;
mod pane;
mod sample;
mod screen;
mod table;
mod terminal;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use self::sample::{Rates, Sample};
use super::outcome::Outcome;
use super::tty::is_dumb;

/// What `peerdma top` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one report and end, as is done where standard input or output is no terminal
    #[arg(long)]
    once: bool,
    /// Print JSON, one object a line, without end unless --once is there
    #[arg(long)]
    json: bool,
    /// Measure rates over this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
}

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
    let interval = Duration::from_secs_f64(args.interval);
    let mut out = std::io::stdout();
    let is_terminal = std::io::stdin().is_terminal() && out.is_terminal() && !is_dumb();
    if is_terminal && !args.json && !args.once {
        return terminal::run(nics, interval);
    }
    let mut before = Sample::take(&nics)?;
    loop {
        std::thread::sleep(interval);
        let now = Sample::take(&nics)?;
        let rates = Rates::between(&before, &now);
        let text = if args.json {
            format!("{}\n", json::of(&now, &rates))
        } else {
            table::of(&now, &rates)
        };
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // The reader has seen enough, as `head` has.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            done => done?,
        }
        if args.once || !args.json {
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

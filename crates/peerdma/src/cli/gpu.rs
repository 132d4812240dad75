//! `peerdma gpu`: the software GPUs of this user's running programs, and commands for them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use ::gpu::{ByHand, GpuView, Member};
use clap::{Subcommand, ValueEnum};

/// What `peerdma gpu` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    act: Option<Act>,
    /// Act only in this process
    #[arg(long, global = true, value_name = "PID")]
    pid: Option<u32>,
}

#[derive(Subcommand)]
enum Act {
    /// Move buffers out of VRAM, as if another buffer needed the space
    Evict {
        /// The GPU; all GPUs if none is named
        gpu: Option<String>,
        /// The buffer, by its name (nvidia0.bo3) or number (3); all buffers if none is named
        buffer: Option<String>,
    },
    /// Move a buffer to VRAM or to GTT
    Move {
        /// The GPU
        gpu: String,
        /// The buffer, by its name or number
        buffer: String,
        /// Where to
        to: Domain,
    },
    /// Reset a GPU in all processes that have it: importers that can release its buffers lose them,
    /// and the contents of VRAM are lost
    Reset {
        /// The GPU
        gpu: String,
    },
    /// Unplug a GPU, for the processes that have it now
    Unplug {
        /// The GPU
        gpu: String,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Domain {
    Vram,
    Gtt,
}

pub(crate) fn main(args: Args) -> ExitCode {
    let mut members = ::gpu::survey();
    members.retain(|member| args.pid.is_none() || member.pid == args.pid);
    let Some(act) = args.act else {
        print!("{}", table(&members));
        return ExitCode::SUCCESS;
    };
    match carry_out(&act, &members) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("peerdma gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Acts in each process that has the GPU; fails if anything was refused.
fn carry_out(act: &Act, members: &[Member]) -> Result<ExitCode, String> {
    let (what, gpu, buffer) = match act {
        Act::Evict { gpu, buffer } => (ByHand::Evict, gpu.as_deref(), buffer.as_deref()),
        Act::Move { gpu, buffer, to } => {
            let what = match to {
                Domain::Vram => ByHand::MoveToVram,
                Domain::Gtt => ByHand::MoveToGtt,
            };
            (what, Some(gpu.as_str()), Some(buffer.as_str()))
        }
        Act::Reset { gpu } => (ByHand::Reset, Some(gpu.as_str()), None),
        Act::Unplug { gpu } => (ByHand::Unplug, Some(gpu.as_str()), None),
    };
    let mut having: Vec<&Member> =
        members.iter().filter(|member| gpu.is_none_or(|gpu| gpu == member.gpu)).collect();
    if having.is_empty() {
        let gpu = gpu.map(|gpu| format!(" {gpu}")).unwrap_or_default();
        return Err(format!("no process has a GPU{gpu} that it shares (see docs/WEATHER.md)"));
    }
    let number = buffer.zip(gpu).map(|(buffer, gpu)| number(gpu, buffer)).transpose()?;
    if let Some(number) = number {
        having.retain(|member| has(member, number));
        match having.as_slice() {
            [] => return Err(format!("no process has buffer {number} of that GPU")),
            [_] => {}
            many => {
                let pids: Vec<_> = many.iter().map(|member| pid_of(member)).collect();
                let pids = pids.join(", ");
                return Err(format!(
                    "several processes have a buffer {number}; choose one with --pid: {pids}"
                ));
            }
        }
    }
    let mut is_refused = false;
    for member in having {
        let who = format!("{} of {}", member.gpu, who(member));
        match member.act(what, number) {
            Ok((done, why)) => {
                println!("{who}: {done}");
                is_refused |= !why.is_empty();
                why.iter().for_each(|why| eprintln!("peerdma gpu: {who}: {why}"));
            }
            Err(error) => {
                is_refused = true;
                eprintln!("peerdma gpu: {who}: {error}");
            }
        }
    }
    Ok(if is_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The number of a buffer, as it is or as the end of its name.
fn number(gpu: &str, buffer: &str) -> Result<u64, String> {
    let digits = buffer.strip_prefix(&format!("{gpu}.bo")).unwrap_or(buffer);
    let number = digits.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| {
        format!("{buffer:?} is no buffer of {gpu}; give a number, or a name like {gpu}.bo1")
    })
}

fn has(member: &Member, number: u64) -> bool {
    let view = member.view.as_ref();
    view.is_ok_and(|view| view.buffers.iter().any(|buffer| buffer.number == number))
}

fn pid_of(member: &Member) -> String {
    member.pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string())
}

/// The process, and the name of its program as the kernel truncates it.
fn who(member: &Member) -> String {
    let pid = pid_of(member);
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match command.trim_end() {
        "" => format!("pid {pid}"),
        command => format!("pid {pid} ({})", command.escape_debug()),
    }
}

/// All GPUs, and for each the processes and their buffers.
fn table(members: &[Member]) -> String {
    let mut text = String::new();
    // Processes that share no memory (with two configurations, say) have two GPUs of one name.
    let mut gpus: BTreeMap<(&str, u64), Vec<&Member>> = BTreeMap::new();
    for member in members {
        let memory = member.view.as_ref().map_or(0, |view| view.memory);
        gpus.entry((&member.gpu, memory)).or_default().push(member);
    }
    for ((name, _), having) in &gpus {
        match having.iter().find_map(|member| member.view.as_ref().ok()) {
            Some(view) => {
                let _ = writeln!(text, "{}", heading(view));
            }
            None => {
                let _ = writeln!(text, "{name}");
            }
        }
        for member in having {
            let _ = write!(text, "  {}", who(member));
            match &member.view {
                Err(why) => {
                    let _ = writeln!(text, ": {why}");
                }
                Ok(view) => lines(&mut text, view),
            }
        }
    }
    let buffers = members.iter().filter_map(|member| member.view.as_ref().ok());
    let buffers: usize = buffers.map(|view| view.buffers.len()).sum();
    let (gpus, processes) = (gpus.len(), members.len());
    let _ = writeln!(text, "{gpus} GPUs, {buffers} buffers, opened {processes} times");
    text
}

fn heading(view: &GpuView) -> String {
    let GpuView { name, preset, vram, bar, gtt, vram_used, gtt_used, .. } = view;
    let at = if view.pci.is_empty() { String::new() } else { format!(" at {}", view.pci) };
    let part = if bar < vram { format!(", {bar} in the BAR") } else { String::new() };
    format!("{name} ({preset}){at}: VRAM {vram_used} of {vram}{part}; GTT {gtt_used} of {gtt}")
}

fn lines(text: &mut String, view: &GpuView) {
    let removed = if view.is_removed { ": removed" } else { "" };
    let _ = writeln!(text, "{removed}");
    if !view.buffers.is_empty() {
        let _ = writeln!(
            text,
            "    {:<16}  {:>14}  {:<7}  {:>14}  {:>4}  {:>5}  {:>8}  importers",
            "buffer", "size", "where", "offset", "pins", "moves", "dma-bufs"
        );
    }
    for buffer in &view.buffers {
        let name = format!("{}.bo{}", view.name, buffer.number);
        let mut importers = buffer.importers.join(", ");
        if buffer.by_address > 0 {
            let comma = if importers.is_empty() { "" } else { ", " };
            let _ = write!(importers, "{comma}{} by address", buffer.by_address);
        }
        let ::gpu::BufferView { size, place, offset, pins, moves, dma_bufs, .. } = buffer;
        let line = format!(
            "    {name:<16}  {size:>14}  {place:<7}  {offset:>14}  {pins:>4}  {moves:>5}  {dma_bufs:>8}  {importers}"
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_found_by_number_and_by_name() {
        assert_eq!(number("gpu0", "3"), Ok(3));
        assert_eq!(number("gpu0", "gpu0.bo3"), Ok(3));
        for wrong in ["gpu1.bo3", "0", "bo3", "-1", ""] {
            assert!(number("gpu0", wrong).is_err(), "{wrong}");
        }
    }
}

//! What a person at a terminal sees besides the table: how far the demo is while it works, and a
//! bar for each rate at its end. A file or a pipe gets neither.

use std::fmt::{self, Write as _};
use std::io::{IsTerminal, Write as _, stderr, stdout};

use rustix::termios::tcgetwinsize;

use super::super::tty::is_dumb;
use super::report::{OPERATIONS, Path, Report};

/// Of a terminal that does not know its width.
const COLUMNS: usize = 80;
/// Longer bars say no more.
const LONGEST: usize = 100;
/// What stands before a bar.
const BEFORE: usize = 41;

/// Removes the rest of a line.
const ERASE: &str = "\x1b[K";

/// A line on standard error that tells how far the demo is. It is gone when this is dropped.
pub(super) struct Progress {
    is_shown: bool,
    done: usize,
    all: usize,
}

impl Progress {
    /// Of so many steps.
    pub(super) fn new(all: usize) -> Self {
        Self { is_shown: stderr().is_terminal() && !is_dumb(), done: 0, all }
    }

    /// The next step begins.
    pub(super) fn step(&mut self, what: impl fmt::Display) {
        self.done += 1;
        if self.is_shown {
            let line = format!("\r{ERASE}{}/{}  {what}", self.done, self.all);
            // A terminal that went away is no reason to end.
            let _ = stderr().write_all(line.as_bytes());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown && self.done > 0 {
            let _ = stderr().write_all(format!("\r{ERASE}").as_bytes());
        }
    }
}

/// How bars look.
#[derive(Clone, Copy, Debug)]
struct Look {
    columns: usize,
    colours: bool,
    blocks: bool,
}

/// A bar for each rate of a report, if standard output is a terminal.
pub(super) fn bars(report: &Report) -> Option<String> {
    let out = stdout();
    if !out.is_terminal() {
        return None;
    }
    let size = tcgetwinsize(&out).ok().map(|size| usize::from(size.ws_col));
    let set = |name| environment::var(name).filter(|value| !value.is_empty());
    // The first that is set decides (`locale(7)`).
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    let locale = locale.unwrap_or_default().to_ascii_lowercase();
    let look = Look {
        columns: size.filter(|columns| *columns > 0).unwrap_or(COLUMNS),
        colours: set("NO_COLOR").is_none() && !is_dumb(),
        blocks: locale.contains("utf-8") || locale.contains("utf8"),
    };
    Some(draw(report, look))
}

fn draw(report: &Report, look: Look) -> String {
    let room = look.columns.saturating_sub(BEFORE + 1).clamp(8, LONGEST);
    let rates = |(.., cells): &(_, _, Vec<super::Cell>)| -> Vec<Option<f64>> {
        cells.iter().map(super::Cell::rate).collect()
    };
    let fastest = report.rows().iter().flat_map(rates).flatten().fold(f64::MIN_POSITIVE, f64::max);
    let mut text = String::from("\n");
    for (from, to, cells) in report.rows() {
        let mut pair = [from.to_string(), to.to_string()];
        for (operation, cell) in OPERATIONS.iter().zip(cells) {
            let Some(rate) = cell.rate() else { continue };
            let [from, to] = std::mem::take(&mut pair);
            let bar = bar(rate / fastest, room, look.blocks);
            let (begin, end) = if look.colours { (colour(cell.path), "\x1b[0m") } else { ("", "") };
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{from:<8} {to:<8} {operation:<10} {:>11} {begin}{bar}{end}",
                cell.to_string()
            );
        }
    }
    text
}

/// Green, cyan, yellow.
const fn colour(path: Path) -> &'static str {
    match path {
        Path::Direct => "\x1b[32m",
        Path::Ring => "\x1b[36m",
        Path::Udp => "\x1b[33m",
    }
}

/// A bar of a part of the room, in eighths of a column if there are blocks for it.
fn bar(part: f64, room: usize, blocks: bool) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    // CAST: a part of a small number.
    let eighths = (part * room as f64 * 8.0).round() as usize;
    if blocks {
        return "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
    }
    "#".repeat((eighths / 8).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_part() {
        assert_eq!(bar(1.0, 10, false), "##########");
        assert_eq!(bar(0.5, 10, true), "█████");
        assert_eq!(bar(0.55, 10, true), "█████▌");
        assert_eq!(bar(0.0, 10, true), "");
        assert_eq!(bar(0.001, 10, false), "#", "a rate is not nothing");
    }
}

//! `peerdma top` on a terminal: samples and keys come in, the screen goes out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::draw::draw;
use super::sample::Sample;
use super::screen::Screen;
use crate::cli::outcome::Outcome;

/// TIMEOUT: how late a sample is shown, or a signal ends the screen. Keys wake it at once.
const TICK: Duration = Duration::from_millis(50);

/// The terminal while it is ours; it is as it was when this is dropped.
struct Guard(DefaultTerminal);

impl Guard {
    fn take() -> io::Result<Self> {
        ratatui::try_init().map(Self)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A terminal that went away needs no restoring.
        let _ = ratatui::try_restore();
    }
}

/// Shows the screen until a key or a signal ends it.
pub(super) fn run(nics: Vec<String>, interval: Duration) -> Outcome<()> {
    let is_ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_ended))?;
    }
    let samples = samples(nics, interval)?;
    let mut terminal = Guard::take()?;
    let mut screen = Screen::default();
    let mut is_changed = true;
    while !is_ended.load(Ordering::Relaxed) {
        if std::mem::take(&mut is_changed) {
            terminal.0.draw(|frame| draw(frame, &screen))?;
        }
        if event::poll(TICK)? {
            is_changed = true;
            if let Event::Key(key) = event::read()?
                && key.is_press()
                && screen.press(key).is_break()
            {
                break;
            }
        }
        match samples.try_recv() {
            Ok(sample) => {
                screen.see(sample?);
                is_changed = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err("samples are no longer taken".into()),
        }
    }
    Ok(())
}

/// Samples, one after the other. A thread takes them, since a process that is stopped makes one
/// late, and keys are answered meanwhile. The end of the program ends it.
fn samples(nics: Vec<String>, interval: Duration) -> io::Result<Receiver<io::Result<Sample>>> {
    let (taken, samples) = channel();
    let take = move || {
        while taken.send(Sample::take(&nics)).is_ok() {
            std::thread::sleep(interval);
        }
    };
    std::thread::Builder::new().name("peerdma-top".to_owned()).spawn(take)?;
    Ok(samples)
}

//! The watchdog: a thread that makes no step for too long ends the whole run, and all threads
//! report where they are.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longer than a station waits for completions, so that its message comes first.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where one thread is.
#[derive(Debug)]
pub(crate) struct Post(Mutex<Place>);

#[derive(Debug)]
struct Place {
    since: Instant,
    step: u64,
    /// What it did last, the newest at the end.
    what: VecDeque<String>,
    is_over: bool,
}

/// Set for a thread that broke a rule.
const HISTORY: usize = 24;

impl Post {
    pub(crate) fn new() -> Arc<Self> {
        let place = Place { since: Instant::now(), step: 0, what: VecDeque::new(), is_over: false };
        Arc::new(Self(Mutex::new(place)))
    }

    pub(crate) fn say(&self, step: u64, what: impl FnOnce() -> String) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (place.step, place.since) = (step, Instant::now());
        if place.what.len() == HISTORY {
            place.what.pop_front();
        }
        place.what.push_back(what());
    }

    /// What it did last.
    pub(crate) fn history(&self) -> String {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<String> = place.what.iter().map(|line| format!("\n  {line}")).collect();
        format!("step {}:{}", place.step, lines.concat())
    }

    pub(crate) fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
    }

    fn is_stuck(&self) -> bool {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !place.is_over && place.since.elapsed() > PATIENCE
    }
}

/// Watches the threads until it is dropped.
pub(crate) struct Watchdog {
    stop: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn over(posts: Vec<Arc<Post>>) -> Self {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(Duration::from_secs(1))
                == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
            {
                if posts.iter().any(|post| post.is_stuck()) {
                    eprintln!("no step for {PATIENCE:?}: {posts:#?}");
                    std::process::abort();
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

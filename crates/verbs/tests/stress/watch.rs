//! The watchdog: whoever makes no step for long ends the whole run, and all say where they are.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longer than a station waits for completions, so that its words come first.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where one thread is.
#[derive(Debug)]
pub(crate) struct Post(Mutex<Place>);

#[derive(Debug)]
struct Place {
    since: Instant,
    step: u64,
    what: String,
    is_over: bool,
}

impl Post {
    pub(crate) fn new() -> Arc<Self> {
        let place = Place { since: Instant::now(), step: 0, what: String::new(), is_over: false };
        Arc::new(Self(Mutex::new(place)))
    }

    pub(crate) fn say(&self, step: u64, what: impl FnOnce() -> String) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (place.step, place.what, place.since) = (step, what(), Instant::now());
    }

    pub(crate) fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
    }

    fn is_stuck(&self) -> bool {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !place.is_over && place.since.elapsed() > PATIENCE
    }
}

/// Looks after the threads until it is dropped.
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

//! The GPU of either side, which keeps moving its buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use gpu::{Bo, Domain, Gpu};

/// A thread that evicts buffers and brings them back, until it is dropped.
pub(crate) struct Mover {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How long a buffer stays in one place.
const REST: Duration = Duration::from_micros(500);

impl Mover {
    pub(crate) fn start(gpu: &Gpu, bos: Vec<Bo>) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let (gpu, until) = (gpu.clone(), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                for bo in &bos {
                    // Refused only for a pinned buffer, which may stay.
                    let _ = gpu.evict(bo);
                    std::thread::sleep(REST);
                    let _ = gpu.move_to(bo, Domain::Vram);
                    std::thread::sleep(REST);
                }
            }
        });
        Self { done, thread: Some(thread) }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

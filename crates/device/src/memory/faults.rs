//! The fault thread: asks exporters in other processes where their buffers are now.
//!
//! An engine answers a packet at once or not at all; another process answers when it is scheduled.
//! So this thread asks, and the access that found the memory gone is tried again when the answer
//! has come.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::memory::import::Import;
use crate::waits::Waits;

/// The queue of the fault thread, which starts with the first question and ends with the last
/// handle.
#[derive(Debug)]
pub(crate) struct Faults {
    waits: Arc<Waits>,
    questions: Mutex<Option<Sender<Question>>>,
}

#[derive(Debug)]
enum Question {
    /// Where is it now?
    Remap(Arc<Import>),
    /// Detach from it.
    Detach(Arc<Import>),
}

impl Faults {
    pub(crate) fn new(waits: Arc<Waits>) -> Self {
        Self { waits, questions: Mutex::default() }
    }

    /// Requests that a region's buffer is mapped again. Returns false if the thread cannot be
    /// started.
    pub(super) fn ask(&self, import: Arc<Import>) -> bool {
        self.put(Question::Remap(import))
    }

    /// Releases a buffer whose region is gone.
    pub(crate) fn let_go(&self, import: Arc<Import>) {
        if import.is_remote() {
            self.put(Question::Detach(import));
        }
    }

    fn put(&self, question: Question) -> bool {
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        if questions.is_none() {
            let (sender, receiver) = channel();
            let waits = Arc::clone(&self.waits);
            match threads::spawn("peerdma-faults", move || answer(&receiver, &waits)) {
                Ok(_) => *questions = Some(sender),
                Err(error) => {
                    tracing::warn!(target: "peerdma::peer-memory", "no fault thread: {error}");
                    return false;
                }
            }
        }
        questions.as_ref().is_some_and(|questions| questions.send(question).is_ok())
    }

    /// In a forked child: the thread belongs to the parent.
    pub(super) fn abandon_in_child(&mut self) {
        std::mem::forget(self.questions.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}

fn answer(questions: &Receiver<Question>, waits: &Waits) {
    while let Ok(question) = questions.recv() {
        match question {
            Question::Remap(import) => {
                import.remap_and_wait(|| waits.wake());
            }
            Question::Detach(import) => drop(import),
        }
    }
}

//! The sentences for failed work requests, kept for a program that asks.

use std::collections::VecDeque;
use std::io::Write as _;
use std::path::Path;

use iba::Qpn;

/// Failures that are remembered.
const MAX_REMEMBERED: usize = 256;
/// The most failures of one process that are written to a file.
const MAX_WRITTEN: u32 = 1000;

/// The failures of the work requests of this process on this NIC, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    known: VecDeque<Failed>,
    written: u32,
}

/// A work request that failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) qpn: Qpn,
    pub(super) wr_id: u64,
    pub(super) words: String,
    /// Whether the QP was in error from then on.
    pub(super) ends_qp: bool,
}

impl Failures {
    /// Keeps a failure, and drops the oldest one if there are many.
    pub(super) fn remember(&mut self, failed: Failed) {
        if self.known.len() >= MAX_REMEMBERED {
            self.known.pop_front();
        }
        self.known.push_back(failed);
    }

    /// The latest failures in words, at most this many, the newest last.
    pub(super) fn latest(&self, most: usize) -> impl Iterator<Item = &str> {
        let skip = self.known.len().saturating_sub(most);
        self.known.iter().skip(skip).map(|failed| failed.words.as_str())
    }

    /// The failures of a QP, the newest first.
    pub(super) fn of_qp(&self, qpn: Qpn) -> impl Iterator<Item = &Failed> {
        self.known.iter().rev().filter(move |failed| failed.qpn == qpn)
    }

    /// Adds a sentence to a file, unless it has many.
    pub(super) fn write(&mut self, path: &Path, words: &str) {
        if self.written >= MAX_WRITTEN {
            return;
        }
        self.written += 1;
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let done = file.and_then(|mut file| file.write_all(format!("{words}\n").as_bytes()));
        if let Err(error) = done {
            tracing::error!(target: "peerdma::completion", "{}: {error}", path.display());
        }
    }
}

//! Memory pressure: memory that a fault plan holds and that cannot be evicted.

use std::sync::PoisonError;

use crate::device::Device;
use crate::need::{BALLAST, Need};
use crate::place::Domain;
use crate::pools::Resource;

/// The most pieces, and the smallest size: the ledger is meant for the buffers of programs.
const PIECES: usize = 256;
const SMALLEST: u64 = 64 << 10;

impl Device {
    /// Sets how much of VRAM must be in use, for good or while a window is open.
    pub(crate) fn set_fill(&self, millionths: u32, window: Option<u64>) {
        let mut ballast = self.ballast.lock().unwrap_or_else(PoisonError::into_inner);
        let share = ballast.share.set(millionths, window);
        self.fill(&mut ballast.held, share);
    }

    /// A window ends.
    pub(crate) fn end_fill(&self, window: u64) {
        let mut ballast = self.ballast.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = ballast.share.end(window) {
            self.fill(&mut ballast.held, share);
        }
    }

    /// Holds as much VRAM as needed for `millionths` of it to be in use, or releases the excess.
    /// Nothing is evicted for this.
    fn fill(&self, ballast: &mut Vec<Resource>, millionths: u32) {
        ballast.clear();
        // CAST: the product fits 128 bits, and the quotient is at most VRAM.
        let target = (u128::from(self.config.vram) * u128::from(millionths) / 1_000_000) as u64;
        let page = rustix::param::page_size() as u64;
        let mut left = target.saturating_sub(self.used(Domain::Vram)) / page * page;
        let mut piece = left;
        while left > 0 && ballast.len() < PIECES {
            let len = piece.min(left);
            let need = Need { bo: BALLAST, len, align: page, fixed: true, visible: false };
            if let Some(resource) = self.try_obtain(Domain::Vram, need) {
                ballast.push(resource);
                left -= len;
            } else if piece > SMALLEST {
                piece = (piece / 2 / page * page).max(SMALLEST);
            } else {
                return;
            }
        }
    }

    /// Bytes of a domain in use, by all processes that share the GPU.
    pub(crate) fn used(&self, domain: Domain) -> u64 {
        let entries = self.pools.ledger.lock().entries();
        entries.iter().filter(|entry| entry.domain == domain).map(|entry| entry.len).sum()
    }
}

//! Payloads of packets that overtook a lost one (`transport::Early`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use transport::env::Rx;

use crate::payload::InPayload;

/// The most bytes that the QPs of one process keep of such packets: a peer must not fill memory by
/// leaving out a packet on each of many connections.
const MOST: usize = 64 << 20;
/// What a packet takes besides its payload.
const OVERHEAD: usize = 128;

/// The bytes that are kept.
#[derive(Debug, Default)]
pub(crate) struct EarlyBytes(Arc<AtomicUsize>);

/// A payload that is kept.
#[derive(Debug)]
pub(crate) struct KeptPayload {
    pub(crate) bytes: Vec<u8>,
    all: Arc<AtomicUsize>,
}

impl EarlyBytes {
    /// A copy of a payload, if there is room.
    pub(super) fn keep(&self, rx: &Rx<'_, InPayload<'_>>) -> Option<KeptPayload> {
        let size = rx.payload.len() as usize + OVERHEAD;
        // Only the engine, which is locked, adds.
        if self.0.load(Ordering::Relaxed) + size > MOST {
            return None;
        }
        self.0.fetch_add(size, Ordering::Relaxed);
        Some(KeptPayload { bytes: rx.payload.to_vec(), all: self.0.clone() })
    }
}

impl Drop for KeptPayload {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes.len() + OVERHEAD, Ordering::Relaxed);
    }
}

//! Reset, suspension and removal: the GPU takes its memory back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dmabuf::Closed;

use crate::bo::BoInner;
use crate::device::Device;

/// How long a reset waits for importers to unmap.
const RESET_PATIENCE: Duration = Duration::from_secs(1);

/// The GPU is being reset: its buffers are revoked, and the contents of VRAM are lost. Or one
/// buffer is suspended: it is revoked. Dropping this value ends that, and gives the memory back.
#[must_use = "the reset ends when this is dropped"]
pub struct Resetting {
    device: Arc<Device>,
    taken: Vec<(Arc<BoInner>, Option<Closed>)>,
    kept: Vec<String>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A reset of the GPU: everything is given back.
    Reset,
    /// A suspension of one buffer, which is given back.
    Suspension,
    /// A removal: nothing is given back.
    Removal,
}

impl Resetting {
    fn new(device: &Arc<Device>, kind: Kind) -> Self {
        Self { device: Arc::clone(device), taken: vec![], kept: vec![], kind }
    }

    pub(crate) fn suspend(bo: &Arc<BoInner>, why: &str) -> Self {
        let mut suspended = Self::new(&bo.device, Kind::Suspension);
        let closed = suspended.revoke(bo, why);
        suspended.taken.push((Arc::clone(bo), closed));
        suspended
    }

    /// The contents of VRAM are lost.
    pub fn lose_contents(&self) {
        self.taken.iter().for_each(|(bo, _)| bo.lose(false));
    }

    /// The memory does not come back, and is free for others; but importers that kept their access
    /// still have it.
    pub fn end_for_good(mut self) {
        self.kind = Kind::Removal;
        for (bo, closed) in std::mem::take(&mut self.taken) {
            bo.zap_cpu_maps();
            if self.kept.contains(&bo.name()) {
                continue;
            }
            if let Some(closed) = closed {
                closed.revoke();
            }
            bo.wholes().iter().for_each(|whole| whole.lose());
            bo.lose(true);
        }
    }

    pub(crate) fn begin(device: &Arc<Device>, why: &str) -> Self {
        device.is_resetting.store(true, Ordering::Release);
        let mut resetting = Self::new(device, Kind::Reset);
        for bo in device.all() {
            let closed = resetting.revoke(&bo, why);
            bo.lose(false);
            resetting.taken.push((bo, closed));
        }
        resetting
    }

    pub(crate) fn remove(device: &Arc<Device>, why: &str) -> Vec<String> {
        if device.set_removed() {
            return vec![];
        }
        let mut removal = Self::new(device, Kind::Removal);
        for bo in device.all() {
            removal.revoke_for_good(&bo, why);
        }
        std::mem::take(&mut removal.kept)
    }

    /// Takes one buffer away for good. Returns whether an importer kept its access.
    pub(crate) fn take_away(bo: &Arc<BoInner>, why: &str) -> bool {
        let mut taking = Self::new(&bo.device, Kind::Removal);
        taking.revoke_for_good(bo, why);
        !std::mem::take(&mut taking.kept).is_empty()
    }

    fn revoke_for_good(&mut self, bo: &Arc<BoInner>, why: &str) {
        let before = self.kept.len();
        let closed = self.revoke(bo, why);
        bo.zap_cpu_maps();
        if self.kept.len() == before {
            if let Some(closed) = closed {
                closed.revoke();
            }
            bo.wholes().iter().for_each(|whole| whole.lose());
            bo.lose(true);
        }
    }

    /// Buffers whose importers kept their access.
    pub fn kept(&self) -> &[String] {
        &self.kept
    }

    fn revoke(&mut self, bo: &Arc<BoInner>, why: &str) -> Option<Closed> {
        let wholes = bo.wholes();
        wholes.iter().for_each(|whole| whole.take_away(&bo.gone(why)));
        let taken = bo.take_away(&bo.resv.lock(), why);
        let (closed, kept) = match taken {
            Ok(taken) => taken,
            Err(refusal) => {
                tracing::error!("{refusal}");
                (None, true)
            }
        };
        // TIMEOUT: an importer that was told may need a moment to unmap.
        let holds =
            |exported: &dmabuf::DmaBuf| exported.wait_unmapped(Some(RESET_PATIENCE)).is_err();
        let mut bufs = bo.dma_bufs();
        bufs.extend(wholes.iter().filter_map(|whole| whole.buf()));
        let still = kept || bufs.iter().any(holds);
        if still {
            self.kept.push(bo.name());
        }
        if kept {
            wholes.iter().for_each(|whole| whole.keep());
            // An importer that keeps its access needs an open gate.
            if let Some(closed) = closed {
                closed.reopen();
            }
            return None;
        }
        closed
    }
}

impl Drop for Resetting {
    fn drop(&mut self) {
        if self.device.is_removed() || self.kind == Kind::Removal {
            return;
        }
        // First, so that a refusal always dates from before its buffer's gate opened: an importer
        // that is refused tells by the gate whether to ask again.
        if self.kind == Kind::Reset {
            self.device.is_resetting.store(false, Ordering::Release);
        }
        let mut given = Vec::new();
        for (bo, closed) in self.taken.drain(..) {
            let resv = bo.resv.lock();
            bo.give_back();
            if let Some(closed) = closed {
                closed.open();
            }
            drop(resv);
            given.push(bo);
        }
        // Joined dma-bufs come back when all of their parts have; also those made meanwhile.
        given.iter().flat_map(|bo| bo.wholes()).for_each(|whole| whole.give_back());
    }
}

//! An exporter that moves its buffer around in a pool file.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use descriptors::Known;
use dmabuf::{
    AttachmentInfo, BusWindow, Direction, DmaBuf, Exporter, ExporterError, ExporterErrorKind, Gate,
    Iommu, Pinning, Placement, Reach, Resv, ResvGuard, SgBacking, SgEntry, SgTable, Sharing,
};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::child;

pub(crate) const SIZE: u64 = 64 << 10;
/// The possible places of the buffer, each as large as the buffer.
const PLACES: u64 = 4;
/// The contents of places where the buffer is not.
pub(crate) const POISON: u64 = 0xdead_beef_dead_beef;

/// A buffer object. Every word of it is the number of the epoch.
pub(crate) struct Bo {
    gate: Gate,
    pool: Arc<Known>,
    window: BusWindow,
    sharing: Sharing,
    pub(crate) attached: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    place: u64,
    pins: usize,
    is_revoked: bool,
    placements: Vec<Placement>,
}

/// A new buffer, at the first place.
pub(crate) fn new(sharing: Sharing) -> (Arc<Bo>, DmaBuf) {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let pool = rustix::fs::memfd_create("pool", flags).expect("memory exists");
    rustix::fs::ftruncate(&pool, SIZE * PLACES).expect("memory exists");
    rustix::fs::fcntl_add_seals(&pool, SealFlags::SHRINK).expect("sealable");
    let bo = Arc::new(Bo {
        gate: Gate::new("BO 1").expect("memory exists"),
        pool: Arc::new(Known::new(pool)),
        window: BusWindow::new(1 << 30, Iommu::On).expect("addresses exist"),
        sharing,
        attached: AtomicUsize::new(0),
        state: Mutex::new(State { place: 0, pins: 0, is_revoked: false, placements: Vec::new() }),
    });
    for place in 1..PLACES {
        bo.fill(place, POISON);
    }
    bo.fill(0, bo.gate.epoch());
    let buf = DmaBuf::export_with(Arc::clone(&bo) as _, SIZE, "bo", Resv::new()).expect("exported");
    (bo, buf)
}

impl Bo {
    /// Moves the buffer to the next place. After this, nobody may touch the old place; the next
    /// round checks that.
    pub(crate) fn relocate(&self, buf: &DmaBuf) -> Result<(), ExporterError> {
        let resv = buf.resv().lock();
        if self.state().pins > 0 {
            return Err(ExporterError::new(ExporterErrorKind::Busy, "the buffer is pinned"));
        }
        let busy = |error: dmabuf::GateError| {
            ExporterError::new(ExporterErrorKind::Busy, error.to_string())
        };
        let closed = self.gate.close().map_err(busy)?;
        let (from, to) = {
            let mut state = self.state();
            let from = state.place;
            state.place = (from + 1) % PLACES;
            (from, state.place)
        };
        self.check(to, POISON);
        self.fill(to, self.gate.epoch() + 2);
        self.fill(from, POISON);
        buf.invalidate_mappings(&resv);
        closed.open();
        Ok(())
    }

    pub(crate) fn revoke(&self, buf: &DmaBuf) {
        let gone = buf.revoke(
            |_| {
                self.gate.revoke().expect("nobody stays inside");
                self.state().is_revoked = true;
            },
            Some(std::time::Duration::from_secs(5)),
        );
        gone.expect("maps of others are over with the gate");
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    fn fill(&self, place: u64, word: u64) {
        let bytes = word.to_ne_bytes().repeat((SIZE / 8) as usize);
        rustix::io::pwrite(&*self.pool, &bytes, place * SIZE).expect("inside");
    }

    fn check(&self, place: u64, word: u64) {
        let mut bytes = vec![0; SIZE as usize];
        rustix::io::pread(&*self.pool, &mut bytes, place * SIZE).expect("inside");
        let wrong = bytes.chunks(8).position(|chunk| chunk != word.to_ne_bytes());
        assert_eq!(wrong, None, "somebody wrote where the buffer is no more");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }
}

impl Exporter for Bo {
    fn name(&self) -> &str {
        "test-gpu"
    }

    fn attach(&self, info: &mut AttachmentInfo) -> Result<(), ExporterError> {
        if info.importer().starts_with("unwelcome") {
            let what = format!("{} is not welcome", info.importer());
            return Err(ExporterError::new(ExporterErrorKind::NotSupported, what));
        }
        self.attached.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn detach(&self, _: &AttachmentInfo) {
        self.attached.fetch_sub(1, Ordering::SeqCst);
    }

    fn pinning(&self) -> Option<&dyn Pinning> {
        Some(self)
    }

    fn map_dma_buf(
        &self,
        _: &ResvGuard<'_>,
        info: &AttachmentInfo,
        _: Direction,
    ) -> Result<SgTable, ExporterError> {
        let mut state = self.state();
        if state.is_revoked {
            return Err(ExporterError::new(ExporterErrorKind::NoDevice, "the BO was revoked"));
        }
        let base = state.place * SIZE;
        // In two ranges, to have more than one.
        let mut entries = Vec::new();
        for (offset, len) in [(base + 4096, SIZE - 4096), (base, 4096)] {
            let placed = self.window.place(self.pool.as_fd(), offset, len, info.importer());
            let placed = placed.expect("room");
            let backing = Some(SgBacking { file: Arc::clone(&self.pool), offset });
            entries.push(SgEntry { addr: placed.addr(), len, backing });
            state.placements.push(placed);
        }
        let map_type = if info.peer2peer() { Reach::BusAddress } else { Reach::ThroughHostBridge };
        Ok(SgTable { entries, epoch: Some(self.gate.epoch()), map_type })
    }

    fn unmap_dma_buf(&self, _: &ResvGuard<'_>, _: &AttachmentInfo, table: SgTable, _: Direction) {
        let is_meant = |addr| table.entries.iter().any(|entry| entry.addr == addr);
        self.state().placements.retain(|placement| !is_meant(placement.addr()));
    }

    fn gate(&self) -> Option<&Gate> {
        Some(&self.gate)
    }

    fn sharing(&self) -> Sharing {
        self.sharing
    }

    fn mmap(&self, offset: u64, len: u64) -> Result<(), ExporterError> {
        let what = format!("{len:#x} bytes at {offset:#x} are not for the CPU");
        Err(ExporterError::new(ExporterErrorKind::NotPermitted, what))
    }
}

impl Pinning for Bo {
    fn pin(&self, _: &ResvGuard<'_>, _: &AttachmentInfo) -> Result<(), ExporterError> {
        self.state().pins += 1;
        Ok(())
    }

    fn unpin(&self, _: &ResvGuard<'_>, _: &AttachmentInfo) {
        self.state().pins -= 1;
    }
}

/// A process that exports.
pub(crate) fn run() -> std::process::ExitCode {
    let mut made: Option<(Arc<Bo>, DmaBuf)> = None;
    child::serve(|socket, line| match (line, &made) {
        ("export kept", _) => {
            made = Some(new(Sharing::HostKept));
            "ok".to_owned()
        }
        ("export revoked", _) => {
            made = Some(new(Sharing::HostRevoked));
            "ok".to_owned()
        }
        ("send", Some((_, buf))) => {
            child::send_fd(socket, buf.fd());
            "ok".to_owned()
        }
        ("move", Some((bo, buf))) => match bo.relocate(buf) {
            Ok(()) => "ok".to_owned(),
            Err(error) => format!("err {error}"),
        },
        // Dies in the middle of a move.
        ("close", Some((bo, _))) => {
            std::mem::forget(bo.gate().close().expect("nobody is inside"));
            "ok".to_owned()
        }
        (line, _) => format!("err what is {line:?}"),
    })
}

//! Memory that data pass through: cut in pieces, registered with the NIC and the disk.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dmabuf::DmaBuf;
use orchestrator::{HOLD_LIMIT, Hold, HoldError, Placed};
use providers::Machine;
use storage::Buffer;
use verbs::{Access, HostBuf, Mr, Pd, Slice};

use crate::target::TargetError;
use crate::target::io::MAX_DATA;

/// Some memory, in pieces of [`MAX_DATA`] bytes.
#[derive(Debug)]
pub struct Area {
    mr: Mr,
    buffer: Buffer,
    /// If it is memory of this process alone.
    host: Option<HostBuf>,
    free: Mutex<Vec<u64>>,
    /// Unless it is memory of this process.
    placed: Option<Placed>,
}

/// A piece of it. Dropping it gives it back.
#[derive(Debug)]
pub struct Piece {
    area: Arc<Area>,
    at: u64,
}

impl Area {
    /// Memory of this process.
    pub(super) fn host(
        pd: &Pd,
        disk: &storage::Client,
        pieces: u32,
    ) -> Result<Arc<Self>, TargetError> {
        let memory = HostBuf::anonymous((pieces * MAX_DATA) as usize)?;
        let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE)?;
        let buffer = disk.attach_host(&memory);
        Ok(Self::new(mr, buffer, Some(memory), None))
    }

    fn imported(
        pd: &Pd,
        disk: &storage::Client,
        dma_buf: &DmaBuf,
        placed: Option<Placed>,
    ) -> Result<Arc<Self>, TargetError> {
        let mr = pd.reg_whole_dmabuf(dma_buf, Access::LOCAL_WRITE)?;
        Ok(Self::new(mr, disk.attach(dma_buf)?, None, placed))
    }

    fn new(mr: Mr, buffer: Buffer, host: Option<HostBuf>, placed: Option<Placed>) -> Arc<Self> {
        let step = u64::from(MAX_DATA);
        let free = (0..mr.len() / step).rev().map(|piece| piece * step).collect();
        Arc::new(Self { mr, buffer, host, free: Mutex::new(free), placed })
    }

    fn free(&self) -> MutexGuard<'_, Vec<u64>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A free piece.
    pub(super) fn take(self: &Arc<Self>) -> Option<Piece> {
        let at = self.free().pop()?;
        Some(Piece { area: Arc::clone(self), at })
    }

    /// How many pieces are free.
    pub fn left(&self) -> usize {
        self.free().len()
    }
}

impl Piece {
    /// For the NIC.
    pub(super) fn slice(&self, len: u32) -> Slice<'_> {
        self.area.mr.slice(self.at, len)
    }

    /// For the disk.
    pub(super) fn buffer(&self) -> (&Buffer, u64) {
        (&self.area.buffer, self.at)
    }

    /// The memory, if it is this process's.
    pub(super) fn host(&self) -> Option<(&HostBuf, usize)> {
        // CAST: inside memory of this process.
        self.area.host.as_ref().map(|memory| (memory, self.at as usize))
    }

    /// Keeps the memory in its place, with what is in it, while the disk and the NIC are at work on
    /// it: if it went before the NIC is done, the queue pair would fail, and the connection with it.
    /// `None`: it is about to move or to go, so ask again, without waiting.
    pub(super) fn hold(&self) -> storage::Result<Option<Kept>> {
        let Some(placed) = &self.area.placed else { return Ok(Some(Kept::Ours)) };
        self.area.buffer.map_type()?;
        match placed.hold() {
            // While it is held it does not move. So memory that is mapped now stays mapped for the
            // disk, whose other requests need not wait for a mover that waits for this hold.
            Ok(hold) => Ok(self.area.buffer.is_mapped().then(|| Kept::Held(hold))),
            Err(HoldError::Gone { why }) => Err(storage::Error::Gone { why }),
            Err(_) => Ok(None),
        }
    }
}

/// Memory that stays.
#[derive(Debug)]
pub(super) enum Kept {
    /// It is memory of this process, which always does.
    Ours,
    /// Its owner waits.
    Held(Hold),
    /// It was not kept any longer, and may have other contents by now.
    LetGo,
}

impl Kept {
    /// Lets go of the memory if its owner has waited for too long.
    pub(super) fn let_go_if_overdue(&mut self) {
        if let Self::Held(hold) = self
            && hold.is_overdue()
        {
            tracing::warn!(
                target: "nvmet",
                "a command has held memory for {HOLD_LIMIT:?} that its owner wants: it loses it"
            );
            *self = Self::LetGo;
        }
    }

    /// Whether it stayed all the time.
    pub(super) fn stayed(&self) -> bool {
        !matches!(self, Self::LetGo)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.area.free().push(self.at);
    }
}

/// The memory for data, which is replaced if its provider leaves.
#[derive(Debug)]
pub struct Memory {
    machine: Machine,
    pd: Pd,
    disk: storage::Client,
    pieces: u32,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    area: Arc<Area>,
    provider: String,
}

impl Memory {
    /// Memory of the provider that is nearest to the NIC and the disk; the host's where there is no
    /// provider.
    pub(super) fn new(
        machine: &Machine,
        pd: &Pd,
        disk: &storage::Client,
        pieces: u32,
    ) -> Result<Self, TargetError> {
        let current = Mutex::new(place(machine, pd, disk, pieces)?);
        let (machine, pd, disk) = (machine.clone(), pd.clone(), disk.clone());
        Ok(Self { machine, pd, disk, pieces, current })
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The provider of the memory.
    pub fn provider(&self) -> String {
        self.current().provider.clone()
    }

    /// A free piece, now.
    pub(super) fn take(&self) -> Option<Piece> {
        self.current().area.take()
    }

    /// How many pieces are free.
    pub fn left(&self) -> usize {
        self.current().area.left()
    }

    /// The provider of a piece left: finds another one for later commands.
    pub(super) fn gone(&self, piece: &Piece) {
        let current = self.current();
        if Arc::ptr_eq(&current.area, &piece.area) {
            self.replace(current);
        }
    }

    /// A connection failed, perhaps because the memory is gone.
    pub(super) fn check(&self) {
        let current = self.current();
        if let Err(storage::Error::Gone { .. }) = current.area.buffer.map_type() {
            self.replace(current);
        }
    }

    fn replace(&self, mut current: MutexGuard<'_, Current>) {
        let from = current.provider.clone();
        let other = place(&self.machine, &self.pd, &self.disk, self.pieces).or_else(|error| {
            tracing::warn!(target: "nvmet", "{error}");
            system_memory(&self.pd, &self.disk, self.pieces)
        });
        match other {
            Ok(new) => *current = new,
            Err(error) => {
                tracing::error!(target: "nvmet", "{from} left, and no other memory is there: {error}");
                return;
            }
        }
        tracing::warn!(target: "nvmet", "{from} left: data pass through {} now", current.provider);
    }
}

fn place(
    machine: &Machine,
    pd: &Pd,
    disk: &storage::Client,
    pieces: u32,
) -> Result<Current, TargetError> {
    let len = u64::from(pieces) * u64::from(MAX_DATA);
    match machine.orchestrator().place(&machine.clients(), len) {
        Ok(placed) => {
            let (provider, dma_buf) = (placed.provider().to_owned(), placed.buffer().clone());
            let area = Area::imported(pd, disk, &dma_buf, Some(placed))?;
            Ok(Current { area, provider })
        }
        Err(orchestrator::PlaceError::NoProvider) => system_memory(pd, disk, pieces),
        Err(error) => Err(TargetError::Memory(error.to_string())),
    }
}

fn system_memory(pd: &Pd, disk: &storage::Client, pieces: u32) -> Result<Current, TargetError> {
    let len = u64::from(pieces) * u64::from(MAX_DATA);
    let dma_buf =
        DmaBuf::export(len, "nvmet").map_err(|error| TargetError::Memory(error.to_string()))?;
    let area = Area::imported(pd, disk, &dma_buf, None)?;
    Ok(Current { area, provider: "system memory".to_owned() })
}

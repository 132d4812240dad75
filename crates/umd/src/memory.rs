//! Memory of a GPU, and what can be done to its bytes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use descriptors::Known;
use dmabuf::peer::PeerMemory;
use dmabuf::{DmaBuf, Mapping, in_words};
use gpu::{Bo, Place};
use rustix::fs::OFlags;
use umem::Umem;

use crate::boundary::LOG;
use crate::machine::Device;
use crate::refusal::{Kind, Refusal, Result};
use crate::view::View;

/// Memory of a GPU, wherever in the address space it is.
#[derive(Debug)]
#[non_exhaustive]
pub struct Memory {
    /// The number of the GPU.
    pub device: usize,
    bo: Bo,
    /// The descriptor by which other processes find it: closed when the program frees it, even if
    /// others still have the memory.
    descriptor: Mutex<Option<Known>>,
}

impl Memory {
    /// Allocates `size` bytes of one of the GPUs.
    ///
    /// # Errors
    ///
    /// It is full.
    pub fn new(devices: &[&'static Device], device: usize, size: u64) -> Result<Self> {
        let found = devices[device];
        let gpu = found.gpu()?;
        // Memory of a GPU whose driver never moves it stays where it is.
        let place = if gpu.persona().moves { Place::VRAM } else { Place::ONLY_VRAM };
        let bo = gpu.alloc(size, place).map_err(|error| {
            tracing::info!(target: LOG, "VRAM of {}: {error}", found.name);
            Refusal::from(error)
        })?;
        Ok(Self { device, bo, descriptor: Mutex::default() })
    }

    /// Allocates `size` bytes of the system memory that one of the GPUs may use.
    ///
    /// # Errors
    ///
    /// The GPU's share of it is full.
    pub fn system(devices: &[&'static Device], device: usize, size: u64) -> Result<Self> {
        let bo = devices[device].gpu()?.alloc(size, Place::GTT)?;
        Ok(Self { device, bo, descriptor: Mutex::default() })
    }

    /// Maps it for the CPU. It does not move while it is mapped; a GPU that is removed takes the
    /// pages away.
    ///
    /// # Errors
    ///
    /// Its exporter does not allow mapping, or it was lost.
    pub fn map(&self) -> Result<Mapping> {
        self.shared()?
            .map(0, self.size())
            .map_err(|error| Refusal::new(Kind::NotSupported, format!("{}: {error}", self.name())))
    }

    /// Maps part of it for the CPU, at addresses of the caller's.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    ///
    /// # Safety
    ///
    /// `len` bytes at `start` are whole pages that the caller has reserved, with nothing mapped
    /// into them.
    pub unsafe fn view(&self, start: u64, offset: u64, len: u64) -> Result<View> {
        let offered = self.bo.mmap_backing(offset, len)?;
        // SAFETY: the caller's promise.
        unsafe { View::new(start, len, offered) }
    }

    /// Imports memory that came as a file, from this process or another. The GPU is the one that
    /// the memory belongs to; `device` if that is not known.
    ///
    /// # Errors
    ///
    /// The file is not memory, its owner is gone, or the GPU does not reach it.
    pub fn import(devices: &[&'static Device], device: usize, fd: BorrowedFd<'_>) -> Result<Self> {
        let bo = devices[device].gpu()?.import(fd)?;
        let name = bo.name();
        let is_of = |index: &usize| name.starts_with(&format!("{}.bo", devices[*index].name));
        match (0..devices.len()).find(is_of) {
            Some(owner) if owner != device => {
                let bo = devices[owner].gpu()?.import(fd)?;
                Ok(Self { device: owner, bo, descriptor: Mutex::default() })
            }
            _ => Ok(Self { device, bo, descriptor: Mutex::default() }),
        }
    }

    /// A name for messages.
    pub fn name(&self) -> String {
        self.bo.name()
    }

    /// Copies from memory of the program.
    ///
    /// # Errors
    ///
    /// A page of it is not there, or the GPU's memory was lost.
    pub fn write_from(&self, offset: u64, from: &Umem) -> Result<()> {
        Ok(self.bo.write_from(offset, from, 0, from.len())?)
    }

    /// Copies to memory of the program.
    ///
    /// # Errors
    ///
    /// As [`write_from`](Self::write_from).
    pub fn read_into(&self, offset: u64, to: &Umem) -> Result<()> {
        Ok(self.bo.read_into(offset, to, 0, to.len())?)
    }

    /// Copies from memory of a GPU to memory of a GPU.
    ///
    /// # Errors
    ///
    /// Memory was lost.
    pub fn copy(to: (&Self, u64), from: (&Self, u64), len: u64) -> Result<()> {
        Ok(gpu::copy((&from.0.bo, from.1), (&to.0.bo, to.1), len)?)
    }

    /// Fills it with a repeated pattern.
    ///
    /// # Errors
    ///
    /// The memory was lost.
    pub fn fill(&self, offset: u64, pattern: &[u8], len: u64) -> Result<()> {
        Ok(self.bo.fill(offset, pattern, len)?)
    }

    /// A few bytes of it.
    ///
    /// # Errors
    ///
    /// The memory was lost.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        Ok(self.bo.read(offset, out)?)
    }

    /// The same, in.
    ///
    /// # Errors
    ///
    /// The memory was lost.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.bo.write(offset, bytes)?)
    }

    /// The program has freed it: peers that were given its address may no longer use it. Holders of
    /// a dma-buf of it may.
    pub fn release(&self, offset: u64, len: u64) {
        self.bo.revoke_peers(offset, len);
    }

    /// Part of it, for a NIC that asks by address.
    pub fn for_peers(&self, offset: u64, len: u64, page: u64) -> Option<Box<dyn PeerMemory>> {
        let given = self.bo.peer_memory(offset, len, page);
        given.inspect_err(|error| tracing::info!(target: LOG, "no memory for peers: {error}")).ok()
    }

    /// The same, for a NIC that cannot stop: it keeps the pages for as long as it wants, whatever
    /// happens to the allocation.
    pub fn for_peers_for_good(
        &self,
        offset: u64,
        len: u64,
        page: u64,
    ) -> Option<Box<dyn PeerMemory>> {
        let given = self.bo.lasting_peer_memory(offset, len, page);
        given.inspect_err(|error| tracing::info!(target: LOG, "no memory for peers: {error}")).ok()
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.bo.size()
    }

    /// The whole of it, for another process.
    ///
    /// # Errors
    ///
    /// No descriptor, or the memory was lost.
    pub fn share(&self) -> Result<OwnedFd> {
        give(self.shared()?)
    }

    /// The whole of it as a dma-buf, whose file stays open for as long as the memory exists.
    ///
    /// # Errors
    ///
    /// As [`share`](Self::share).
    pub fn shared(&self) -> Result<DmaBuf> {
        Ok(self.bo.export()?)
    }

    /// Calls a function with a descriptor of the whole of it, which is the same until the program
    /// frees the memory.
    ///
    /// # Errors
    ///
    /// As [`share`](Self::share); and those of the function.
    pub fn with_descriptor<T, E: From<Refusal>>(
        &self,
        act: impl FnOnce(BorrowedFd<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut descriptor = self.descriptor.lock().unwrap_or_else(PoisonError::into_inner);
        if !descriptor.as_ref().is_some_and(Known::is_ours) {
            let opened = self.shared()?.dup_fd(true).map_err(|error| {
                let what = format!("no descriptor for {}: {error}", self.name());
                Refusal::new(Kind::System, what)
            })?;
            *descriptor = Some(Known::new(opened));
        }
        match &*descriptor {
            Some(descriptor) => act(descriptor.as_fd()),
            None => unreachable!("it was just opened"),
        }
    }

    /// The program has freed it: handles of it no longer lead anywhere.
    pub fn close_descriptor(&self) {
        drop(self.descriptor.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// A dma-buf of part of it.
    ///
    /// # Errors
    ///
    /// No descriptor, or the memory was lost.
    pub fn export(&self, offset: u64, len: u64) -> Result<OwnedFd> {
        give(self.bo.export_range(offset, len)?)
    }
}

/// One dma-buf of a part of each of these, in their order.
///
/// # Errors
///
/// As [`export`](Memory::export); the pieces are too many.
pub fn export_joined(pieces: &[(Arc<Memory>, u64, u64)]) -> Result<OwnedFd> {
    let ranges: Vec<_> =
        pieces.iter().map(|(memory, offset, len)| (&memory.bo, *offset, *len)).collect();
    give(gpu::export_joined(&ranges)?)
}

/// A descriptor of the program's own.
fn give(buf: DmaBuf) -> Result<OwnedFd> {
    dmabuf::give(buf, OFlags::CLOEXEC | OFlags::RDWR).map_err(|error| {
        Refusal::new(Kind::System, format!("no descriptor for a dma-buf: {}", in_words(error)))
    })
}

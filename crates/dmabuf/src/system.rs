//! The exporter of plain memory: pages behind a kernel dma-buf or a sealed memfd, which never move.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use descriptors::Known;
use rustix::io::Errno;

use crate::attached::AttachmentInfo;
use crate::exporter::{
    Direction, Exporter, ExporterError, ExporterErrorKind, SgBacking, SgEntry, SgTable,
};
use crate::resv::ResvGuard;
use crate::sys::{self, Pages, SyncFlags};

/// Exporters of plain memory, by their names.
pub(crate) const UDMABUF: &str = "udmabuf";
pub(crate) const MEMFD: &str = "peerdma memfd";

/// The exporter of a buffer whose pages the kernel holds. Any importer may attach; bus addresses
/// are the addresses of a mapping in this process.
pub(crate) struct SystemMemory {
    name: String,
    file: Arc<Known>,
    size: u64,
    /// Whether the file is a dma-buf of the kernel, for which CPU access must be bracketed.
    is_kernel: bool,
    /// The mapping that the addresses point to, and how many maps use it.
    mapped: Mutex<Option<(Pages, usize)>>,
}

impl SystemMemory {
    pub(crate) fn new(name: String, file: OwnedFd, size: u64, is_kernel: bool) -> Self {
        Self { name, file: Arc::new(Known::new(file)), size, is_kernel, mapped: Mutex::new(None) }
    }

    fn sync(&self, direction: Direction, end: SyncFlags) -> Result<(), ExporterError> {
        if !self.is_kernel {
            return Ok(());
        }
        let flags = match direction {
            Direction::ToDevice => SyncFlags::WRITE,
            Direction::FromDevice => SyncFlags::READ,
            Direction::Bidirectional => SyncFlags::READ | SyncFlags::WRITE,
        };
        let synced = self.file.look().and_then(|()| sys::sync(self.file.as_fd(), flags | end));
        synced.map_err(|errno| self.kernel_error("DMA_BUF_IOCTL_SYNC", errno))
    }

    fn kernel_error(&self, call: &str, errno: Errno) -> ExporterError {
        let what = format!("{call} on a buffer of {} failed: {errno}", self.name);
        ExporterError::new(ExporterErrorKind::Kernel(errno), what)
    }
}

impl Exporter for SystemMemory {
    fn name(&self) -> &str {
        &self.name
    }

    fn map_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        _attachment: &AttachmentInfo,
        _direction: Direction,
    ) -> Result<SgTable, ExporterError> {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let addr = match &mut *mapped {
            Some((pages, users)) => {
                *users += 1;
                pages.addr()
            }
            None => {
                let len = usize::try_from(self.size)
                    .map_err(|_| self.kernel_error("mmap", Errno::OVERFLOW))?;
                let look = self.file.look();
                let pages = look
                    .and_then(|()| Pages::map(self.file.as_fd(), 0, len, true))
                    .map_err(|errno| self.kernel_error("mmap", errno))?;
                let addr = pages.addr();
                *mapped = Some((pages, 1));
                addr
            }
        };
        // For a kernel dma-buf, the importer must bracket each access, so other processes must not
        // map the file.
        let backing =
            (!self.is_kernel).then(|| SgBacking { file: Arc::clone(&self.file), offset: 0 });
        Ok(SgTable::of_system(vec![SgEntry { addr: addr as u64, len: self.size, backing }]))
    }

    fn unmap_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        _attachment: &AttachmentInfo,
        _table: SgTable,
        _direction: Direction,
    ) {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, users)) = &mut *mapped {
            *users -= 1;
            if *users == 0 {
                *mapped = None;
            }
        }
    }

    fn is_coherent(&self) -> bool {
        !self.is_kernel
    }

    fn begin_cpu_access(&self, direction: Direction) -> Result<(), ExporterError> {
        self.sync(direction, SyncFlags::empty())
    }

    fn end_cpu_access(&self, direction: Direction) -> Result<(), ExporterError> {
        self.sync(direction, SyncFlags::END)
    }

    fn is_in_file(&self) -> bool {
        true
    }

    fn mmap(&self, _offset: u64, _len: u64) -> Result<(), ExporterError> {
        Ok(())
    }
}

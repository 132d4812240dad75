//! The buffer itself.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use descriptors::Known;
use rustix::io::Errno;

use crate::attachment::{AttachError, Attachment};
use crate::exporter::Exporter;
use crate::gate::{ClaimError, GateSlot};
use crate::importer::Importer;
use crate::resv::Resv;
use crate::shared::{FileFacts, Shared, registry};
use crate::system::{MEMFD, UDMABUF};

/// The prefix of the names of our memfds. By this an importer tells a buffer that was meant to be
/// shared from any other memfd, which on Linux is not a dma-buf.
pub const MEMFD_PREFIX: &str = "peerdma:";

/// Memory that can be passed between drivers and processes as a file descriptor.
///
/// The fd is the reference: a process that has one can import the buffer, and the memory lives as
/// long as any fd, mapping or `DmaBuf` does. Within one process, all handles made from fds of one
/// buffer share its exporter, its reservation lock and its attachments. The size never changes.
#[doc(alias = "dma_buf")]
#[derive(Clone)]
pub struct DmaBuf {
    shared: Arc<Shared>,
    file: Arc<Known>,
    is_writable: bool,
}

impl DmaBuf {
    /// The file, to pass to the process that must import the buffer.
    #[doc(alias = "dma_buf_fd")]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The same, unless the program closed it, or has a file of its own at its number.
    ///
    /// # Errors
    ///
    /// EBADF.
    pub fn known_fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.file.look()?;
        Ok(self.file.as_fd())
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.shared.size()
    }

    /// Why its owner took the memory away, for messages. `None` if it did not, or gave no reason.
    pub fn why_gone(&self) -> Option<String> {
        self.shared.exporter().why_gone()
    }

    /// The exporter's name.
    pub fn exporter_name(&self) -> &str {
        self.shared.exporter().name()
    }

    /// Whether its bytes are known to be in host memory, as with a memfd, udmabuf and the system
    /// heap. For other kernel dma-bufs, only the driver knows where the bytes are.
    pub fn is_host_memory(&self) -> bool {
        match self.is_kernel() {
            true => matches!(self.exporter_name(), UDMABUF | "system"),
            false => self.exporter_name() == MEMFD,
        }
    }

    /// Whether the file is a dma-buf of the kernel.
    pub fn is_kernel(&self) -> bool {
        self.shared.is_kernel()
    }

    /// Whether its descriptor permits writing.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Whether the exporter may move the memory.
    #[doc(alias = "dma_buf_is_dynamic")]
    pub fn is_dynamic(&self) -> bool {
        self.shared.exporter().pinning().is_some()
    }

    /// The reservation lock.
    pub fn resv(&self) -> &Resv {
        self.shared.resv()
    }

    /// Whether both are handles of one buffer.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Attaches a device. Must not be called with the reservation lock held.
    ///
    /// # Errors
    ///
    /// [`AttachError`]: the exporter refused.
    #[doc(alias = "dma_buf_dynamic_attach")]
    pub fn attach(&self, importer: &Arc<dyn Importer>) -> Result<Attachment, AttachError> {
        Attachment::new(&self.shared, importer)
    }

    /// The slot by which this process enters the buffer's [gate](crate::gate), if it has one: an
    /// access through a table with an epoch must enter first.
    ///
    /// # Errors
    ///
    /// [`ClaimError`].
    pub fn gate_slot(&self) -> Result<Option<GateSlot>, ClaimError> {
        self.shared.exporter().gate_slot()
    }

    /// The exporter's process, if that is not this one; 0 if it has no pid here. Attach, pin and
    /// map are then requests to it, and take as long as it takes.
    pub fn exporter_process(&self) -> Option<u32> {
        self.shared.exporter().process()
    }

    /// Adds a new buffer to the list of this process.
    #[expect(clippy::too_many_arguments, reason = "the parts of a buffer")]
    pub(crate) fn register(
        id: (u64, u64),
        file: OwnedFd,
        facts: FileFacts,
        size: u64,
        name: &str,
        is_kernel: bool,
        exporter: Arc<dyn Exporter>,
        resv: Resv,
    ) -> Self {
        let shared = Shared::make(facts, size, name.to_owned(), is_kernel, exporter, resv);
        let file = Arc::new(Known::new(file));
        let shared = Arc::new(shared.with_origin(&file));
        registry().insert(id, Arc::downgrade(&shared));
        Self { shared, file, is_writable: true }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn parts(&self) -> (&Arc<Shared>, &Arc<Known>, bool) {
        (&self.shared, &self.file, self.is_writable)
    }

    pub(crate) fn from_parts(shared: Arc<Shared>, file: Arc<Known>, is_writable: bool) -> Self {
        Self { shared, file, is_writable }
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBuf")
            .field("name", &self.name())
            .field("size", &self.shared.size())
            .field("exporter", &self.shared.exporter().name())
            .field("fd", &self.file)
            .finish()
    }
}

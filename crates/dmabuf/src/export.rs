//! Making a buffer.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::buf::{DmaBuf, MEMFD_PREFIX};
use crate::exporter::{Exporter, Sharing};
use crate::limit::in_words;
use crate::resv::Resv;
use crate::share;
use crate::shared::FileFacts;
use crate::sys;
use crate::system::{MEMFD, SystemMemory, UDMABUF};

/// Where the memory of a new buffer comes from.
///
/// A dma-buf of the kernel can be given to other drivers, and to programs that do not know peerdma,
/// but each CPU access must be bracketed with a system call. A memfd is a buffer for programs that
/// use peerdma; it needs no brackets, and is faster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Memory {
    /// [`Udmabuf`](Self::Udmabuf) if `/dev/udmabuf` can be opened, otherwise
    /// [`Memfd`](Self::Memfd): the fd is a real dma-buf whenever possible.
    #[default]
    Best,
    /// A memfd named `peerdma:NAME`, sealed against shrinking and growing.
    Memfd,
    /// A dma-buf of the kernel, made by `/dev/udmabuf`.
    Udmabuf,
    /// A dma-buf of the kernel, allocated by `/dev/dma_heap/NAME`: `system`, or the name of a
    /// reserved area.
    Heap(String),
}

/// Why a buffer could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A buffer needs a size.
    #[error("a dma-buf of zero bytes does not exist")]
    Empty,
    /// The name cannot be the name of a file.
    #[error(
        "{name:?} is not a name for a buffer: at most 200 bytes without NUL, and not an exporter's address"
    )]
    BadName {
        /// The requested name.
        name: String,
    },
    /// The heap's name is not a file name.
    #[error("{heap:?} is not the name of a heap in /dev/dma_heap")]
    BadHeap {
        /// The requested name.
        heap: String,
    },
    /// The kernel refused.
    #[error(
        "{call} for a buffer of {len:#x} bytes failed: {}{}",
        in_words(*errno),
        sandbox::hint(errno.raw_os_error())
    )]
    System {
        /// The call.
        call: &'static str,
        /// The size asked for.
        len: u64,
        /// The kernel's reason.
        errno: Errno,
    },
}

impl DmaBuf {
    /// Makes a buffer of at least `len` bytes of system memory (rounded up to pages), from the
    /// [best](Memory::Best) source that the machine has.
    ///
    /// # Errors
    ///
    /// [`ExportError`].
    pub fn export(len: u64, name: &str) -> Result<Self, ExportError> {
        Self::export_from(&Memory::Best, len, name)
    }

    /// As [`export`](Self::export), with memory from a source of the caller's choice.
    ///
    /// # Errors
    ///
    /// [`ExportError`], also for a source that the machine lacks.
    pub fn export_from(memory: &Memory, len: u64, name: &str) -> Result<Self, ExportError> {
        let size = check_new(len, name)?;
        let named = format!("{MEMFD_PREFIX}{name}");
        let failed = |(call, errno)| ExportError::System { call, len, errno };
        let memfd = || sys::sealed_memfd(&named, size).map_err(|errno| ("memfd_create", errno));
        let (file, exporter, is_kernel) = match memory {
            Memory::Best => match sys::udmabuf(&named, size) {
                Ok(file) => (file, UDMABUF.to_owned(), true),
                Err((call, errno)) => {
                    tracing::debug!("{call}: {errno}; buffer {name:?} is a sealed memfd");
                    (memfd().map_err(failed)?, MEMFD.to_owned(), false)
                }
            },
            Memory::Memfd => (memfd().map_err(failed)?, MEMFD.to_owned(), false),
            Memory::Udmabuf => {
                (sys::udmabuf(&named, size).map_err(failed)?, UDMABUF.to_owned(), true)
            }
            Memory::Heap(heap) => {
                if heap.is_empty() || heap.contains(['/', '\0']) || heap.starts_with('.') {
                    return Err(ExportError::BadHeap { heap: heap.clone() });
                }
                let file = sys::heap_allocate(heap, size).map_err(failed)?;
                // The heap's driver reports its name in fdinfo.
                let (exporter, _) = sys::dma_buf_names(file.as_fd());
                (file, exporter, true)
            }
        };
        let own = rustix::io::fcntl_dupfd_cloexec(&file, 0)
            .map_err(|errno| failed(("F_DUPFD_CLOEXEC", errno)))?;
        if is_kernel {
            // A convenience for tools that list buffers: even if the kernel refuses the name, it
            // has made the buffer.
            let _ = sys::set_name(file.as_fd(), cut(name));
        }
        let exporter = SystemMemory::new(exporter, own, size, is_kernel);
        Self::publish(file, size, name, is_kernel, Arc::new(exporter), Resv::new(), len)
    }

    /// Makes a buffer with the behaviour of `exporter`. Its file is a sealed memfd of `len` bytes
    /// (rounded up to pages), which is empty unless the exporter [says
    /// otherwise](Exporter::is_in_file). `resv` may be shared with other buffers, which then have
    /// one lock and one set of fences.
    ///
    /// The exporter answers in this process for as long as a handle or an attachment exists here
    /// or in a process that it [serves](Exporter::sharing). If it serves no other process, a
    /// process that receives the fd finds the memfd's pages.
    ///
    /// # Errors
    ///
    /// [`ExportError`].
    #[doc(alias = "dma_buf_export")]
    pub fn export_with(
        exporter: Arc<dyn Exporter>,
        len: u64,
        name: &str,
        resv: Resv,
    ) -> Result<Self, ExportError> {
        let size = check_new(len, name)?;
        let system = |call| move |errno| ExportError::System { call, len, errno };
        let address = match exporter.sharing() {
            Sharing::Process => None,
            Sharing::HostKept | Sharing::HostRevoked => {
                Some(share::reserve().map_err(system("serving other processes"))?)
            }
        };
        let suffix = address.map(|address| address.to_string()).unwrap_or_default();
        let name_of_file = format!("{MEMFD_PREFIX}{name}{suffix}");
        let file = match exporter.is_in_file() {
            true => sys::sealed_memfd(&name_of_file, size),
            false => sys::faceless_memfd(&name_of_file, size),
        };
        let file = file.map_err(system("memfd_create"))?;
        let (id, _) = sys::identity(file.as_fd()).map_err(system("fstat"))?;
        let buf = Self::publish(file, size, name, false, exporter, resv, len)?;
        if let Some(address) = address {
            share::publish(address, buf.shared(), id);
        }
        Ok(buf)
    }

    fn publish(
        file: OwnedFd,
        size: u64,
        name: &str,
        is_kernel: bool,
        exporter: Arc<dyn Exporter>,
        resv: Resv,
        len: u64,
    ) -> Result<Self, ExportError> {
        resv.assert_unlocked("export");
        let (id, _) = sys::identity(file.as_fd()).map_err(|errno| ExportError::System {
            call: "fstat",
            len,
            errno,
        })?;
        let facts = FileFacts { ino: id.1, flags: OFlags::RDWR };
        Ok(Self::register(id, file, facts, size, name, is_kernel, exporter, resv))
    }
}

fn check_new(len: u64, name: &str) -> Result<u64, ExportError> {
    if len == 0 {
        return Err(ExportError::Empty);
    }
    let is_taken = share::split_name(name).is_some();
    if name.len() > 200 || name.contains('\0') || is_taken {
        return Err(ExportError::BadName { name: name.to_owned() });
    }
    len.checked_next_multiple_of(rustix::param::page_size() as u64).ok_or(ExportError::System {
        call: "memfd_create",
        len,
        errno: Errno::FBIG,
    })
}

/// The part of a name that fits a kernel dma-buf.
fn cut(name: &str) -> &str {
    let mut end = name.len().min(sys::DMA_BUF_NAME_LEN);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

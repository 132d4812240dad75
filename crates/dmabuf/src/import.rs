//! Importing a buffer by its file.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use descriptors::Known;
use rustix::fs::{OFlags, SealFlags};
use rustix::io::Errno;

use crate::buf::{DmaBuf, MEMFD_PREFIX};
use crate::resv::Resv;
use crate::share::{self, ImportRefused};
use crate::shared::{FileFacts, Shared, registry};
use crate::sys;
use crate::system::{MEMFD, SystemMemory};

/// Why an fd could not be imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// There is no open file with this number (EBADF).
    #[error("fd {fd} is not open")]
    NotOpen {
        /// The descriptor.
        fd: i32,
    },
    /// The file is not a dma-buf: neither one of the kernel nor a memfd that was exported as one
    /// (EINVAL).
    #[error("fd {fd} is not a dma-buf: neither the kernel's nor a memfd named {MEMFD_PREFIX}NAME")]
    NotADmaBuf {
        /// The descriptor.
        fd: i32,
    },
    /// A memfd with our mark, but without `F_SEAL_SHRINK`: its owner could make our accesses fault.
    #[error("fd {fd} is a memfd that can shrink: it needs F_SEAL_SHRINK to be a dma-buf")]
    CanShrink {
        /// The descriptor.
        fd: i32,
    },
    /// A memfd whose name has an exporter that does not serve it (ENODEV): the exporter released
    /// the memory, its process is gone, or the name is forged.
    #[error("fd {fd}, which is named {name:?}, is no longer a dma-buf: {reason}")]
    NoExporter {
        /// The descriptor.
        fd: i32,
        /// The name of the file.
        name: String,
        /// The reason.
        reason: String,
    },
    /// A buffer of a process of another user (EINVAL).
    #[error("fd {fd} is a buffer of a process of user {uid}, and this one belongs to user {own}")]
    Stranger {
        /// The descriptor.
        fd: i32,
        /// The user of the process that has the exporter's name.
        uid: u32,
        /// Our user.
        own: u32,
    },
    /// A real dma-buf that the CPU cannot map, and there is no other access to its memory.
    #[error("fd {fd} is a dma-buf of {exporter}, which the CPU cannot map: {errno}")]
    CannotMap {
        /// The descriptor.
        fd: i32,
        /// The exporter.
        exporter: String,
        /// The error of mmap.
        errno: Errno,
    },
    /// The kernel refused something that should work.
    #[error("{call} on fd {fd} failed: {errno}")]
    System {
        /// The descriptor.
        fd: i32,
        /// The call.
        call: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
}

impl DmaBuf {
    /// Imports the buffer behind `fd`, which the caller may close afterwards.
    ///
    /// Accepted are dma-bufs of the kernel and memfds that a peerdma exporter made. Other files,
    /// plain memfds among them, are not dma-bufs.
    ///
    /// # Errors
    ///
    /// [`ImportError`].
    #[doc(alias = "dma_buf_get")]
    pub fn import(fd: BorrowedFd<'_>) -> Result<Self, ImportError> {
        use std::os::fd::AsRawFd;
        let number = fd.as_raw_fd();
        let system = |call| {
            move |errno| match errno {
                Errno::BADF => ImportError::NotOpen { fd: number },
                errno => ImportError::System { fd: number, call, errno },
            }
        };
        let is_kernel = sys::is_dma_buf(fd).map_err(system("fstatfs"))?;
        // Duplicate it first: whatever happens to the caller's descriptor from here on, all checks
        // are of one file.
        let file = rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(system("F_DUPFD_CLOEXEC"))?;
        let file = Known::new(file);
        let fd = file.as_fd();
        let (id, inode_size) = sys::identity(fd).map_err(system("fstat"))?;
        let flags = sys::open_flags(fd).map_err(system("F_GETFL"))?;
        let flags = if is_kernel { flags } else { sys::meant_flags(flags) };
        let is_writable = flags & OFlags::RWMODE == OFlags::RDWR;

        let mut registry = registry();
        if let Some(shared) = registry.get(&id).and_then(Weak::upgrade) {
            drop(registry);
            return Ok(Self::from_parts(shared, Arc::new(file), is_writable));
        }
        let facts = FileFacts { ino: id.1, flags };
        if !is_kernel && let Some((name, address)) = shared_name(fd) {
            // Called without the lock, since the exporter may need it.
            drop(registry);
            let proxy = share::import(address, id, inode_size)
                .map_err(|refused| import_refused(number, fd, refused))?;
            let shared = adopt(id, facts, inode_size, name, proxy);
            return Ok(Self::from_parts(shared, Arc::new(file), is_writable));
        }
        let (name, exporter_name, size) = if is_kernel {
            let size = sys::dma_buf_size(fd).map_err(system("lseek"))?;
            let (exporter, name) = sys::dma_buf_names(fd);
            try_map(fd, number, &exporter)?;
            (name.unwrap_or_default(), exporter, size)
        } else {
            let name = sys::memfd_name(fd).filter(|name| name.starts_with(MEMFD_PREFIX));
            let name = name.ok_or(ImportError::NotADmaBuf { fd: number })?;
            if !sys::seals(fd).is_some_and(|seals| seals.contains(SealFlags::SHRINK)) {
                return Err(ImportError::CanShrink { fd: number });
            }
            (name[MEMFD_PREFIX.len()..].to_owned(), MEMFD.to_owned(), inode_size)
        };
        let own = file.try_clone().map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::MFILE);
            ImportError::System { fd: number, call: "F_DUPFD_CLOEXEC", errno }
        })?;
        let exporter = SystemMemory::new(exporter_name, own, size, is_kernel);
        let exporter = Arc::new(exporter);
        let shared = Shared::make(facts, size, name, is_kernel, exporter, Resv::new());
        let shared = Arc::new(shared);
        registry.insert(id, Arc::downgrade(&shared));
        drop(registry);
        Ok(Self::from_parts(shared, Arc::new(file), is_writable))
    }
}

/// Adds a buffer of another process to the list of this one, unless another thread was first.
fn adopt(
    id: (u64, u64),
    facts: FileFacts,
    size: u64,
    name: String,
    proxy: Arc<share::Proxy>,
) -> Arc<Shared> {
    let made = Arc::new(Shared::make_remote(facts, size, name, Arc::clone(&proxy) as _));
    let first = {
        let mut registry = registry();
        let first = registry.get(&id).and_then(Weak::upgrade);
        if first.is_none() {
            registry.insert(id, Arc::downgrade(&made));
        }
        first
    };
    if let Some(first) = first {
        return first;
    }
    share::registered(&proxy, &made);
    made
}

/// The name of a shared memfd, and the address of its exporter. `None` without the seal, which
/// other processes also require.
fn shared_name(fd: BorrowedFd<'_>) -> Option<(String, share::Address)> {
    let name = sys::memfd_name(fd)?;
    let (name, address) = share::split_name(name.strip_prefix(MEMFD_PREFIX)?)?;
    let is_sealed = sys::seals(fd).is_some_and(|seals| seals.contains(SealFlags::SHRINK));
    is_sealed.then(|| (name.to_owned(), address))
}

fn import_refused(fd: i32, file: BorrowedFd<'_>, refused: ImportRefused) -> ImportError {
    match refused {
        ImportRefused::NoExporter(reason) => {
            ImportError::NoExporter { fd, name: sys::memfd_name(file).unwrap_or_default(), reason }
        }
        ImportRefused::Stranger { uid } => {
            ImportError::Stranger { fd, uid, own: rustix::process::geteuid().as_raw() }
        }
        ImportRefused::System { call, errno } => ImportError::System { fd, call, errno },
    }
}

/// Checks whether a kernel dma-buf can be mapped at all. This maps and unmaps a page: there is no
/// cheaper query.
fn try_map(fd: BorrowedFd<'_>, number: i32, exporter: &str) -> Result<(), ImportError> {
    match sys::Pages::map(fd, 0, rustix::param::page_size(), false) {
        Ok(_) => Ok(()),
        Err(errno) => {
            Err(ImportError::CannotMap { fd: number, exporter: exporter.to_owned(), errno })
        }
    }
}

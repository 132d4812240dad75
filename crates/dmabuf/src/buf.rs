//! The buffer itself.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::fs::SealFlags;
use rustix::io::Errno;

use crate::attachment::{AttachError, Attachment, Inner as AttachmentInner};
use crate::exporter::{Exporter, ExporterError, IosysMap};
use crate::importer::Importer;
use crate::mapping::{Mapping, MmapError};
use crate::resv::{Resv, ResvGuard};
use crate::sys;
use crate::system::SystemMemory;

/// Names of our memfds begin with this. It is how an importer tells a buffer that was meant to be shared from any other
/// memfd, which on Linux is no dma-buf.
pub const MEMFD_PREFIX: &str = "peerdma:";

/// Memory that can be passed between drivers and processes as a file descriptor.
///
/// The fd is the reference: whoever has one can import the buffer, and the memory lives as long as any fd, mapping or
/// `DmaBuf` does. Within one process all handles made from fds of one buffer share its exporter, its reservation lock
/// and its attachments. Size is fixed for life.
#[doc(alias = "dma_buf")]
#[derive(Clone)]
pub struct DmaBuf {
    shared: Arc<Shared>,
    file: Arc<OwnedFd>,
    is_writable: bool,
}

/// Why an fd could not be imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// There is no open file with this number (EBADF).
    #[error("fd {fd} is not open")]
    NotOpen {
        /// The number.
        fd: i32,
    },
    /// The file is not a dma-buf: neither one of the kernel nor a memfd that was exported as one (EINVAL).
    #[error("fd {fd} is not a dma-buf: neither the kernel's nor a memfd named {MEMFD_PREFIX}NAME")]
    NotADmaBuf {
        /// The number.
        fd: i32,
    },
    /// A memfd with our mark, but without `F_SEAL_SHRINK`: its owner could make our accesses fault.
    #[error("fd {fd} is a memfd that can shrink: it needs F_SEAL_SHRINK to be a dma-buf")]
    CanShrink {
        /// The number.
        fd: i32,
    },
    /// A real dma-buf that the CPU cannot map, and there is no other way to its memory.
    #[error("fd {fd} is a dma-buf of {exporter}, which the CPU cannot map: {errno}")]
    CannotMap {
        /// The number.
        fd: i32,
        /// Who exported it.
        exporter: String,
        /// What mmap answered.
        errno: Errno,
    },
    /// The kernel refused something that should work.
    #[error("{call} on fd {fd} failed: {errno}")]
    System {
        /// The number.
        fd: i32,
        /// The call.
        call: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
}

/// Why a buffer could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A buffer needs a size.
    #[error("a dma-buf of zero bytes does not exist")]
    Empty,
    /// The name cannot be a file's.
    #[error("{name:?} is no name for a buffer: at most 200 bytes without NUL")]
    BadName {
        /// What was asked.
        name: String,
    },
    /// The kernel refused.
    #[error("{call} for a buffer of {len:#x} bytes failed: {errno}")]
    System {
        /// The call.
        call: &'static str,
        /// The size asked for.
        len: u64,
        /// The kernel's reason.
        errno: Errno,
    },
}

/// The buffer's memory as the exporter's CPU side sees it, while this exists.
#[must_use = "the map goes away with the guard"]
pub struct VmapGuard {
    shared: Arc<Shared>,
    map: IosysMap,
}

pub(crate) struct Shared {
    size: u64,
    name: String,
    is_kernel: bool,
    exporter: Arc<dyn Exporter>,
    resv: Resv,
    attachments: Mutex<Vec<Weak<AttachmentInner>>>,
    /// Maps of attachments that exist now.
    maps: Mutex<usize>,
    unmapped: Condvar,
    /// Users of the exporter's CPU map. Changed under the reservation lock.
    vmap: Mutex<Option<(IosysMap, usize)>>,
}

impl DmaBuf {
    /// Takes part in the buffer behind `fd`, which the caller may close afterwards.
    ///
    /// Accepted are dma-bufs of the kernel and memfds that a peerdma exporter made. Other files, plain memfds among
    /// them, are not dma-bufs.
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
        // The reference first: whatever happens to the caller's number from here on, all looks are at one file.
        let file = rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(system("F_DUPFD_CLOEXEC"))?;
        let fd = file.as_fd();
        let (id, inode_size) = sys::identity(fd).map_err(system("fstat"))?;
        let is_writable = sys::is_writable(fd).map_err(system("F_GETFL"))?;

        let mut registry = registry();
        if let Some(shared) = registry.get(&id).and_then(Weak::upgrade) {
            drop(registry);
            return Ok(Self { shared, file: Arc::new(file), is_writable });
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
            (name[MEMFD_PREFIX.len()..].to_owned(), "peerdma memfd".to_owned(), inode_size)
        };
        let own = file.try_clone().map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::MFILE);
            ImportError::System { fd: number, call: "F_DUPFD_CLOEXEC", errno }
        })?;
        let exporter = SystemMemory::new(exporter_name, own, size, is_kernel);
        let shared = Shared::new(size, name, is_kernel, Arc::new(exporter), Resv::new());
        registry.insert(id, Arc::downgrade(&shared));
        drop(registry);
        Ok(Self { shared, file: Arc::new(file), is_writable })
    }

    /// Makes a buffer of at least `len` bytes of system memory (rounded up to pages): a kernel dma-buf where the machine
    /// has `/dev/udmabuf`, and otherwise a sealed memfd that [`import`](Self::import) recognises.
    ///
    /// # Errors
    ///
    /// [`ExportError`].
    pub fn export(len: u64, name: &str) -> Result<Self, ExportError> {
        let size = check_new(len, name)?;
        let memfd = format!("{MEMFD_PREFIX}{name}");
        let (file, is_kernel) = match sys::udmabuf(&memfd, size) {
            Ok(file) => (file, true),
            Err(errno) => {
                tracing::debug!("no udmabuf ({errno}): buffer {name:?} is a sealed memfd");
                let file = sys::sealed_memfd(&memfd, size)
                    .map_err(|errno| ExportError::System { call: "memfd_create", len, errno })?;
                (file, false)
            }
        };
        let system = |call| move |errno| ExportError::System { call, len, errno };
        let own = rustix::io::fcntl_dupfd_cloexec(&file, 0).map_err(system("F_DUPFD_CLOEXEC"))?;
        let exporter_name = if is_kernel { "udmabuf" } else { "peerdma memfd" };
        let exporter = SystemMemory::new(exporter_name.to_owned(), own, size, is_kernel);
        Self::publish(file, size, name, is_kernel, Arc::new(exporter), Resv::new(), len)
    }

    /// Makes a buffer whose behaviour is `exporter`'s, with a sealed memfd of `len` bytes (rounded up to pages) as its
    /// file. `resv` may be shared with other buffers, which then have one lock.
    ///
    /// The exporter answers in this process, for as long as a handle or an attachment exists here. Another process that
    /// receives the fd finds the memfd's pages.
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
        let file = sys::sealed_memfd(&format!("{MEMFD_PREFIX}{name}"), size)
            .map_err(|errno| ExportError::System { call: "memfd_create", len, errno })?;
        Self::publish(file, size, name, false, exporter, resv, len)
    }

    /// The file, to be passed to whoever shall import the buffer.
    #[doc(alias = "dma_buf_fd")]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.shared.size
    }

    /// The buffer's name; empty if nobody gave it one.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The exporter's name.
    pub fn exporter_name(&self) -> &str {
        self.shared.exporter.name()
    }

    /// Whether the file is a dma-buf of the kernel.
    pub fn is_kernel(&self) -> bool {
        self.shared.is_kernel
    }

    /// Whether exporter and buffer may move the memory.
    #[doc(alias = "dma_buf_is_dynamic")]
    pub fn is_dynamic(&self) -> bool {
        self.shared.exporter.pinning().is_some()
    }

    /// The reservation lock.
    pub fn resv(&self) -> &Resv {
        &self.shared.resv
    }

    /// Whether both are handles of one buffer.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Maps `len` bytes at `offset` for the CPU; neither needs to be page aligned. An fd that is open for reading only
    /// gives a mapping that can only be read.
    ///
    /// # Errors
    ///
    /// [`MmapError`].
    #[doc(alias = "dma_buf_mmap")]
    pub fn map(&self, offset: u64, len: u64) -> Result<Mapping, MmapError> {
        Mapping::new(self, offset, len, self.is_writable)
    }

    /// Attaches a device. Must not be called with the reservation lock held.
    ///
    /// # Errors
    ///
    /// [`AttachError`]: the exporter refused.
    #[doc(alias = "dma_buf_dynamic_attach")]
    pub fn attach(&self, importer: &Arc<dyn Importer>) -> Result<Attachment, AttachError> {
        Attachment::new(self, importer)
    }

    /// For the exporter, when it moves or takes away the memory: tells every importer of a revocable class that its
    /// mappings are void. Importers of other classes are skipped and keep their access.
    ///
    /// New mappings may be asked for as soon as the lock is released. An exporter that revokes must therefore make its
    /// own [`Exporter::map_dma_buf`] fail before it calls this; see [`revoke`](Self::revoke).
    ///
    /// # Panics
    ///
    /// If `resv` is the guard of another lock.
    #[doc(alias = "dma_buf_invalidate_mappings")]
    pub fn invalidate_mappings(&self, resv: &ResvGuard<'_>) {
        assert!(resv.protects(&self.shared.resv), "the exporter holds this buffer's lock");
        // Copied out: a callback may drop its attachment, which looks at the list.
        let attachments: Vec<_> =
            self.shared.attachments().iter().filter_map(Weak::upgrade).collect();
        for attachment in attachments {
            Attachment::from_inner(attachment).invalidate(resv);
        }
    }

    /// The whole sequence with which an exporter takes memory away (`docs/semantics.md` 1.6): under the lock,
    /// `set_revoked` makes further maps fail and all revocable importers are told; then, without the lock, waits until
    /// the last mapping is gone. Returns whether that happened within `limit` (`None` waits for ever, as VFIO does, and
    /// is only sane for an exporter that refuses importers which cannot be revoked).
    pub fn revoke(
        &self,
        set_revoked: impl FnOnce(&ResvGuard<'_>),
        limit: Option<Duration>,
    ) -> bool {
        let resv = self.shared.resv.lock();
        set_revoked(&resv);
        self.invalidate_mappings(&resv);
        drop(resv);
        self.wait_unmapped(limit)
    }

    /// Waits until no attachment has the buffer mapped; returns whether that happened within `limit`. Must not be called
    /// with the reservation lock held.
    pub fn wait_unmapped(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut maps = self.shared.maps();
        while *maps > 0 {
            let unmapped = &self.shared.unmapped;
            maps = match deadline {
                None => unmapped.wait(maps).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    unmapped.wait_timeout(maps, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }

    /// Maps the buffer for the exporter's CPU side. The exporter is asked once for any number of users.
    ///
    /// # Errors
    ///
    /// The exporter's refusal.
    ///
    /// # Panics
    ///
    /// If `resv` is the guard of another lock.
    #[doc(alias = "dma_buf_vmap")]
    pub fn vmap(&self, resv: &ResvGuard<'_>) -> Result<VmapGuard, ExporterError> {
        assert!(resv.protects(&self.shared.resv), "the caller holds this buffer's lock");
        let mut vmap = self.shared.vmap.lock().unwrap_or_else(PoisonError::into_inner);
        let map = match &mut *vmap {
            Some((map, users)) => {
                *users += 1;
                *map
            }
            None => {
                let map = self.shared.exporter.vmap(resv)?;
                *vmap = Some((map, 1));
                map
            }
        };
        Ok(VmapGuard { shared: Arc::clone(&self.shared), map })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
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
        let (id, _) = sys::identity(file.as_fd()).map_err(|errno| ExportError::System {
            call: "fstat",
            len,
            errno,
        })?;
        let shared = Shared::new(size, name.to_owned(), is_kernel, exporter, resv);
        registry().insert(id, Arc::downgrade(&shared));
        Ok(Self { shared, file: Arc::new(file), is_writable: true })
    }
}

impl Shared {
    fn new(
        size: u64,
        name: String,
        is_kernel: bool,
        exporter: Arc<dyn Exporter>,
        resv: Resv,
    ) -> Arc<Self> {
        Arc::new(Self {
            size,
            name,
            is_kernel,
            exporter,
            resv,
            attachments: Mutex::default(),
            maps: Mutex::new(0),
            unmapped: Condvar::new(),
            vmap: Mutex::new(None),
        })
    }

    pub(crate) fn exporter(&self) -> &dyn Exporter {
        &*self.exporter
    }

    pub(crate) fn resv(&self) -> &Resv {
        &self.resv
    }

    /// Puts an attachment on the list, under the lock.
    pub(crate) fn add(&self, _resv: &ResvGuard<'_>, attachment: Weak<AttachmentInner>) {
        self.attachments().push(attachment);
    }

    /// Forgets attachments that are gone.
    pub(crate) fn remove_dead(&self) {
        self.attachments().retain(|attachment| attachment.strong_count() > 0);
    }

    pub(crate) fn count_map(&self) {
        *self.maps() += 1;
    }

    pub(crate) fn uncount_map(&self) {
        *self.maps() -= 1;
        self.unmapped.notify_all();
    }

    fn attachments(&self) -> MutexGuard<'_, Vec<Weak<AttachmentInner>>> {
        self.attachments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn maps(&self) -> MutexGuard<'_, usize> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.exporter.release();
        registry().retain(|_, shared| shared.strong_count() > 0);
    }
}

impl VmapGuard {
    /// Where the memory is.
    pub fn map(&self) -> IosysMap {
        self.map
    }
}

impl Drop for VmapGuard {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        self.shared.resv.when_locked(move |resv| {
            let mut vmap = shared.vmap.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((map, users)) = &mut *vmap else { return };
            *users -= 1;
            if *users == 0 {
                shared.exporter.vunmap(resv, *map);
                *vmap = None;
            }
        });
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBuf")
            .field("name", &self.shared.name)
            .field("size", &self.shared.size)
            .field("exporter", &self.shared.exporter.name())
            .field("fd", &self.file)
            .finish()
    }
}

/// The buffers of this process by the identity of their file, so that two fds of one buffer lead to one object.
fn registry() -> MutexGuard<'static, BTreeMap<(u64, u64), Weak<Shared>>> {
    static REGISTRY: Mutex<BTreeMap<(u64, u64), Weak<Shared>>> = Mutex::new(BTreeMap::new());
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_new(len: u64, name: &str) -> Result<u64, ExportError> {
    if len == 0 {
        return Err(ExportError::Empty);
    }
    if name.len() > 200 || name.contains('\0') {
        return Err(ExportError::BadName { name: name.to_owned() });
    }
    len.checked_next_multiple_of(rustix::param::page_size() as u64).ok_or(ExportError::System {
        call: "memfd_create",
        len,
        errno: Errno::FBIG,
    })
}

/// Asks the exporter of a kernel dma-buf whether it can be mapped at all. A page is mapped and unmapped: there is no
/// question that costs less.
fn try_map(fd: BorrowedFd<'_>, number: i32, exporter: &str) -> Result<(), ImportError> {
    match sys::Pages::map(fd, 0, rustix::param::page_size(), false) {
        Ok(_) => Ok(()),
        Err(errno) => {
            Err(ImportError::CannotMap { fd: number, exporter: exporter.to_owned(), errno })
        }
    }
}

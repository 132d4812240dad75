//! The buffer itself.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use descriptors::Known;
use rustix::fs::{OFlags, SealFlags};
use rustix::io::Errno;

use crate::attachment::{AttachError, Attachment, AttachmentInfo, Inner as AttachmentInner};
use crate::export::{MEMFD, UDMABUF};
use crate::exporter::{Exporter, IosysMap};
use crate::gate::{ClaimError, GateSlot};
use crate::importer::Importer;
use crate::mapping::{Mapping, MmapError};
use crate::poll::PollQueue;
use crate::resv::{Resv, ResvGuard};
use crate::share::{self, ImportRefused};
use crate::sys;
use crate::system::SystemMemory;

/// Names of our memfds begin with this. It is how an importer tells a buffer that was meant to be
/// shared from any other memfd, which on Linux is not a dma-buf.
pub const MEMFD_PREFIX: &str = "peerdma:";

/// Memory that can be passed between drivers and processes as a file descriptor.
///
/// The fd is the reference: a process that has one can import the buffer, and the memory lives as
/// long as any fd, mapping or `DmaBuf` does. Within one process all handles made from fds of one
/// buffer share its exporter, its reservation lock and its attachments. Size is fixed for life.
#[doc(alias = "dma_buf")]
#[derive(Clone)]
pub struct DmaBuf {
    shared: Arc<Shared>,
    file: Arc<Known>,
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
    /// The file is not a dma-buf: neither one of the kernel nor a memfd that was exported as one
    /// (EINVAL).
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
    /// A memfd that names an exporter which does not answer for it (ENODEV): the exporter released
    /// the memory, its process is gone, or the name is forged.
    #[error("fd {fd}, which is named {name:?}, is no longer a dma-buf: {reason}")]
    NoExporter {
        /// The number.
        fd: i32,
        /// The name of the file.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A buffer of a process of another user (EINVAL).
    #[error("fd {fd} is a buffer of a process of user {uid}, and this one belongs to user {own}")]
    Stranger {
        /// The number.
        fd: i32,
        /// The user of the process that has the exporter's name.
        uid: u32,
        /// Ours.
        own: u32,
    },
    /// A real dma-buf that the CPU cannot map, and there is no other access to its memory.
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

/// What a buffer's file was when the buffer was made or imported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileFacts {
    pub(crate) ino: u64,
    pub(crate) flags: OFlags,
}

pub(crate) struct Shared {
    size: u64,
    pub(crate) facts: FileFacts,
    pub(crate) name: Mutex<String>,
    is_kernel: bool,
    exporter: Arc<dyn Exporter>,
    /// The exporter, if it is in another process.
    proxy: Option<Arc<share::Proxy>>,
    /// The opening of its file that the buffer was made with, if it was made here.
    origin: Option<Arc<Known>>,
    resv: Resv,
    attachments: Mutex<Vec<Weak<AttachmentInner>>>,
    /// Maps of attachments that exist now.
    maps: Mutex<usize>,
    pub(crate) unmapped: Condvar,
    /// Users of the exporter's CPU map. Changed under the reservation lock.
    pub(crate) vmap: Mutex<Option<(IosysMap, usize)>>,
    pub(crate) poll: Arc<PollQueue>,
}

impl DmaBuf {
    /// Takes part in the buffer behind `fd`, which the caller may close afterwards.
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
        // The reference first: whatever happens to the caller's number from here on, all looks are
        // at one file.
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
            return Ok(Self { shared, file: Arc::new(file), is_writable });
        }
        let facts = FileFacts { ino: id.1, flags };
        if !is_kernel && let Some((name, address)) = shared_name(fd) {
            // Asked without the lock: the exporter may need it.
            drop(registry);
            let proxy = share::import(address, id, inode_size)
                .map_err(|refused| import_refused(number, fd, refused))?;
            let shared = Self::adopt(id, facts, inode_size, name, proxy);
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
        Ok(Self { shared, file: Arc::new(file), is_writable })
    }

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
        self.shared.size
    }

    /// Why its owner took the memory away, for messages. `None` if it did not, or does not tell.
    pub fn why_gone(&self) -> Option<String> {
        self.shared.exporter.why_gone()
    }

    /// The exporter's name.
    pub fn exporter_name(&self) -> &str {
        self.shared.exporter.name()
    }

    /// Whether its bytes are known to lie in the host's memory, as those of a memfd, of udmabuf and
    /// of the system heap do. Where those of another dma-buf of the kernel lie only its driver
    /// knows.
    pub fn is_host_memory(&self) -> bool {
        match self.is_kernel() {
            true => matches!(self.exporter_name(), UDMABUF | "system"),
            false => self.exporter_name() == MEMFD,
        }
    }

    /// Whether the file is a dma-buf of the kernel.
    pub fn is_kernel(&self) -> bool {
        self.shared.is_kernel
    }

    /// Whether its descriptor lets it be written.
    pub fn is_writable(&self) -> bool {
        self.is_writable
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

    /// Maps `len` bytes at `offset` for the CPU; neither needs to be page aligned. An fd that is
    /// open for reading only gives a mapping that can only be read.
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
        Attachment::new(&self.shared, importer)
    }

    /// A place from which this process enters the buffer's [gate](crate::gate), if it has one:
    /// accesses to the memory of a table with an epoch start there.
    ///
    /// # Errors
    ///
    /// [`ClaimError`].
    pub fn gate_slot(&self) -> Result<Option<GateSlot>, ClaimError> {
        self.shared.exporter.gate_slot()
    }

    /// The process that the exporter lives in, if that is not this one; 0 if it has no number here.
    /// Attaching, pinning and mapping are then requests to it, and take as long as it takes.
    pub fn exporter_process(&self) -> Option<u32> {
        self.shared.exporter.process()
    }

    /// Puts a buffer of another process on the list of this one, unless another thread was first.
    fn adopt(
        id: (u64, u64),
        facts: FileFacts,
        size: u64,
        name: String,
        proxy: Arc<share::Proxy>,
    ) -> Arc<Shared> {
        let exporter = Arc::clone(&proxy) as _;
        let mut made = Shared::make(facts, size, name, false, exporter, Resv::new());
        made.proxy = Some(Arc::clone(&proxy));
        let made = Arc::new(made);
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

    /// Puts a new buffer on the list of this process.
    #[expect(clippy::too_many_arguments, reason = "what makes a buffer")]
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
        let mut shared = Shared::make(facts, size, name.to_owned(), is_kernel, exporter, resv);
        let file = Arc::new(Known::new(file));
        shared.origin = Some(Arc::clone(&file));
        let shared = Arc::new(shared);
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

impl Shared {
    fn make(
        facts: FileFacts,
        size: u64,
        name: String,
        is_kernel: bool,
        exporter: Arc<dyn Exporter>,
        resv: Resv,
    ) -> Self {
        Self {
            size,
            facts,
            name: Mutex::new(name),
            is_kernel,
            exporter,
            proxy: None,
            origin: None,
            resv,
            attachments: Mutex::default(),
            maps: Mutex::new(0),
            unmapped: Condvar::new(),
            vmap: Mutex::new(None),
            poll: Arc::default(),
        }
    }

    /// The exporter, if it is in another process.
    pub(crate) fn proxy(&self) -> Option<&share::Proxy> {
        self.proxy.as_deref()
    }

    /// The opening of its file that the buffer was made with, if it was made here.
    pub(crate) fn origin(&self) -> Option<&Arc<Known>> {
        self.origin.as_ref()
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn is_kernel(&self) -> bool {
        self.is_kernel
    }

    pub(crate) fn name(&self) -> String {
        self.name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Who is attached.
    pub(crate) fn attached(&self) -> Vec<AttachmentInfo> {
        let attachments: Vec<_> = self.attachments().iter().filter_map(Weak::upgrade).collect();
        attachments.iter().map(|attachment| attachment.info().clone()).collect()
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
        let mut maps = self.maps();
        *maps -= 1;
        // Nobody waits for anything but the last one, and each waking is a system call.
        if *maps == 0 {
            self.unmapped.notify_all();
        }
    }

    pub(crate) fn attachments(&self) -> MutexGuard<'_, Vec<Weak<AttachmentInner>>> {
        self.attachments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn maps(&self) -> MutexGuard<'_, usize> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.exporter.release();
        registry().retain(|_, shared| shared.strong_count() > 0);
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBuf")
            .field("name", &self.name())
            .field("size", &self.shared.size)
            .field("exporter", &self.shared.exporter.name())
            .field("fd", &self.file)
            .finish()
    }
}

type Registry = BTreeMap<(u64, u64), Weak<Shared>>;

/// The buffers of this process by the identity of their file, so that two fds of one buffer lead to
/// one object.
fn registry() -> MutexGuard<'static, Registry> {
    static REGISTRY: Mutex<Registry> = Mutex::new(BTreeMap::new());
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The buffers of this process that are still in use.
#[doc(alias = "dma_buf_iter_begin")]
pub(crate) fn all() -> Vec<Arc<Shared>> {
    registry().values().filter_map(Weak::upgrade).collect()
}

/// The registry, locked across a fork.
pub(crate) struct HeldRegistry(MutexGuard<'static, Registry>);

pub(crate) fn hold_registry() -> HeldRegistry {
    HeldRegistry(registry())
}

/// In the child: buffers whose exporter lives in the parent, or serves from there, are those of
/// another process.
pub(crate) fn forget_shared(HeldRegistry(mut registry): HeldRegistry) {
    registry.clear();
}

/// The name of a shared memfd, and the address of its exporter. Only with the seal that other
/// processes also require.
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

/// Asks the exporter of a kernel dma-buf whether it can be mapped at all. A page is mapped and
/// unmapped: no query costs less.
fn try_map(fd: BorrowedFd<'_>, number: i32, exporter: &str) -> Result<(), ImportError> {
    match sys::Pages::map(fd, 0, rustix::param::page_size(), false) {
        Ok(_) => Ok(()),
        Err(errno) => {
            Err(ImportError::CannotMap { fd: number, exporter: exporter.to_owned(), errno })
        }
    }
}

//! Information about a buffer, and about all buffers of this process.

use std::fmt;
use std::io::{self, SeekFrom};
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::attached::AttachmentInfo;
use crate::resv::Usage;
use crate::shared::Shared;
use crate::{DmaBuf, shared, sys};

/// One buffer, with the facts of a line of debugfs' `dma_buf/bufinfo` and of its fdinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufInfo {
    /// Size in bytes.
    pub size: u64,
    /// The flags with which its file was opened, as numbers of `open`.
    pub flags: u32,
    /// The mode of its file: 1 readable, 2 writable, 4 seekable.
    pub mode: u32,
    /// References in this process: handles, mappings and attachments.
    pub count: usize,
    /// The file's inode number.
    pub ino: u64,
    /// The exporter.
    pub exporter: String,
    /// Its name; empty if it was never named.
    pub name: String,
    /// Whether the file is a dma-buf of the kernel.
    pub is_kernel: bool,
    /// Fences that are not signaled, of the classes up to [`Usage::Read`]: the kernel also hides
    /// `Bookkeep`.
    pub fences: Vec<(Usage, String)>,
    /// The attached devices.
    pub attached: Vec<AttachmentInfo>,
}

/// All buffers of a process. Its [`Display`](fmt::Display) is the text of debugfs'
/// `dma_buf/bufinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufInfoList {
    /// In the order of their inode numbers.
    pub buffers: Vec<BufInfo>,
}

/// Why a buffer was not named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// It is too long (EINVAL).
    #[error("{name:?} is {} bytes long: a buffer's name has at most 31, and a NUL", name.len())]
    TooLong {
        /// The requested name.
        name: String,
    },
    /// A name ends at a NUL.
    #[error("{name:?} has a NUL in it")]
    Nul {
        /// The requested name.
        name: String,
    },
    /// The kernel refused.
    #[error("DMA_BUF_SET_NAME failed: {0}")]
    Kernel(Errno),
}

/// A position other than the start or the end (EINVAL).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a dma-buf is sought to its end or its start, and nowhere else")]
#[expect(clippy::exhaustive_structs, reason = "these are all the facts")]
pub struct SeekError;

/// The buffers of this process that are in use.
#[doc(alias = "dma_buf_iter_next")]
pub fn bufinfo() -> BufInfoList {
    // The registry's lock is not held while buffers are examined: the last handle of one may be
    // dropped here.
    let mut buffers: Vec<_> = shared::all().iter().map(BufInfo::of).collect();
    buffers.sort_by_key(|info| info.ino);
    BufInfoList { buffers }
}

impl DmaBuf {
    /// The buffer's name; empty if it was never named. For a kernel dma-buf this asks the kernel,
    /// since any process may name it.
    pub fn name(&self) -> String {
        let kernel = self.is_kernel().then(|| sys::dma_buf_names(self.fd()).1).flatten();
        kernel.unwrap_or_else(|| self.shared().name())
    }

    /// Names the buffer, at any time, even while devices are attached.
    ///
    /// # Errors
    ///
    /// [`NameError`].
    #[doc(alias = "DMA_BUF_SET_NAME")]
    pub fn set_name(&self, name: &str) -> Result<(), NameError> {
        if name.len() > sys::DMA_BUF_NAME_LEN {
            return Err(NameError::TooLong { name: name.to_owned() });
        }
        if name.contains('\0') {
            return Err(NameError::Nul { name: name.to_owned() });
        }
        if self.is_kernel() {
            let named = self.known_fd().and_then(|fd| sys::set_name(fd, name));
            named.map_err(NameError::Kernel)?;
        }
        let mut slot = self.shared().name.lock().unwrap_or_else(PoisonError::into_inner);
        name.clone_into(&mut slot);
        Ok(())
    }

    /// What `lseek` of the file returns: its size at the end, 0 at the start.
    ///
    /// # Errors
    ///
    /// [`SeekError`] for any other place.
    #[doc(alias = "lseek")]
    pub fn seek(&self, to: SeekFrom) -> Result<u64, SeekError> {
        match to {
            SeekFrom::End(0) => Ok(self.size()),
            SeekFrom::Start(0) => Ok(0),
            _ => Err(SeekError),
        }
    }

    /// One more fd for the buffer, closed by an exec or not.
    ///
    /// # Errors
    ///
    /// EMFILE; EBADF if the program closed the buffer's own descriptor.
    #[doc(alias = "dma_buf_fd")]
    pub fn dup_fd(&self, cloexec: bool) -> io::Result<OwnedFd> {
        let fd = self.known_fd()?;
        let dup = match cloexec {
            true => rustix::io::fcntl_dupfd_cloexec(fd, 0),
            false => rustix::io::dup(fd),
        };
        Ok(dup?)
    }

    /// Information about it.
    pub fn info(&self) -> BufInfo {
        let mut info = BufInfo::of(self.shared());
        info.name = self.name();
        // Without the references that `of` itself holds.
        info.count += 1;
        info
    }
}

impl BufInfo {
    /// The lines of fdinfo.
    pub fn fdinfo(&self) -> String {
        let (size, count, exporter) = (self.size, self.count.saturating_sub(1), &self.exporter);
        let name =
            if self.name.is_empty() { String::new() } else { format!("name:\t{}\n", self.name) };
        format!("size:\t{size}\ncount:\t{count}\nexp_name:\t{exporter}\n{name}")
    }

    fn of(shared: &Arc<Shared>) -> Self {
        let flags = shared.facts.flags;
        let access = match flags & OFlags::RWMODE {
            OFlags::RDONLY => 1,
            OFlags::WRONLY => 2,
            _ => 3,
        };
        let fences = shared.resv().fences(Usage::Read);
        Self {
            size: shared.size(),
            flags: flags.bits(),
            mode: access | 4,
            count: Arc::strong_count(shared).saturating_sub(1),
            ino: shared.facts.ino,
            exporter: shared.exporter().name().to_owned(),
            name: shared.name(),
            is_kernel: shared.is_kernel(),
            fences: fences.into_iter().map(|(fence, usage)| (usage, fence.to_string())).collect(),
            attached: shared.attached(),
        }
    }
}

impl fmt::Display for BufInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "<none>" } else { &self.name };
        let Self { size, flags, mode, count, ino, exporter, .. } = self;
        writeln!(
            f,
            "{size:08}\t{flags:08x}\t{mode:08x}\t{count:08}\t{exporter}\t{ino:08}\t{name}"
        )?;
        for (usage, fence) in &self.fences {
            writeln!(f, "\t{} fence:{fence}", usage.name())?;
        }
        writeln!(f, "\tAttached Devices:")?;
        for attached in &self.attached {
            writeln!(f, "\t{}", attached.importer())?;
        }
        writeln!(f, "Total {} devices attached\n", self.attached.len())
    }
}

impl fmt::Display for BufInfoList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nDma-buf Objects:")?;
        writeln!(
            f,
            "{:<8}\t{:<8}\t{:<8}\t{:<8}\texp_name\t{:<8}\tname",
            "size", "flags", "mode", "count", "ino"
        )?;
        for info in &self.buffers {
            info.fmt(f)?;
        }
        let bytes: u64 = self.buffers.iter().map(|info| info.size).sum();
        writeln!(f, "\nTotal {} objects, {bytes} bytes", self.buffers.len())
    }
}

//! Files that are read and written.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pci::Bdf;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::{Alignment, Error, Op, Result};

/// A file or a block device. A clone shares the same open file description.
#[derive(Clone)]
pub struct File {
    inner: Arc<Inner>,
}

struct Inner {
    fd: OwnedFd,
    path: PathBuf,
    alignment: Option<Alignment>,
    is_writable: bool,
}

/// How a file is opened. The default: for reading, with direct I/O if there is any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "programs build it")]
pub struct OpenOptions {
    /// Open for writing, too.
    pub write: bool,
    /// Create the file if it does not exist.
    pub create: bool,
    /// Whether I/O bypasses the page cache.
    pub direct: Direct,
}

/// Whether I/O bypasses the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no other answers")]
pub enum Direct {
    /// Where the file system can; otherwise a warning says so.
    #[default]
    IfPossible,
    /// Required: otherwise the file is not opened.
    Required,
    /// Through the page cache, which copies.
    No,
}

impl File {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// [`Error::Open`], [`Error::NoDirect`].
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let path = path.as_ref();
        let OpenOptions { write, create, direct } = *options;
        let mut flags = OFlags::CLOEXEC | if write { OFlags::RDWR } else { OFlags::RDONLY };
        flags.set(OFlags::CREATE, create);
        let open = |flags| rustix::fs::open(path, flags, Mode::from_raw_mode(0o644));
        let failed =
            |call| move |errno| Error::Open { path: path.display().to_string(), call, errno };
        if direct == Direct::No {
            return Ok(Self::new(open(flags).map_err(failed("open"))?, path, None, write));
        }
        let why = match open(flags | OFlags::DIRECT) {
            Ok(fd) => match Alignment::of(&fd).map_err(failed("statx"))? {
                Some(alignment) => return Ok(Self::new(fd, path, Some(alignment), write)),
                None => "statx says so".to_owned(),
            },
            // `open(2)`: the file system does not support the flag.
            Err(Errno::INVAL) => format!("open: {}", Errno::INVAL),
            Err(errno) => return Err(failed("open")(errno)),
        };
        if direct == Direct::Required {
            return Err(Error::NoDirect { path: path.display().to_string(), why });
        }
        tracing::warn!(
            target: "peerdma::storage",
            "{}: no direct I/O here ({why}): its bytes are copied through the page cache",
            path.display()
        );
        Ok(Self::new(open(flags).map_err(failed("open"))?, path, None, write))
    }

    fn new(fd: OwnedFd, path: &Path, alignment: Option<Alignment>, is_writable: bool) -> Self {
        Self { inner: Arc::new(Inner { fd, path: path.to_owned(), alignment, is_writable }) }
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The current size in bytes; for a block device, the size of the device.
    ///
    /// # Errors
    ///
    /// [`Error::Open`].
    pub fn size(&self) -> Result<u64> {
        let failed = |call| move |errno| Error::Open { path: self.shown(), call, errno };
        let stat = rustix::fs::fstat(&self.inner.fd).map_err(failed("fstat"))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
            return rustix::fs::seek(&self.inner.fd, SeekFrom::End(0)).map_err(failed("lseek"));
        }
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Whether I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.inner.alignment.is_some()
    }

    /// Whether it was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.inner.is_writable
    }

    /// The alignment that requests must have.
    pub fn alignment(&self) -> Alignment {
        self.inner.alignment.unwrap_or(Alignment::NONE)
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    #[doc(alias = "fdatasync")]
    pub fn sync(&self) -> Result<()> {
        rustix::fs::fdatasync(&self.inner.fd).map_err(|errno| Error::Io {
            op: Op::Write,
            path: self.shown(),
            offset: 0,
            done: 0,
            errno,
        })
    }

    /// The PCI function of the controller that the file is behind, according to sysfs. `None` if
    /// there is none: a file in memory, a network disk, a volume of several disks.
    pub fn controller(&self) -> Option<Bdf> {
        let stat = rustix::fs::fstat(&self.inner.fd).ok()?;
        let is_block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        let dev = if is_block { stat.st_rdev } else { stat.st_dev };
        let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
        let disk = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        controller_of(&disk).or_else(|| controller_of_subsystem(&disk))
    }

    pub(crate) fn shown(&self) -> String {
        self.inner.path.display().to_string()
    }
}

/// The last function in the path of a disk: the second of `.../0000:00:1d.0/0000:03:00.0/nvme`.
fn controller_of(disk: &Path) -> Option<Bdf> {
    disk.iter().rev().find_map(|name| name.to_str()?.parse().ok())
}

/// The function of a disk that belongs to a subsystem of NVMe rather than to a controller
/// (`nvme-subsystem/nvme-subsys0/nvme0n1`), where there is one path to it.
fn controller_of_subsystem(disk: &Path) -> Option<Bdf> {
    let is_subsystem =
        |dir: &&Path| dir.parent().is_some_and(|above| above.ends_with("nvme-subsystem"));
    let links = std::fs::read_dir(disk.ancestors().find(is_subsystem)?).ok()?.flatten();
    let paths = links.filter(|link| link.file_type().is_ok_and(|kind| kind.is_symlink()));
    let paths = paths.filter_map(|link| std::fs::canonicalize(link.path()).ok());
    let mut functions = paths.filter_map(|path| controller_of(&path));
    let one = functions.next()?;
    functions.all(|other| other == one).then_some(one)
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.inner.path)
            .field("alignment", &self.inner.alignment)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_of_a_subsystem_is_behind_its_only_controller() {
        let root = std::env::temp_dir().join(format!("peerdma-subsystem-{}", std::process::id()));
        let subsystem = root.join("virtual/nvme-subsystem/nvme-subsys0");
        let disk = subsystem.join("nvme0n1/nvme0n1p1");
        let controller = |at: &str| {
            let place = root.join(at);
            std::fs::create_dir_all(&place).expect("writable");
            let name = place.file_name().expect("a name");
            std::os::unix::fs::symlink(&place, subsystem.join(name)).expect("writable");
        };
        std::fs::create_dir_all(&disk).expect("writable");
        let before = controller_of_subsystem(&disk);
        controller("pci0000:00/0000:00:1d.0/0000:03:00.0/nvme/nvme0");
        let one = controller_of_subsystem(&disk);
        controller("pci0000:80/0000:80:01.0/0000:81:00.0/nvme/nvme1");
        let two = controller_of_subsystem(&disk);
        std::fs::remove_dir_all(&root).expect("ours");
        let found = "0000:03:00.0".parse().expect("an address");
        assert_eq!([before, one, two], [None, Some(found), None]);
    }

    #[test]
    fn a_disk_is_behind_the_last_function_of_its_path() {
        let rows = [
            (
                "/sys/devices/pci0000:00/0000:00:1d.0/0000:03:00.0/nvme/nvme0/nvme0n1/nvme0n1p2",
                Some("0000:03:00.0"),
            ),
            ("/sys/devices/virtual/block/loop0", None),
        ];
        for (path, expected) in rows {
            let expected = expected.map(|bdf| bdf.parse::<Bdf>().expect("an address"));
            assert_eq!(controller_of(Path::new(path)), expected, "{path}");
        }
    }
}

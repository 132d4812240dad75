//! The tree as real files, so that programs can get real descriptors of it.
//!
//! The first choice is a tmpfs that is mounted nowhere: only its root descriptor exists, it
//! vanishes with the last descriptor in it, whichever process dies, and `/proc/self/fd` shows its
//! files as `/sys/...`. A helper process makes it, since an unprivileged process needs a user
//! namespace of its own for that. Where that is forbidden, and for the preload library, which needs
//! a path, it is a directory in `XDG_RUNTIME_DIR`, `TMPDIR`, `/dev/shm` or `/tmp`; its maker holds
//! a lock on it and removes it. A directory whose lock is free belonged to a process that was
//! killed: the next run removes it.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::thread::UnshareFlags;

use super::channel::{self, Message};
use super::process;
use crate::sysfs::Tree;

/// The prefix of the names of our directories; a process id and a number follow.
const PREFIX: &str = "peerdma-sysfs.";

/// A tree that exists as real files.
#[derive(Debug)]
pub(super) struct Backing {
    root: OwnedFd,
    named: Option<PathBuf>,
}

impl Backing {
    /// Creates the tree where it leaves no trace if possible, otherwise in a directory.
    pub(super) fn create(tree: &Tree) -> io::Result<Self> {
        match detached(tree) {
            Ok(root) => Ok(Self { root, named: None }),
            Err(error) => {
                let hint = sandbox::hint(error.raw_os_error());
                tracing::info!(%error, "door: no mount of our own, the tree is in a directory{hint}");
                Self::create_named(tree)
            }
        }
    }

    /// Creates the tree in a directory with a name.
    pub(super) fn create_named(tree: &Tree) -> io::Result<Self> {
        let base = temporary_directory();
        sweep(&base);
        let (path, root) = claim(&base)?;
        let backing = Self { root: root.into(), named: Some(path) };
        if let Err(error) = tree.materialise(backing.root()) {
            backing.remove();
            return Err(error);
        }
        Ok(backing)
    }

    /// A backing with nothing in it.
    pub(super) fn empty() -> io::Result<Self> {
        let root = rustix::fs::open("/dev/null", rustix::fs::OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root, named: None })
    }

    /// Takes over a backing that another process made.
    pub(super) fn adopt(root: OwnedFd, named: Option<PathBuf>) -> Self {
        Self { root, named }
    }

    /// The root of the backing, which stands for `/`.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The directory, if it has a name.
    pub(super) fn named(&self) -> Option<&Path> {
        self.named.as_deref()
    }

    /// A path as `/proc` shows it, in the program's terms: a file of the backing is a file of
    /// `/sys`.
    pub(super) fn virtual_path(&self, path: &Path) -> PathBuf {
        match self.named.as_ref().and_then(|root| path.strip_prefix(root).ok()) {
            Some(below) => Path::new("/").join(below),
            None => path.to_owned(),
        }
    }

    /// A path to an open file, for calls that take only paths.
    pub(super) fn path_of(&self, file: BorrowedFd<'_>) -> String {
        format!("/proc/self/fd/{}", file.as_raw_fd())
    }

    /// Removes a backing with a name. One without a name vanishes by itself.
    pub(super) fn remove(self) {
        if let Some(path) = &self.named {
            discard(path);
        }
    }
}

/// A tmpfs with the tree in it, mounted nowhere and read-only.
fn detached(tree: &Tree) -> io::Result<OwnedFd> {
    let (here, there) = channel::pair()?;
    match process::fork()? {
        Some(helper) => {
            drop(there);
            let message = here.receive();
            let _ = rustix::process::waitpid(Some(helper), rustix::process::WaitOptions::empty());
            match message? {
                Some(Message::Filtered(root)) => Ok(root),
                Some(Message::Unfiltered(errno)) => Err(io::Error::from_raw_os_error(errno)),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        None => {
            drop(here);
            let message = match mount(tree) {
                Ok(root) => Message::Filtered(root),
                Err(error) => Message::Unfiltered(error.raw_os_error().unwrap_or(libc::EIO)),
            };
            let _ = there.send(&message);
            // SAFETY: _exit ends the process at once; the helper owns nothing that needs more.
            unsafe { libc::_exit(0) }
        }
    }
}

fn mount(tree: &Tree) -> io::Result<OwnedFd> {
    let fs = match rustix::mount::fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC) {
        Err(rustix::io::Errno::PERM) => {
            become_privileged()?;
            rustix::mount::fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?
        }
        other => other?,
    };
    rustix::mount::fsconfig_set_string(fs.as_fd(), c"mode", c"755")?;
    rustix::mount::fsconfig_create(fs.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    rustix::process::umask(Mode::empty());
    tree.materialise(root.as_fd())?;
    // From here on the file system itself is read-only, whichever descriptor is used.
    rustix::mount::fsconfig_set_flag(fs.as_fd(), c"ro")?;
    rustix::mount::fsconfig_reconfigure(fs.as_fd())?;
    Ok(root)
}

/// Enters a user namespace, in which this process may mount a tmpfs; files in it belong to the same
/// user as before.
fn become_privileged() -> io::Result<()> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    // SAFETY: the helper has one thread, and file descriptors (CLONE_FILES) are not among what is
    // unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

/// The parent directory of our directories: the user's own if there is one.
fn temporary_directory() -> PathBuf {
    let named = ["XDG_RUNTIME_DIR", "TMPDIR"].into_iter().filter_map(environment::var_os);
    named
        .map(PathBuf::from)
        .chain(["/dev/shm".into()])
        .find(|path| path.is_absolute() && is_writable(path))
        .unwrap_or_else(|| PathBuf::from("/tmp"))
}

fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok()
}

/// Creates and locks a directory that no other process has.
fn claim(base: &Path) -> io::Result<(PathBuf, File)> {
    let me = rustix::process::getpid();
    for number in 0..1000 {
        let path = base.join(format!("{PREFIX}{me}.{number}"));
        match DirBuilder::new().mode(0o755).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            other => other?,
        }
        // A sweeper may have found the directory before we locked it; then it is gone, or it
        // belongs to another process.
        if let Some(root) = lock(&path) {
            return Ok((path, root));
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Removes directories of this user that no process holds.
fn sweep(base: &Path) {
    let me = rustix::process::geteuid().as_raw();
    let ours = |name: &OsString| name.to_str().is_some_and(|name| name.starts_with(PREFIX));
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let is_mine = entry.metadata().is_ok_and(|data| data.is_dir() && data.uid() == me);
        if is_mine && ours(&entry.file_name()) {
            let path = entry.path();
            if lock(&path).is_some() {
                discard(&path);
            }
        }
    }
}

/// Opens and locks a directory, if no process holds it and it still exists.
fn lock(path: &Path) -> Option<File> {
    let flags =
        rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let (held, there) = (file.metadata().ok()?, fs::symlink_metadata(path).ok()?);
    ((held.dev(), held.ino()) == (there.dev(), there.ino())).then_some(file)
}

fn discard(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!(path = %path.display(), %error, "door: the directory of the tree was not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_whose_holder_is_gone_is_swept() {
        let base = std::env::temp_dir().join(format!("peerdma-sweep-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let (held, lock) = claim(&base).unwrap();
        let (left, gone) = claim(&base).unwrap();
        release(gone);
        sweep(&base);
        assert!(held.exists() && !left.exists());
        release(lock);
        sweep(&base);
        fs::remove_dir(&base).unwrap();
    }

    /// Unlocks a directory, also for the children that other tests fork at this moment: they have
    /// a copy of the descriptor, and the lock belongs to both (flock(2)).
    fn release(root: File) {
        rustix::fs::flock(&root, FlockOperation::Unlock).unwrap();
    }

    #[test]
    fn paths_of_a_directory_are_paths_of_sys() {
        let root = File::open("/").unwrap().into();
        let backing = Backing::adopt(root, Some("/tmp/peerdma-sysfs.1.0".into()));
        let path = backing.virtual_path(Path::new("/tmp/peerdma-sysfs.1.0/sys/class"));
        assert_eq!(path, Path::new("/sys/class"));
        assert_eq!(backing.virtual_path(Path::new("/tmp")), Path::new("/tmp"));
    }
}

//! Answers one call: reads its path, and if the path is ours, does in the backing what the call
//! asks for.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::backing::Backing;
use super::call::{self, Ask, Call};
use super::counters::Counter;
use super::listener::{Answer, Listener, Notification};
use super::netlink::Sockets;
use super::place::{self, Place};
use super::remote;
use super::socket_call;
use crate::live::Live;
use crate::sysfs::Device;

/// The longest link target that `readlink` returns.
const LINK_MAX: usize = 4096;

/// The open flags that have a meaning in the tree. O_PATH has none: the kernel gives a program no
/// such descriptor (`SECCOMP_IOCTL_NOTIF_ADDFD`), and what it gets instead can also be read.
const OPEN_FLAGS: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// How often to retry a walk while mounts and renames elsewhere interfere.
const MOST_TRIES: u32 = 1000;

/// The `openat2` resolve flags that the tree can satisfy: it has no mounts and no magic links.
const RESOLVE_FLAGS: ResolveFlags =
    ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);

/// What a call returns.
pub(super) fn answer(
    backing: &Backing,
    listener: &Listener,
    sockets: &Sockets,
    live: &Arc<Live>,
    notification: &Notification,
) -> Answer {
    if let Some(ask) = socket_call::decode(notification.number, &notification.args) {
        return sockets.answer(live, notification, ask);
    }
    let Some(call) = call::decode(notification.number, &notification.args) else {
        return Answer::Continue;
    };
    // Let the kernel refuse a path that cannot be read, with its own errno; likewise for a
    // process whose memory we may not read.
    let Ok(path) = remote::Path::read(notification.tid, call.path) else {
        return Answer::Continue;
    };
    let path = path.as_bytes();
    let may_be_ours = place::may_be_ours(path);
    let place = if path.starts_with(b"/") {
        if may_be_ours { place::find(path) } else { None }
    } else if may_be_ours || matches!(call.ask, Ask::Open(_) | Ask::Open2 { .. }) {
        // A counter has any name, in a directory that the program has open.
        base(backing, notification.tid, call.dir)
            .map(|base| [&base, &b"/"[..], path].concat())
            .filter(|path| may_be_ours || place::may_be_counter(path))
            .and_then(|path| place::find(&path))
    } else {
        None
    };
    // While we read its memory and its descriptors, the thread may have died, and its thread id
    // may belong to another by now.
    if !listener.is_waiting(notification.id) {
        return Answer::Continue;
    }
    let (path, is_listing) = match place {
        None => return Answer::Continue,
        Some(Place::Served(path)) => (path, false),
        Some(Place::Listing(path)) => (path.as_bytes().to_vec(), true),
    };
    let Ok(path) = CString::new(path) else { return Answer::Continue };
    let target = Target { backing, tid: notification.tid, path };
    let answer = if is_listing { target.list(call) } else { target.answer(call) };
    tracing::debug!(tid = notification.tid, path = ?target.path, ask = ?call.ask, ?answer, "door");
    answer
}

/// The directory a relative path starts from, as an absolute path.
fn base(backing: &Backing, tid: i32, dir: i32) -> Option<Vec<u8>> {
    let link = if dir == libc::AT_FDCWD {
        format!("/proc/{tid}/cwd")
    } else {
        format!("/proc/{tid}/fd/{dir}")
    };
    let base = std::fs::read_link(link).ok()?;
    Some(backing.virtual_path(&base).as_os_str().as_bytes().to_vec())
}

/// A path of ours, in the program that named it.
struct Target<'a> {
    backing: &'a Backing,
    tid: i32,
    path: CString,
}

impl Target<'_> {
    fn answer(&self, call: Call) -> Answer {
        self.attempt(call).unwrap_or_else(Answer::Error)
    }

    fn attempt(&self, call: Call) -> Result<Answer, Errno> {
        Ok(match call.ask {
            Ask::Open(flags) => self.open(flags, ResolveFlags::empty())?,
            Ask::Open2 { how, size } => self.open2(how, size)?,
            Ask::Stat { out, follow } => {
                let mut bytes = stat(self.find(follow)?)?;
                self.device().inspect(|device| device.show_stat(&mut bytes));
                self.give(out, &bytes)?;
                Answer::Value(0)
            }
            Ask::Statx { out, follow, mask } => {
                let mut bytes = statx(self.find(follow)?, mask)?;
                self.device().inspect(|device| device.show_statx(&mut bytes));
                self.give(out, &bytes)?;
                Answer::Value(0)
            }
            Ask::Access { mode, follow } => {
                self.access(mode, follow)?;
                Answer::Value(0)
            }
            Ask::ReadLink { out, size } => self.read_link(out, size)?,
            Ask::GetXattr { follow } => {
                self.find(follow)?;
                Answer::Error(Errno::OPNOTSUPP)
            }
            Ask::ListXattr { follow } => {
                self.find(follow)?;
                Answer::Value(0)
            }
        })
    }

    /// Opening such a directory for reading returns the merged listing; anything else is left to
    /// the kernel, if it has the directory.
    fn list(&self, call: Call) -> Answer {
        match call.ask {
            Ask::Open(flags) if flags & (libc::O_PATH | libc::O_ACCMODE) as u64 == 0 => {
                self.open(flags, ResolveFlags::empty()).unwrap_or(Answer::Continue)
            }
            _ if self.is_the_kernels() => Answer::Continue,
            _ => self.answer(call),
        }
    }

    fn is_the_kernels(&self) -> bool {
        rustix::fs::access(self.path.as_c_str(), rustix::fs::Access::EXISTS).is_ok()
    }

    fn open(&self, flags: u64, resolve: ResolveFlags) -> Result<Answer, Errno> {
        let flags = OFlags::from_bits_retain(flags as u32);
        let writes = flags.intersects(OFlags::ACCMODE | OFlags::TRUNC);
        if writes && !flags.contains(OFlags::PATH) {
            let file = self.find(!flags.contains(OFlags::NOFOLLOW))?;
            let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
            // The kernel refuses to open an attribute without write permission even for root
            // (kernfs_fop_open).
            return Err(match kind {
                rustix::fs::FileType::Directory => Errno::ISDIR,
                // A device without a driver.
                rustix::fs::FileType::Socket => Errno::NXIO,
                _ => Errno::ACCESS,
            });
        }
        let file = self.resolve(flags & OPEN_FLAGS, resolve)?;
        if place::may_be_counter(self.path.as_bytes())
            && !flags.contains(OFlags::PATH)
            && let Ok(path) = std::fs::read_link(self.backing.path_of(file.as_fd()))
            && let Some(counter) = Counter::of(&self.backing.virtual_path(&path))
        {
            let cloexec = flags.contains(OFlags::CLOEXEC);
            return Ok(Answer::Counter { counter, file, cloexec });
        }
        Ok(Answer::File { file, cloexec: flags.contains(OFlags::CLOEXEC) })
    }

    fn open2(&self, how: u64, size: u64) -> Result<Answer, Errno> {
        // struct open_how: flags, mode, resolve, each 64 bits.
        let mut bytes = [0_u8; 24];
        if size < 24 || remote::read(self.tid, how, &mut bytes)? != bytes.len() {
            return Ok(Answer::Continue);
        }
        let field = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let resolve = ResolveFlags::from_bits_retain(field(16));
        // A walk confined to its starting directory is left to the kernel: that directory is open.
        if !RESOLVE_FLAGS.contains(resolve) {
            return Ok(Answer::Continue);
        }
        self.open(field(0), resolve)
    }

    fn access(&self, mode: u32, follow: bool) -> Result<(), Errno> {
        let file = self.find(follow)?;
        let path = self.backing.path_of(file.as_fd());
        let access = rustix::fs::Access::from_bits_retain(mode);
        match rustix::fs::accessat(rustix::fs::CWD, path, access, AtFlags::empty()) {
            // The backing is mounted read-only; in the kernel's sysfs the file itself is read-only.
            Err(Errno::ROFS) => Err(Errno::ACCESS),
            other => other,
        }
    }

    fn read_link(&self, out: u64, size: u64) -> Result<Answer, Errno> {
        if size == 0 {
            return Err(Errno::INVAL);
        }
        let link = self.find(false)?;
        let target = rustix::fs::readlinkat(&link, c"", Vec::with_capacity(LINK_MAX)).map_err(
            // With an empty path, the kernel returns ENOENT for a file that is not a link.
            |errno| if errno == Errno::NOENT { Errno::INVAL } else { errno },
        )?;
        let target = target.as_bytes();
        let fits = target.len().min(usize::try_from(size).unwrap_or(usize::MAX));
        self.give(out, &target[..fits])?;
        Ok(Answer::Value(fits as i64))
    }

    /// The name itself, opened with O_PATH.
    fn find(&self, follow: bool) -> Result<OwnedFd, Errno> {
        let nofollow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        self.resolve(OFlags::PATH | nofollow, ResolveFlags::empty())
    }

    fn resolve(&self, flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
        let once = || {
            rustix::fs::openat2(
                self.backing.root(),
                self.path.as_c_str(),
                flags | OFlags::CLOEXEC,
                Mode::empty(),
                resolve | ResolveFlags::IN_ROOT,
            )
        };
        // A mount or a rename anywhere in the system while a ".." is walked makes the kernel give
        // up (openat2(2)). With RESOLVE_CACHED the program must get that answer.
        let mut found = once();
        let mut tries = 1;
        while found.as_ref().err() == Some(&Errno::AGAIN)
            && !resolve.contains(ResolveFlags::CACHED)
            && tries < MOST_TRIES
        {
            found = once();
            tries += 1;
        }
        found
    }

    /// The character device that the path names, if it does.
    fn device(&self) -> Option<Device> {
        Device::named(self.path.to_str().ok()?)
    }

    fn give(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        remote::write(self.tid, address, bytes)
    }
}

/// The kernel's `struct stat`, as bytes: the program gets it unchanged.
fn stat(file: OwnedFd) -> Result<[u8; size_of::<libc::stat>()], Errno> {
    let mut out = [0; size_of::<libc::stat>()];
    // SAFETY: on 64-bit Linux the kernel's struct stat is libc's, so `out` has room for what the
    // call writes; the path is an empty string.
    let result = unsafe {
        libc::syscall(
            libc::SYS_newfstatat,
            file.as_raw_fd(),
            c"".as_ptr(),
            out.as_mut_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    check(result).map(|()| out)
}

/// The kernel's `struct statx`, as bytes.
fn statx(file: OwnedFd, mask: u32) -> Result<[u8; size_of::<libc::statx>()], Errno> {
    let mut out = [0; size_of::<libc::statx>()];
    // SAFETY: `out` has the size of struct statx, which is fixed at 256 bytes; the path is an empty
    // string.
    let result = unsafe {
        libc::syscall(
            libc::SYS_statx,
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            mask,
            out.as_mut_ptr(),
        )
    };
    check(result).map(|()| out)
}

fn check(result: libc::c_long) -> Result<(), Errno> {
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

//! What the preload library calls.

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::IntoRawFd;
use std::sync::Arc;

use crate::boundary::{self, Process, control};
use crate::file::{File, Kind};
use crate::maps::{self, Maps};
use crate::refusal::{Result, refused};
use crate::state::{Caller, State};
use crate::{buffer, common, errno, vfio};

/// The functions that the preload library calls. Both come from the same build, so the table has
/// no version.
#[repr(C)]
pub struct FileOps {
    /// Opens a node of the GPU with this index; [`Kind`] says which node.
    open: extern "C" fn(node: c_int, kind: c_int, flags: c_int) -> c_int,
    /// Whether a descriptor refers to a node.
    owns: extern "C" fn(fd: c_int) -> bool,
    /// Which node a descriptor refers to: the index of its GPU, and its kind. -1 if it is no node.
    node: extern "C" fn(fd: c_int, kind: &mut c_int) -> c_int,
    /// `ioctl` on a node.
    ioctl: unsafe extern "C" fn(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int,
    /// `mmap` of a node.
    mmap: Mmap,
    /// A range is about to be unmapped or replaced. Cheap if none of our mappings is in it.
    forget: extern "C" fn(addr: usize, len: usize),
    /// Whether a range touches a mapping of ours, which cannot be moved or grown.
    is_mapped: extern "C" fn(addr: usize, len: usize) -> bool,
    /// A descriptor that was a buffer is closed, perhaps by this library.
    closed: extern "C" fn(),
    /// `ioctl` on a buffer's file.
    buffer_ioctl: unsafe extern "C" fn(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int,
    /// `mmap` of a buffer's file.
    buffer_mmap: Mmap,
    /// Which of these events are ready on a buffer's file.
    buffer_poll: extern "C" fn(fd: c_int, events: c_int) -> c_int,
    /// `lseek` on a buffer's file.
    buffer_seek: extern "C" fn(fd: c_int, offset: i64, whence: c_int) -> i64,
    /// `pread` on a node.
    read: unsafe extern "C" fn(fd: c_int, out: *mut c_void, len: usize, offset: i64) -> isize,
    /// `pwrite` on a node.
    write: unsafe extern "C" fn(fd: c_int, from: *const c_void, len: usize, offset: i64) -> isize,
    /// The program has closed a node.
    node_closed: extern "C" fn(),
}

type Mmap = unsafe extern "C" fn(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void;

static FILE_OPS: FileOps = FileOps {
    open,
    owns,
    node,
    ioctl,
    mmap,
    forget,
    is_mapped,
    closed,
    buffer_ioctl,
    buffer_mmap,
    buffer_poll,
    buffer_seek,
    read,
    write,
    node_closed,
};

/// The table of functions behind the nodes, in the process whose hooks are `process`.
pub fn file_ops(process: &'static Process) -> *const FileOps {
    boundary::set(process);
    &raw const FILE_OPS
}

extern "C" fn open(node: c_int, kind: c_int, flags: c_int) -> c_int {
    control("open of a DRM node", -1, || {
        if let Some(process) = boundary::process() {
            (process.opening)();
        }
        let opened = State::here_or_new().and_then(|state| {
            let node = usize::try_from(node).map_err(|_| libc::ENXIO)?;
            state.open(node, Kind::of(kind).ok_or(libc::ENXIO)?, flags)
        });
        or_minus_one(opened.map(IntoRawFd::into_raw_fd))
    })
}

extern "C" fn owns(fd: c_int) -> bool {
    State::last().is_some_and(|state| state.known(fd).is_some())
}

extern "C" fn node(fd: c_int, kind: &mut c_int) -> c_int {
    let found = here(fd).ok().and_then(|(state, ino)| state.number(&*state.file(ino)?));
    let Some((index, found)) = found else { return -1 };
    *kind = found as c_int;
    c_int::try_from(index).unwrap_or(-1)
}

unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    control("ioctl of a DRM node", -1, || {
        let answer = here(fd).and_then(|(state, ino)| {
            state.sweep(Caller::Program);
            dmabuf::sweep();
            let file = state.file(ino).ok_or(libc::EBADF)?;
            // SAFETY: contract: the argument points to what the request needs.
            unsafe { common::ioctl(state, &file, request, arg) }
        });
        or_minus_one(answer)
    })
}

unsafe extern "C" fn buffer_ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    control("ioctl of a dma-buf", -1, || {
        // SAFETY: contract: the argument points to what the request needs.
        let answer = unsafe { buffer::ioctl(fd, request, arg) };
        or_minus_one(answer.map(|()| 0))
    })
}

unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    control("mmap of a DRM node", libc::MAP_FAILED, || {
        let wanted = maps::Wanted { addr, len, prot, flags };
        let answer = here(fd).and_then(|(state, ino)| {
            let offset = u64::try_from(offset).map_err(|_| libc::EINVAL)?;
            let file = state.file(ino).ok_or(libc::EBADF)?;
            let object = file.find(state, &wanted, offset)?;
            let len = wanted.check()?;
            maps::settle(&object);
            let offered = object.bo.mmap_backing(0, len).map_err(|error| refused(&error))?;
            // SAFETY: contract: the program may give up whatever it has mapped at a fixed address.
            unsafe { Maps::map(&wanted, offered) }
        });
        or_failed(answer)
    })
}

unsafe extern "C" fn buffer_mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    control("mmap of a dma-buf", libc::MAP_FAILED, || {
        let wanted = maps::Wanted { addr, len, prot, flags };
        let page = rustix::param::page_size() as u64;
        let offset = u64::try_from(offset).ok().filter(|offset| offset.is_multiple_of(page));
        or_failed(match offset {
            // SAFETY: contract: the program may give up whatever it has mapped at a fixed address.
            Some(offset) => unsafe { buffer::mmap(fd, &wanted, offset) },
            None => Err(libc::EINVAL),
        })
    })
}

extern "C" fn buffer_poll(fd: c_int, events: c_int) -> c_int {
    control("poll of a dma-buf", libc::POLLERR.into(), || buffer::poll(fd, events))
}

extern "C" fn buffer_seek(fd: c_int, offset: i64, whence: c_int) -> i64 {
    control("lseek of a dma-buf", -1, || match buffer::seek(fd, offset, whence) {
        Ok(at) => at,
        Err(error) => or_minus_one(Err(error)).into(),
    })
}

extern "C" fn forget(addr: usize, len: usize) {
    if let Some(maps) = Maps::here() {
        maps.forget(addr, len);
    }
}

extern "C" fn is_mapped(addr: usize, len: usize) -> bool {
    Maps::here().is_some_and(|maps| maps.touches(addr, len))
}

extern "C" fn closed() {
    control("close of a dma-buf", (), || let_go(Caller::Anybody));
}

extern "C" fn node_closed() {
    control("close of a DRM node", (), || let_go(Caller::Program));
}

fn let_go(caller: Caller) {
    if let Some(state) = State::here() {
        state.sweep(caller);
    }
    dmabuf::sweep();
}

unsafe extern "C" fn read(fd: c_int, out: *mut c_void, len: usize, offset: i64) -> isize {
    control("read of a DRM node", -1, || {
        let wanted = vfio::Span { len, offset };
        let device = |file: &Arc<File>| {
            // SAFETY: contract: there is room for that many bytes.
            unsafe { vfio::read(file, out.cast(), wanted) }
        };
        read_or_written(
            here(fd).and_then(|(state, ino)| device(&state.file(ino).ok_or(libc::EBADF)?)),
        )
    })
}

unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: usize, offset: i64) -> isize {
    control("write of a DRM node", -1, || {
        let wanted = vfio::Span { len, offset };
        let device = |file: &Arc<File>| {
            // SAFETY: contract: there are that many bytes.
            unsafe { vfio::write(file, from.cast(), wanted) }
        };
        read_or_written(
            here(fd).and_then(|(state, ino)| device(&state.file(ino).ok_or(libc::EBADF)?)),
        )
    })
}

fn read_or_written(answer: Result<usize>) -> isize {
    // CAST: the count fits an `isize`, or libc would have refused the call.
    answer.map_or_else(|error| or_minus_one(Err(error)) as isize, |len| len as isize)
}

/// The state of this process, and the inode of one of its nodes. A node inherited from a parent is
/// refused.
fn here(fd: c_int) -> Result<(&'static State, u64)> {
    let inherited = || {
        tracing::debug!(target: "peerdma::drm", "fd {fd} was opened before this process was forked");
        libc::ENODEV
    };
    let state = State::here().ok_or_else(inherited)?;
    let (ino, is_own) = state.known(fd).ok_or(libc::EBADF)?;
    if is_own { Ok((state, ino)) } else { Err(inherited()) }
}

fn or_failed(answer: Result<*mut c_void>) -> *mut c_void {
    answer.unwrap_or_else(|error| {
        errno::set(error);
        libc::MAP_FAILED
    })
}

fn or_minus_one(answer: Result<c_int>) -> c_int {
    answer.unwrap_or_else(|error| {
        errno::set(error);
        -1
    })
}

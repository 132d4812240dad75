//! Fences of the kernel as files: `<linux/sync_file.h>`, and the two requests of a dma-buf about
//! them.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{Setter, Updater, ioctl, opcode};

/// What a sync_file reports about itself.
#[derive(Clone, Debug)]
pub(crate) struct FileInfo {
    pub(crate) name: String,
    /// 1 signaled, 0 active, negative errno.
    pub(crate) status: i32,
    pub(crate) fences: Vec<FenceInfo>,
}

/// What a sync_file reports about one of its fences.
#[derive(Clone, Debug)]
pub(crate) struct FenceInfo {
    pub(crate) timeline: String,
    pub(crate) driver: String,
    pub(crate) status: i32,
    /// CLOCK_MONOTONIC in nanoseconds; 0 while active.
    pub(crate) timestamp: u64,
}

/// `DMA_BUF_IOCTL_EXPORT_SYNC_FILE`.
pub(crate) fn export_sync_file(buf: BorrowedFd<'_>, flags: u32) -> Result<OwnedFd, Errno> {
    let mut arg = DmaBufSyncFile { flags, fd: -1 };
    // SAFETY: the opcode takes a pointer to this structure, reads it and writes it.
    let request = unsafe {
        Updater::<{ opcode::read_write::<DmaBufSyncFile>(b'b', 2) }, DmaBufSyncFile>::new(&mut arg)
    };
    // SAFETY: as above; a file that is not a dma-buf returns ENOTTY.
    unsafe { ioctl(buf, request) }?;
    // SAFETY: the request succeeded, so this is a new fd without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(arg.fd) })
}

/// `DMA_BUF_IOCTL_IMPORT_SYNC_FILE`.
pub(crate) fn import_sync_file(
    buf: BorrowedFd<'_>,
    flags: u32,
    file: BorrowedFd<'_>,
) -> Result<(), Errno> {
    let arg = DmaBufSyncFile { flags, fd: file.as_raw_fd() };
    // SAFETY: the opcode takes a pointer to this structure and only reads it.
    let request =
        unsafe { Setter::<{ opcode::write::<DmaBufSyncFile>(b'b', 3) }, DmaBufSyncFile>::new(arg) };
    // SAFETY: as above.
    unsafe { ioctl(buf, request) }
}

/// `SYNC_IOC_MERGE`.
pub(crate) fn merge(
    one: BorrowedFd<'_>,
    other: BorrowedFd<'_>,
    name: &str,
) -> Result<OwnedFd, Errno> {
    let mut arg =
        MergeData { name: cut(name), fd2: other.as_raw_fd(), fence: -1, flags: 0, pad: 0 };
    // SAFETY: the opcode takes a pointer to this structure, reads it and writes it.
    let request = unsafe {
        Updater::<{ opcode::read_write::<MergeData>(b'>', 3) }, MergeData>::new(&mut arg)
    };
    // SAFETY: as above.
    unsafe { ioctl(one, request) }?;
    // SAFETY: the request succeeded, so this is a new fd without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(arg.fence) })
}

/// `SYNC_IOC_FILE_INFO`. ENOTTY tells that the file is not a sync_file.
pub(crate) fn file_info(file: BorrowedFd<'_>) -> Result<FileInfo, Errno> {
    loop {
        let count = ask(file, &mut [])?.num_fences;
        let mut fences = vec![RawFenceInfo::EMPTY; count as usize];
        let info = match ask(file, &mut fences) {
            // A file's fences do not change, but a retry costs nothing.
            Err(Errno::INVAL) if count > 0 => continue,
            result => result?,
        };
        let fences = fences.iter().map(|fence| FenceInfo {
            timeline: text(&fence.obj_name),
            driver: text(&fence.driver_name),
            status: fence.status,
            timestamp: fence.timestamp_ns,
        });
        return Ok(FileInfo {
            name: text(&info.name),
            status: info.status,
            fences: fences.collect(),
        });
    }
}

/// `SYNC_IOC_SET_DEADLINE`: nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn set_deadline(file: BorrowedFd<'_>, deadline: u64) -> Result<(), Errno> {
    let arg = SetDeadline { deadline_ns: deadline, pad: 0 };
    // SAFETY: the opcode takes a pointer to this structure and only reads it.
    let request =
        unsafe { Setter::<{ opcode::write::<SetDeadline>(b'>', 5) }, SetDeadline>::new(arg) };
    // SAFETY: as above.
    unsafe { ioctl(file, request) }
}

fn ask(file: BorrowedFd<'_>, fences: &mut [RawFenceInfo]) -> Result<RawFileInfo, Errno> {
    let mut arg = RawFileInfo {
        name: [0; 32],
        status: 0,
        flags: 0,
        num_fences: u32::try_from(fences.len()).map_err(|_| Errno::INVAL)?,
        pad: 0,
        sync_fence_info: fences.as_mut_ptr().cast::<c_void>().expose_provenance() as u64,
    };
    // SAFETY: the opcode takes a pointer to this structure, reads it and writes it.
    let request = unsafe {
        Updater::<{ opcode::read_write::<RawFileInfo>(b'>', 4) }, RawFileInfo>::new(&mut arg)
    };
    // SAFETY: the kernel writes at most `num_fences` records where `sync_fence_info` points, which
    // is `fences`.
    unsafe { ioctl(file, request) }?;
    Ok(arg)
}

/// A name with its NUL in 32 bytes.
fn cut(name: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    let mut end = name.len().min(bytes.len() - 1);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
    bytes
}

fn text(bytes: &[u8; 32]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// `struct dma_buf_export_sync_file` and `struct dma_buf_import_sync_file`.
#[repr(C)]
struct DmaBufSyncFile {
    flags: u32,
    fd: i32,
}

/// `struct sync_merge_data`.
#[repr(C)]
struct MergeData {
    name: [u8; 32],
    fd2: i32,
    fence: i32,
    flags: u32,
    pad: u32,
}

/// `struct sync_file_info`.
#[repr(C)]
struct RawFileInfo {
    name: [u8; 32],
    status: i32,
    flags: u32,
    num_fences: u32,
    pad: u32,
    sync_fence_info: u64,
}

/// `struct sync_fence_info`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawFenceInfo {
    obj_name: [u8; 32],
    driver_name: [u8; 32],
    status: i32,
    flags: u32,
    timestamp_ns: u64,
}

impl RawFenceInfo {
    const EMPTY: Self =
        Self { obj_name: [0; 32], driver_name: [0; 32], status: 0, flags: 0, timestamp_ns: 0 };
}

/// `struct sync_set_deadline`.
#[repr(C)]
struct SetDeadline {
    deadline_ns: u64,
    pad: u64,
}

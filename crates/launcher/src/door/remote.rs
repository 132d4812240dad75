//! The memory of a process that waits for an answer. It is never treated as a slice: the kernel
//! copies bytes in and out, and an invalid address is an error.

use rustix::io::Errno;

/// The longest path the kernel takes, with its terminator.
const PATH_MAX: usize = 4096;

/// Copies never cross a boundary of this size until the bytes before it are known to hold no
/// terminator, since the next page may not be there.
const PAGE: u64 = 4096;

/// A path read from a program, without its terminator.
pub(super) struct Path {
    bytes: [u8; PATH_MAX],
    len: usize,
}

impl Path {
    /// Reads the path at this address.
    pub(super) fn read(tid: i32, address: u64) -> Result<Self, Errno> {
        let mut path = Self { bytes: [0; PATH_MAX], len: 0 };
        loop {
            let at = address.wrapping_add(path.len as u64);
            let room = PATH_MAX - path.len;
            let piece = ((PAGE - at % PAGE) as usize).min(room);
            let piece = &mut path.bytes[path.len..][..piece];
            let read = read(tid, at, piece)?;
            if let Some(end) = piece[..read].iter().position(|&byte| byte == 0) {
                path.len += end;
                return Ok(path);
            }
            path.len += read;
            if path.len == PATH_MAX {
                return Err(Errno::NAMETOOLONG);
            }
        }
    }

    /// The bytes.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Reads up to `into.len()` bytes, at least one.
pub(super) fn read(tid: i32, address: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: `local` is a writable slice that nothing else uses meanwhile. The remote address
    // belongs to the other process: the kernel checks it there and does not touch our memory.
    let read = unsafe { libc::process_vm_readv(tid, &raw const local, 1, &raw const remote, 1, 0) };
    count(read)
}

/// Writes all of `from`.
pub(super) fn write(tid: i32, address: u64, from: &[u8]) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: from.len() };
    // SAFETY: `local` is a slice that the call only reads. The remote address is the other
    // process's, as in `read`.
    let written =
        unsafe { libc::process_vm_writev(tid, &raw const local, 1, &raw const remote, 1, 0) };
    if count(written)? == from.len() { Ok(()) } else { Err(Errno::FAULT) }
}

fn count(result: isize) -> Result<usize, Errno> {
    match usize::try_from(result) {
        Ok(0) => Err(Errno::FAULT),
        Ok(count) => Ok(count),
        Err(_) => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_results_cross() {
        let me = rustix::process::getpid().as_raw_nonzero().get();
        let text = c"/sys/class/infiniband";
        let path = Path::read(me, text.as_ptr() as u64).unwrap();
        assert_eq!(path.as_bytes(), text.to_bytes());
        let mut out = [0_u8; 3];
        write(me, (&raw mut out) as u64, b"abc").unwrap();
        assert_eq!(std::hint::black_box(out), *b"abc");
        assert!(Path::read(me, 8).is_err());
    }

    #[test]
    fn a_path_without_end_is_too_long() {
        let me = rustix::process::getpid().as_raw_nonzero().get();
        let text = vec![b'a'; 3 * PATH_MAX];
        assert_eq!(Path::read(me, text.as_ptr() as u64).err(), Some(Errno::NAMETOOLONG));
    }
}

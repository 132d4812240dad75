//! One system call for each request: where there is no io_uring.

use std::os::fd::AsRawFd;
use std::ptr;

use rustix::io::Errno;

use super::Place;
use crate::{File, Op};

/// Reads or writes, and returns how many bytes.
pub(crate) fn call(op: Op, file: &File, offset: u64, place: &Place) -> Result<u32, Errno> {
    use std::os::fd::AsFd;
    let offset = libc::off64_t::try_from(offset).map_err(|_| Errno::OVERFLOW)?;
    let (fd, len) = (file.as_fd().as_raw_fd(), place.len() as usize);
    let addr = ptr::with_exposed_provenance_mut(place.addr());
    let done = match op {
        // SAFETY: the kernel writes at most `len` bytes to memory that the place keeps, and to
        // which nobody has a reference.
        Op::Read => unsafe { libc::pread64(fd, addr, len, offset) },
        // SAFETY: as above; it reads them.
        Op::Write => unsafe { libc::pwrite64(fd, addr.cast_const(), len, offset) },
    };
    // CAST: no more than `len`, which came from 32 bits.
    u32::try_from(done).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

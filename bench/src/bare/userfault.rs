//! A page of the process that a thread fills on a fault: bare userfaultfd(2).
#![allow(unsafe_code, reason = "ioctls by address")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::Instant;

use linux_raw_sys::general::{
    UFFD_API, UFFD_USER_MODE_ONLY, UFFDIO_REGISTER_MODE_MISSING, uffd_msg, uffdio_api, uffdio_copy,
    uffdio_range, uffdio_register,
};
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_COPY, UFFDIO_REGISTER};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::UserfaultfdFlags;
use umem::{HostBuf, Umem};

use crate::Outcome;

const PAGE: u64 = 4096;

/// Microseconds per page, over this many pages.
pub(crate) fn page(pages: u64) -> Outcome<f64> {
    // CAST: some megabytes.
    let memory = HostBuf::anonymous((pages * PAGE) as usize)?;
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
    // SAFETY: the call touches no memory.
    let fd = unsafe { rustix::mm::userfaultfd(flags) }?;
    let mut api = uffdio_api { api: UFFD_API.into(), features: 0, ioctls: 0 };
    ioctl(&fd, UFFDIO_API, &mut api)?;
    let range = uffdio_range { start: memory.as_ptr().addr() as u64, len: pages * PAGE };
    let mode = UFFDIO_REGISTER_MODE_MISSING.into();
    ioctl(&fd, UFFDIO_REGISTER, &mut uffdio_register { range, mode, ioctls: 0 })?;
    thread::scope(|scope| {
        let filler = scope.spawn(|| fill(&fd, pages).map_err(|error| error.to_string()));
        let (cpu, mut byte) = (Umem::host(&memory), [0]);
        let began = Instant::now();
        for page in 0..pages {
            cpu.read(page * PAGE, &mut byte)?;
        }
        let each = began.elapsed().as_secs_f64() * 1e6 / pages as f64;
        filler.join().map_err(|_| "the filler panicked")??;
        Ok(each)
    })
}

/// Fills this many pages as they are touched.
fn fill(fd: &OwnedFd, pages: u64) -> Outcome<()> {
    const MESSAGE: usize = size_of::<uffd_msg>();
    let bytes = [7_u8; PAGE as usize];
    for _ in 0..pages {
        let mut message = [0; MESSAGE];
        poll(&mut [PollFd::new(fd, PollFlags::IN)], None)?;
        let got = rustix::io::read(fd, &mut message)?;
        if got != MESSAGE {
            return Err("a message of another size".into());
        }
        // The address of a fault is the second word after the event.
        let word: [u8; 8] = message[16..24].try_into()?;
        let dst = u64::from_ne_bytes(word) / PAGE * PAGE;
        let src = bytes.as_ptr().addr() as u64;
        ioctl(fd, UFFDIO_COPY, &mut uffdio_copy { dst, src, len: PAGE, mode: 0, copy: 0 })?;
    }
    Ok(())
}

fn ioctl<T>(fd: &OwnedFd, call: u32, args: &mut T) -> Outcome<()> {
    // SAFETY: each call above passes the structure that its request number encodes, and addresses
    // of buffers that outlive it; the kernel writes only pages that are missing.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), call.into(), args) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

//! Buffers whose file only a program has.
//!
//! In the kernel a dma-buf lives as long as its file. Here the exporter is in the program's own
//! process, and something must keep it alive while any process has the descriptor that the program
//! was given.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use descriptors::Known;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::buf::DmaBuf;
use crate::fork::{self, Locked, Room};
use crate::sys::{self, lease};

struct Given {
    buf: DmaBuf,
    /// Our own open file description of the file.
    probe: Arc<Known>,
}

struct All {
    given: Vec<Given>,
    /// How many there may be before the next sweep.
    enough: usize,
}

/// Below this number there is no sweep.
const FEW: usize = 16;

static ALL: Mutex<All> = Mutex::new(All { given: Vec::new(), enough: FEW });

/// A descriptor of the buffer's file for a program (of `flags`, `O_CLOEXEC` and `O_RDWR` count).
/// The buffer lives as long as that descriptor, a copy of it, or a mapping exists, in any process.
///
/// # Errors
///
/// No descriptor.
#[doc(alias = "dma_buf_fd")]
pub fn give(buf: DmaBuf, flags: OFlags) -> Result<OwnedFd, Errno> {
    let shared = buf.shared();
    let Some(origin) = shared.origin().filter(|_| !shared.is_kernel()) else {
        // Its exporter is in another process, and is kept alive there.
        let fd = buf.known_fd()?;
        return match flags.contains(OFlags::CLOEXEC) {
            true => rustix::io::fcntl_dupfd_cloexec(fd, 0),
            false => rustix::io::dup(fd),
        };
    };
    let mut all = all();
    // With the lock held: a sweep that has a lease on the file would be notified of the open.
    let (probe, theirs) = if shared.exporter().is_in_file() {
        let fd = buf.known_fd()?;
        let theirs = lease::open_again(fd, flags & (OFlags::CLOEXEC | OFlags::RDWR))?;
        (Arc::new(Known::new(lease::probe(fd)?)), theirs)
    } else {
        origin.look()?;
        let (writable, cloexec) = (flags.contains(OFlags::RDWR), flags.contains(OFlags::CLOEXEC));
        (Arc::clone(origin), sys::open_faceless(origin.as_fd(), writable, cloexec)?)
    };
    all.given.push(Given { buf, probe });
    let gone = if all.given.len() > all.enough { all.sweep() } else { Vec::new() };
    drop(all);
    // Released buffers are dropped without the lock.
    drop(gone);
    Ok(theirs)
}

/// Drops the buffers whose file no process has any more. Returns how many remain.
pub fn sweep() -> usize {
    let mut all = all();
    let gone = all.sweep();
    let left = all.given.len();
    drop(all);
    drop(gone);
    left
}

fn all() -> MutexGuard<'static, All> {
    fork::hold(Room::Given, || Box::new(all()));
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Locked for MutexGuard<'static, All> {
    /// A child does not keep its parent's buffers. Nothing of them is dropped, unlike the parent's
    /// locks.
    fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.given));
    }
}

impl All {
    fn sweep(&mut self) -> Vec<DmaBuf> {
        let gone = self
            .given
            .extract_if(.., |given| given.probe.is_ours() && lease::is_alone(&given.probe));
        let gone = gone.map(|given| given.buf).collect();
        self.enough = FEW.max(self.given.len() * 2);
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DmaBuf, Memory};

    #[test]
    fn a_buffer_is_kept_while_the_program_has_its_file() {
        let buf = DmaBuf::export_from(&Memory::Memfd, 4096, "given").expect("a buffer");
        let weak = buf.downgrade();
        let fd = give(buf, OFlags::CLOEXEC | OFlags::RDWR).expect("a descriptor");
        let copy = fd.try_clone().expect("a copy");
        drop(fd);
        sweep();
        assert!(weak.upgrade().is_some(), "a copy is enough");
        assert!(DmaBuf::import(copy.as_fd()).is_ok());
        drop(copy);
        sweep();
        assert!(weak.upgrade().is_none(), "nobody has it any more");
    }
}

//! Copies between this process and another one that permits it, by `process_vm_readv` and
//! `process_vm_writev`.

#![allow(unsafe_code, reason = "process_vm_readv and process_vm_writev")]

mod run;

use std::ptr;
use std::sync::atomic::{Ordering, fence};

use dmabuf::Direction;
use libc::{iovec, pid_t};
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::fault::{Fault, Touch};
use crate::guard::bulk_length;
use crate::{CpuAccess, PeerMark, Umem};

/// Another process whose memory the kernel lets us copy to and from: same user, ptrace permitted,
/// visible pid.
///
/// The kernel addresses it by pid. The pid of a process that ended may be reused, and a process
/// that executes another program keeps its pid while its former memory is gone. So there is a
/// [`PeerMark`] to check ([`while_marked`](Self::while_marked)), right before each call and after
/// it: bytes copied when the mark was gone may have come from, or gone to, any memory.
#[derive(Clone, Debug)]
pub struct RemoteProcess {
    pid: pid_t,
    mark: Option<PeerMark>,
}

/// A range of local memory, as an element of the list that is one side of a copy.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "an element of a scatter/gather list")]
pub struct LocalPart<'a> {
    /// The memory.
    pub umem: &'a Umem,
    /// Where the range begins in it.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
}

/// A range of the other process's memory, as one of several that are copied in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "an element of a list of ranges")]
pub struct RemotePart {
    /// Where it begins.
    pub addr: u64,
    /// How long it is.
    pub len: u64,
}

/// Why another process's memory is out of reach. The payload is then sent through the ring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The peer has no pid here.
    #[error("the peer has no pid in our pid namespace")]
    NotVisible,
    /// The process ended, or executed another program: its mark is gone.
    #[error("process {pid} ended, or executed another program")]
    Ended {
        /// The pid.
        pid: pid_t,
    },
    /// No process has this pid here (ESRCH).
    #[error(
        "no process has pid {pid} in our pid namespace: the peer lives in another one, or it ended"
    )]
    NoSuchProcess {
        /// The pid.
        pid: pid_t,
    },
    /// The pid belongs to some other process: the agreed address does not hold what the peer put
    /// there.
    #[error(
        "process {pid} is not the peer: found {found} at {addr:#x} where it announced {expected:#x} (another pid namespace)"
    )]
    WrongProcess {
        /// The pid.
        pid: pid_t,
        /// Where we looked.
        addr: u64,
        /// What the peer announced.
        expected: u64,
        /// What was found there.
        found: String,
    },
    /// The kernel forbids it (EPERM).
    #[error("not permitted to reach the memory of process {pid}: {why}")]
    NotPermitted {
        /// The pid.
        pid: pid_t,
        /// Which rule forbids it, as far as this can be determined.
        why: String,
    },
    /// The call does not exist here: an old kernel or a sandbox.
    #[error("process_vm_readv is not available here: {errno}{}", sandbox::hint(errno.raw_os_error()))]
    NotAvailable {
        /// What the kernel answered.
        errno: Errno,
    },
}

/// Why a copy between processes ended early. Part of the destination may have been written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteFault {
    /// Our side: a part is out of range, or its page is gone.
    #[error("on our side: {0}")]
    Local(#[source] Fault),
    /// The other process's side.
    #[error(
        "on the side of process {pid}: {touch} at address {at:#x} failed: the page is not mapped or does not permit it"
    )]
    Remote {
        /// The other process.
        pid: pid_t,
        /// What was attempted.
        touch: Touch,
        /// The first address that could not be touched.
        at: u64,
    },
    /// The process is gone, or no longer permits it.
    #[error(transparent)]
    Refused(Refused),
    /// The callback between pieces asked to stop.
    #[error("stopped between pieces after {done:#x} bytes")]
    Stopped {
        /// What was copied.
        done: u64,
    },
}

/// How much is copied between two calls of the callback. This bounds how long a key of the peer is
/// held.
pub const PIECE: u64 = 256 * 1024;

/// The kernel's limit for the parts of one call.
const IOV_MAX: usize = 1024;

type Parts = SmallVec<[iovec; 16]>;

impl RemoteProcess {
    /// Checks whether the memory of process `pid` can be reached, by reading the eight bytes at
    /// `addr`, which the peer announced as `expected`.
    ///
    /// A read shows that writes are permitted too: the kernel requires the same permission for both
    /// (`PTRACE_MODE_ATTACH_REALCREDS`).
    ///
    /// # Errors
    ///
    /// [`Refused`], in words.
    pub fn probe(pid: pid_t, addr: u64, expected: u64) -> Result<Self, Refused> {
        if pid <= 0 {
            return Err(Refused::NotVisible);
        }
        let process = Self { pid, mark: None };
        let wrong = |found| Refused::WrongProcess { pid, addr, expected, found };
        let mut found = 0_u64;
        let local = [iovec { iov_base: (&raw mut found).cast(), iov_len: 8 }];
        match process.call(Touch::Read, &local, &[remote_part(addr, 8)]) {
            Ok(8) if found == expected => Ok(process),
            Ok(8) => Err(wrong(format!("{found:#x}"))),
            Ok(_) | Err(Errno::FAULT) => Err(wrong("no memory".to_owned())),
            Err(errno) => Err(process.refused(errno)),
        }
    }

    /// The same process, accessed only while its mark is set.
    #[must_use]
    pub fn while_marked(self, mark: PeerMark) -> Self {
        Self { mark: Some(mark), ..self }
    }

    /// Whether its mark is set, if one was given.
    #[inline]
    pub fn lives(&self) -> bool {
        self.mark.as_ref().is_none_or(PeerMark::is_set)
    }

    /// The pid.
    pub fn pid(&self) -> pid_t {
        self.pid
    }

    /// Copies the parts, in order, to consecutive addresses of the other process. The last bytes
    /// (the naturally aligned word of the last byte) become visible last.
    ///
    /// `between` is called before each further piece of at most [`PIECE`] bytes; `false` ends the
    /// copy.
    ///
    /// # Errors
    ///
    /// [`RemoteFault`].
    pub fn write(
        &self,
        local: &[LocalPart<'_>],
        remote_addr: u64,
        between: &mut dyn FnMut() -> bool,
    ) -> Result<(), RemoteFault> {
        let local = Local::new(local, Touch::Read)?;
        // A remote address is a number from the peer: only the kernel knows whether it is valid.
        let tail = bulk_length(remote_addr as usize, local.len as usize) as u64;
        self.copy(Touch::Write, &local, remote_addr, tail, between)
    }

    /// Copies consecutive addresses of the other process to the parts, in order. Otherwise as
    /// [`write`](Self::write).
    ///
    /// # Errors
    ///
    /// [`RemoteFault`].
    pub fn read(
        &self,
        local: &[LocalPart<'_>],
        remote_addr: u64,
        between: &mut dyn FnMut() -> bool,
    ) -> Result<(), RemoteFault> {
        let local = Local::new(local, Touch::Write)?;
        let tail = local.tail();
        self.copy(Touch::Read, &local, remote_addr, tail, between)
    }

    /// Copies in pieces. `touch` is how the remote side is accessed; the bytes from `tail` on are
    /// stored last.
    fn copy(
        &self,
        touch: Touch,
        local: &Local<'_>,
        remote_addr: u64,
        tail: u64,
        between: &mut dyn FnMut() -> bool,
    ) -> Result<(), RemoteFault> {
        let mut done = 0;
        let mut piece_end = 0;
        while done < local.len {
            if done == piece_end {
                if done > 0 && !between() {
                    return Err(RemoteFault::Stopped { done });
                }
                piece_end = local.len.min(done + PIECE);
            }
            let mut end = piece_end;
            // ORDERING: the kernel copies part after part, with string instructions inside a part.
            // On x86 no store of a later part becomes visible before one of an earlier part, so the
            // tail is a part of its own in the same call: a part of our list, as the kernel pins
            // the pages of each part of the other one anew. Elsewhere it is a separate call after a
            // fence, which orders what the kernel stored for us.
            if !cfg!(target_arch = "x86_64") && done < tail && tail < end {
                end = tail;
            } else if done == tail && tail > 0 {
                fence(Ordering::SeqCst);
            }
            let mut ours = Parts::new();
            let end = local.collect(done, end, tail, &mut ours);
            let theirs = [remote_part(remote_addr.wrapping_add(done), end - done)];
            if !self.lives() {
                return Err(RemoteFault::Refused(Refused::Ended { pid: self.pid }));
            }
            let copied = self.call(touch, &ours, &theirs);
            if !self.lives() {
                return Err(RemoteFault::Refused(Refused::Ended { pid: self.pid }));
            }
            match copied {
                // A short count is not yet an error: the next call starts at the faulting page and
                // reports it.
                Ok(n) if n > 0 => done += n,
                Ok(_) | Err(Errno::FAULT) => {
                    return Err(self.blame(touch, local, remote_addr, done, end));
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(RemoteFault::Refused(self.refused(errno))),
            }
        }
        Ok(())
    }

    /// Whose page stopped a copy between `done` and `end`: the kernel returns EFAULT for either
    /// side.
    fn blame(
        &self,
        touch: Touch,
        local: &Local<'_>,
        remote_addr: u64,
        done: u64,
        end: u64,
    ) -> RemoteFault {
        // Readability can be probed without harm, so the side that was read is probed; if it can be
        // read, the fault was on the other side. The count may have stopped short of the faulting
        // page, so all pages up to the end are probed.
        let remote = |at| RemoteFault::Remote { pid: self.pid, touch, at };
        if touch == Touch::Write {
            return match local.first_unreadable(done, end) {
                Some(fault) => RemoteFault::Local(fault),
                None => remote(remote_addr.wrapping_add(done)),
            };
        }
        for at in pages(remote_addr.wrapping_add(done), end - done) {
            let mut byte = 0_u8;
            let ours = [iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
            if self.call(Touch::Read, &ours, &[remote_part(at, 1)]) != Ok(1) {
                return remote(at);
            }
        }
        RemoteFault::Local(local.fault_at(done))
    }

    fn call(&self, touch: Touch, local: &[iovec], remote: &[iovec]) -> Result<u64, Errno> {
        let (local_len, remote_len) = (local.len() as u64, remote.len() as u64);
        let (local, remote) = (local.as_ptr(), remote.as_ptr());
        let n = if touch == Touch::Write {
            // SAFETY: the arrays are valid for the call; the kernel checks every address they name,
            // and the local ones are only read.
            unsafe { libc::process_vm_writev(self.pid, local, local_len, remote, remote_len, 0) }
        } else {
            // SAFETY: the arrays are valid for the call; the kernel checks every address they name,
            // and the local ones are memory that the creator of the `Umem` promised may be written.
            unsafe { libc::process_vm_readv(self.pid, local, local_len, remote, remote_len, 0) }
        };
        u64::try_from(n).map_err(|_| {
            Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
        })
    }

    fn refused(&self, errno: Errno) -> Refused {
        let pid = self.pid;
        match errno {
            Errno::SRCH => Refused::NoSuchProcess { pid },
            Errno::PERM => Refused::NotPermitted { pid, why: why_not_permitted(pid) },
            errno => Refused::NotAvailable { errno },
        }
    }
}

/// The local side of a copy: the checked parts, and brackets that last as long.
struct Local<'a> {
    parts: SmallVec<[(LocalPart<'a>, usize); 4]>,
    len: u64,
    touch: Touch,
    brackets: SmallVec<[CpuAccess<'a>; 4]>,
}

impl<'a> Local<'a> {
    fn new(parts: &[LocalPart<'a>], touch: Touch) -> Result<Self, RemoteFault> {
        let direction =
            if touch == Touch::Write { Direction::ToDevice } else { Direction::FromDevice };
        let mut local = Self { parts: SmallVec::new(), len: 0, touch, brackets: SmallVec::new() };
        for part in parts {
            let addr = part.umem.check(touch, part.offset, part.len).map_err(RemoteFault::Local)?;
            local.brackets.push(part.umem.cpu_access(direction).map_err(RemoteFault::Local)?);
            if part.len > 0 {
                local.parts.push((*part, addr));
                local.len = local.len.saturating_add(part.len);
            }
        }
        Ok(local)
    }

    /// Where the tail begins if the parts are the destination: in the last part.
    fn tail(&self) -> u64 {
        let Some((part, addr)) = self.parts.last() else { return 0 };
        self.len - part.len + bulk_length(*addr, part.len as usize) as u64
    }

    /// Adds the bytes from `start` to `end` to the list for the kernel, with a cut at `tail`.
    /// Returns where it really ended, since the list has a maximum length.
    fn collect(&self, start: u64, end: u64, tail: u64, list: &mut Parts) -> u64 {
        let mut position = 0;
        for (part, addr) in &self.parts {
            let (from, to) = (start.max(position), end.min(position + part.len));
            let split = tail.clamp(from, to.max(from));
            for (from, to) in [(from, split), (split, to)] {
                if from >= to {
                    continue;
                }
                if list.len() == IOV_MAX {
                    return from;
                }
                let addr = addr + (from - position) as usize;
                list.push(iovec {
                    iov_base: ptr::with_exposed_provenance_mut(addr),
                    iov_len: (to - from) as usize,
                });
            }
            position += part.len;
        }
        end
    }

    /// The first page between `start` and `end` that cannot be read.
    fn first_unreadable(&self, start: u64, end: u64) -> Option<Fault> {
        let mut position = 0;
        for (part, addr) in &self.parts {
            let (from, to) = (start.max(position), end.min(position + part.len));
            if from < to {
                let first = *addr as u64 + (from - position);
                for at in pages(first, to - from) {
                    let offset = part.offset + (at - *addr as u64);
                    if let Err(fault) = part.umem.read(offset, &mut [0]) {
                        return Some(fault);
                    }
                }
            }
            position += part.len;
        }
        None
    }

    fn fault_at(&self, done: u64) -> Fault {
        let mut position = 0;
        for (part, addr) in &self.parts {
            if done < position + part.len {
                let at = *addr as u64 + (done - position);
                return Fault::Page { touch: self.touch, addr: *addr as u64, len: part.len, at };
            }
            position += part.len;
        }
        Fault::OutOfRange { base: 0, size: self.len, offset: done, len: 0 }
    }
}

fn remote_part(addr: u64, len: u64) -> iovec {
    iovec { iov_base: ptr::without_provenance_mut(addr as usize), iov_len: len as usize }
}

/// One address in each page of a range, the first being the range's own start.
fn pages(addr: u64, len: u64) -> impl Iterator<Item = u64> {
    let page = rustix::param::page_size() as u64;
    let next = (addr & !(page - 1)).wrapping_add(page);
    let end = addr.saturating_add(len);
    std::iter::once(addr).chain((next..end).step_by(page as usize))
}

/// Explains an EPERM as well as the files in /proc allow.
fn why_not_permitted(pid: pid_t) -> String {
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::metadata(format!("/proc/{pid}")).map(|m| m.uid()).ok();
    let own = rustix::process::getuid().as_raw();
    if let Some(owner) = owner.filter(|owner| *owner != own) {
        return format!("it belongs to uid {owner} and we are uid {own}, or it is not dumpable");
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let rule = match scope.trim() {
        "" | "0" => {
            "it is not dumpable, runs under other credentials or in another security domain"
                .to_owned()
        }
        "1" => "Yama's ptrace_scope is 1, so only its ancestors may".to_owned(),
        "2" => "Yama's ptrace_scope is 2, so only processes with CAP_SYS_PTRACE may".to_owned(),
        scope => format!("Yama's ptrace_scope is {scope}, so nobody may"),
    };
    rule + sandbox::HINT
}

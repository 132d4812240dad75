//! Several short copies in one call.
//!
//! Most of the time of a short copy is the call itself: the kernel finds the process, checks the
//! permission and pins a page. Copies that share a call share the first two.

use std::ptr;

use libc::iovec;

use super::{IOV_MAX, Local, LocalPart, Parts, RemotePart, RemoteProcess, remote_part};
use crate::fault::Touch;
use crate::guard::bulk_length;

impl RemoteProcess {
    /// Whether several copies can go in one call. Elsewhere than on x86-64, the kernel's stores of
    /// one call may become visible in any order (see `RemoteProcess::copy`).
    pub const GATHERS: bool = cfg!(target_arch = "x86_64");

    /// Copies consecutive bytes of the local parts to each of the ranges, in order. Each range is
    /// written as [`write`](Self::write) writes it, and is over before the next one begins.
    ///
    /// Returns how many ranges were written whole, from the first one. That may be none: if a local
    /// part is not accessible, if the lists are too long for one call, or unless
    /// [`GATHERS`](Self::GATHERS). A caller that copies the rest one by one learns what is wrong
    /// with it.
    #[must_use]
    pub fn write_each(&self, local: &[LocalPart<'_>], remote: &[RemotePart]) -> usize {
        self.copy_each(Touch::Write, local, remote)
    }

    /// Copies the ranges, in order, to consecutive bytes of the local parts. Otherwise as
    /// [`write_each`](Self::write_each).
    #[must_use]
    pub fn read_each(&self, local: &[LocalPart<'_>], remote: &[RemotePart]) -> usize {
        self.copy_each(Touch::Read, local, remote)
    }

    /// `touch` is how the remote side is accessed.
    fn copy_each(&self, touch: Touch, local: &[LocalPart<'_>], remote: &[RemotePart]) -> usize {
        if !Self::GATHERS {
            return 0;
        }
        let is_write = touch == Touch::Write;
        let Ok(local) = Local::new(local, if is_write { Touch::Read } else { Touch::Write }) else {
            return 0;
        };
        let lists = Lists::new(touch, &local, remote);
        if lists.ours.len() > IOV_MAX || lists.theirs.len() > IOV_MAX || !self.lives() {
            return 0;
        }
        match self.call(touch, &lists.ours, &lists.theirs) {
            // If the process has ended, the memory may have been that of another one.
            Ok(bytes) if self.lives() => whole(remote, bytes),
            _ => 0,
        }
    }
}

/// How many ranges the first `bytes` cover whole.
fn whole(remote: &[RemotePart], bytes: u64) -> usize {
    let mut end = 0_u64;
    let is_covered = |part: &&RemotePart| {
        end = end.saturating_add(part.len);
        end <= bytes
    };
    remote.iter().take_while(is_covered).count()
}

/// Both sides of a call. Ours is cut where the last word of a destination begins
/// (`RemoteProcess::copy`).
#[derive(Default)]
struct Lists {
    ours: Parts,
    theirs: Parts,
}

impl Lists {
    fn new(touch: Touch, local: &Local<'_>, remote: &[RemotePart]) -> Self {
        let mut lists = Self::default();
        let mut parts = local.parts.iter().map(|(part, addr)| (*addr, part.len));
        let (mut addr, mut room) = parts.next().unwrap_or_default();
        for range in remote {
            if range.len > 0 {
                lists.theirs.push(remote_part(range.addr, range.len));
            }
            let bulk = bulk_length(range.addr as usize, range.len as usize) as u64;
            let mut left = range.len;
            while left > 0 && room > 0 {
                let len = left.min(room);
                let bulk = if touch == Touch::Write {
                    (bulk + left).saturating_sub(range.len).min(len)
                } else if len == left {
                    // What is stored last lies in the last part (`Local::tail`).
                    bulk_length(addr, len as usize) as u64
                } else {
                    len
                };
                lists.push_ours(addr, bulk);
                lists.push_ours(addr + bulk as usize, len - bulk);
                (addr, room, left) = (addr + len as usize, room - len, left - len);
                if room == 0 {
                    (addr, room) = parts.next().unwrap_or_default();
                }
            }
        }
        lists
    }

    fn push_ours(&mut self, addr: usize, len: u64) {
        if len > 0 {
            let iov_base = ptr::with_exposed_provenance_mut(addr);
            self.ours.push(iovec { iov_base, iov_len: len as usize });
        }
    }
}

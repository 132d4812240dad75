//! The thread that answers faults of the range, and follows what the program does to it.
#![allow(unsafe_code, reason = "memory by address")]

use std::mem;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;

use crate::PAGE;
use crate::moves::Restore;
use crate::shared::{Shared, as_ptr};
use crate::table::{Held, Moving, State};
use crate::uffd::Event;

/// How long until a fault that came while the program changed the mapping is tried again.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };

/// A fault to be answered.
#[derive(Clone, Copy)]
struct Fault {
    addr: usize,
    is_protection: bool,
    is_write: bool,
}

/// Runs until the mirror is dropped.
pub(crate) fn run(shared: &Shared) {
    let mut again: Vec<Fault> = Vec::new();
    loop {
        let mut fds =
            [PollFd::new(&shared.uffd, PollFlags::IN), PollFd::new(&shared.stop, PollFlags::IN)];
        let timeout = if again.is_empty() { None } else { Some(&AGAIN) };
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return tracing::error!(target: "peerdma::hmm", "poll: {errno}"),
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        loop {
            match shared.uffd.next() {
                Ok(Some(Event::Fault { addr, is_protection, is_write })) => {
                    again.push(Fault { addr, is_protection, is_write });
                }
                Ok(Some(event)) => shared.follow(event),
                Ok(None) => break,
                Err(errno) => return tracing::error!(target: "peerdma::hmm", "read: {errno}"),
            }
        }
        again.retain(|fault| !shared.answer(*fault));
    }
}

impl Shared {
    /// Answers a fault. False if it must be tried again.
    fn answer(&self, fault: Fault) -> bool {
        let mut state = self.table.lock();
        let addr = fault.addr & !(PAGE as usize - 1);
        let done = match state.offset(addr, self.len) {
            Some(page) if fault.is_protection => self.was_written(&mut state, page, addr),
            Some(page) => self.is_missing(&mut state, page, addr, fault.is_write),
            None => self.has_strayed(&mut state, addr),
        };
        match done {
            Ok(()) => true,
            Err(Errno::AGAIN) => false,
            // There is a page by now, or no mapping any more. Without this call, the thread would
            // wait forever.
            Err(_) => self.uffd.wake(addr) != Err(Errno::AGAIN),
        }
    }

    fn was_written(&self, state: &mut State, page: u64, addr: usize) -> Result<(), Errno> {
        if state.is_moving(page) {
            // It faults again when the page has moved.
            return Ok(());
        }
        self.uffd.protect(addr, false)?;
        if let Some(known) = state.pages.get_mut(&page)
            && known.is_protected
        {
            (known.is_protected, known.is_written) = (false, true);
        }
        Ok(())
    }

    fn is_missing(
        &self,
        state: &mut State,
        page: u64,
        addr: usize,
        is_write: bool,
    ) -> Result<(), Errno> {
        let known = state.pages.get_mut(&page);
        match known.as_ref().and_then(|known| known.moving) {
            // It faults again when the page has moved.
            Some(Moving::Drops) => return Ok(()),
            // The program dropped it while it was being copied: its bytes are zeros now, which
            // nobody may write.
            Some(Moving::Copies) => return self.uffd.copy(addr, &[0; PAGE as usize], true),
            None => {}
        }
        let Some(known) = known else { return self.uffd.zero(addr) };
        match known.held {
            Held::System if known.is_protected && !is_write => {
                self.uffd.copy(addr, &[0; PAGE as usize], true)
            }
            Held::System => {
                self.uffd.zero(addr)?;
                if known.is_protected {
                    (known.is_protected, known.is_written) = (false, true);
                }
                Ok(())
            }
            Held::Gone => self.uffd.wake(addr),
            Held::Device(_) | Held::Exclusive(_) => {
                let was_exclusive = matches!(known.held, Held::Exclusive(_));
                match self.restore(state, page, is_write) {
                    Ok(_) if was_exclusive => state.stats.exclusive_ended += 1,
                    Ok(_) => state.stats.faulted_back += 1,
                    Err(Restore::Again) => return Err(Errno::AGAIN),
                    Err(Restore::System(errno)) => return Err(errno),
                    Err(Restore::Lost(fault)) => return self.give_up(addr, &fault),
                }
                state.tidy(page);
                Ok(())
            }
        }
    }

    /// A page of a part that the program moved away. The part is still registered.
    pub(crate) fn has_strayed(&self, state: &mut State, addr: usize) -> Result<(), Errno> {
        let Some(slot) = state.strays.get(&addr) else { return self.uffd.zero(addr) };
        let mut bytes = [0; PAGE as usize];
        if let Err(fault) = slot.read(0, &mut bytes) {
            return self.give_up(addr, &fault);
        }
        match self.uffd.copy(addr, &bytes, false) {
            Err(Errno::AGAIN) => Err(Errno::AGAIN),
            done => {
                state.strays.remove(&addr);
                done
            }
        }
    }

    /// The bytes of a page are lost. As in the kernel, a thread that touches it gets a signal:
    /// zeros would be wrong.
    fn give_up(&self, addr: usize, fault: &umem::Fault) -> Result<(), Errno> {
        tracing::error!(
            target: "peerdma::hmm",
            "the device took away the page at {addr:#x} ({fault}): touching it raises SIGSEGV now"
        );
        // SAFETY: a page of the range, which the caller of `Mirror::over` gave to the mirror, or
        // which is its own: nothing but foreign memory is in it.
        unsafe { rustix::mm::mprotect(as_ptr(addr), PAGE as usize, MprotectFlags::empty()) }?;
        self.uffd.wake(addr)
    }

    /// Follows what the program did.
    fn follow(&self, event: Event) {
        let mut state = self.table.lock();
        match event {
            Event::Remove { start, end } => state.removed(start, end, self.len),
            Event::Unmap { start, end } => state.unmapped(start, end, self.len),
            Event::Remap { from, to, len } if from == state.base && len == self.len => {
                state.base = to;
            }
            Event::Remap { from, to, len } => state.moved_in_part(from, to, len, self.len),
            Event::Fault { .. } | Event::Other => {}
        }
        drop(state);
        self.table.notify();
    }
}

impl State {
    /// The offset of an address in the range.
    fn offset(&self, addr: usize, len: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.base)? as u64;
        (offset < len).then_some(offset)
    }

    /// The part of the range between two addresses.
    fn between(&self, start: usize, end: usize, len: u64) -> std::ops::Range<u64> {
        let offset = |addr: usize| (addr.saturating_sub(self.base) as u64).min(len);
        offset(start)..offset(end)
    }

    /// The program dropped pages: they read as zeros from now on. Those that we dropped have moved.
    fn removed(&mut self, start: usize, end: usize, len: u64) {
        self.strays.retain(|addr, _| !(start..end).contains(addr));
        let range = self.between(start, end, len);
        for known in self.pages.range_mut(range).map(|(_, known)| known) {
            if known.own_removals > 0 {
                known.own_removals -= 1;
                continue;
            }
            if known.moving.is_none() && !matches!(known.held, Held::Gone) {
                known.held = Held::System;
            }
            if known.is_protected {
                (known.is_protected, known.is_written) = (false, true);
            }
        }
    }

    /// The program moved a part of the range elsewhere.
    fn moved_in_part(&mut self, from: usize, to: usize, part: u64, len: u64) {
        // CAST: inside this process.
        let end = from + part as usize;
        let range = self.between(from, end, len);
        let first = range.start;
        for (page, known) in self.pages.range_mut(range) {
            if let Held::Device(slot) | Held::Exclusive(slot) = mem::take(&mut known.held) {
                // CAST: inside the part.
                self.strays.insert(to + (page - first) as usize, slot);
            }
        }
        self.unmapped(from, end, len);
    }

    /// The program unmapped pages.
    fn unmapped(&mut self, start: usize, end: usize, len: u64) {
        self.strays.retain(|addr, _| !(start..end).contains(addr));
        let range = self.between(start, end, len);
        for page in range.step_by(PAGE as usize) {
            let known = self.page(page);
            known.held = Held::Gone;
            (known.is_protected, known.is_written) = (false, false);
        }
    }
}

//! Which process has which pages of VRAM and GTT: one table for all processes that share the GPU.
//!
//! ```text
//!   page 0   | magic | geometry | clock | highest entry in use + 1 |
//!   then     | entry | entry | entry | ...        one for each placement of a buffer, 64 bytes
//! ```
//!
//! A page is free if no entry covers it; there is no list of free pages that could disagree. To add
//! an entry, its first word is stored last; to remove it, that word is cleared first; the entry
//! counts while the word is set. So a process that dies in the middle leaves a correct table, and
//! its lock ends with it, being that of its own open file description.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use descriptors::{Known, PrivateFd};
use dmabuf::ExporterError;
use rustix::fs::{FlockOperation, flock};
use umem::HostBuf;

use crate::error::{invalid, no_device, no_memory};
use crate::place::Domain;

/// The capacity of the table, in placements.
const ENTRIES: u64 = 8191;
const ENTRY: u64 = 64;
/// Bytes of the table: a header as long as an entry, rounded up to whole pages by the entries.
pub(crate) const TABLE: usize = ((ENTRIES + 1) * ENTRY) as usize;
/// No domain, and so no placement, is longer.
const LONGEST: u64 = 1 << 44;
const MAGIC: u64 = 0x7065_6572_6770_7503;

const MAGIC_AT: u64 = 0;
const GEOMETRY_AT: u64 = 8;
const CLOCK_AT: u64 = 16;
const HIGH_AT: u64 = 24;

/// The owner of placements whose process is dead.
pub(crate) const ORPHAN: u8 = 0xff;

/// Bits of the first word of an entry. The owner is in the second byte, the domain in the third.
const IN_USE: u64 = 1;
const PINNED: u64 = 1 << 24;
const FIXED: u64 = 1 << 25;
const LEAVING: u64 = 1 << 26;
const SOFT: u64 = 1 << 27;

/// One process's view of the table.
#[derive(Debug)]
pub(crate) struct Ledger {
    table: HostBuf,
    /// An open file description of our own, which a forked child does not keep, so that the lock
    /// ends with this process.
    lock: PrivateFd,
    threads: Mutex<()>,
    owner: u8,
    pid: u32,
}

/// The table, locked against all threads of all processes.
pub(crate) struct Locked<'a> {
    ledger: &'a Ledger,
    _threads: MutexGuard<'a, ()>,
}

/// One placement of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) index: u64,
    /// The process, by its number among those that share the GPU.
    pub(crate) owner: u8,
    pub(crate) domain: Domain,
    /// Some importer or the CPU relies on its place.
    pub(crate) pinned: bool,
    /// All those that rely on its place can lose it, and may have to.
    pub(crate) soft: bool,
    /// It never moves.
    pub(crate) fixed: bool,
    /// Its bytes are being moved out; then it ends by itself.
    pub(crate) leaving: bool,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The buffer, by its owner's number.
    pub(crate) bo: u64,
    /// When it was last used, by the table's clock.
    pub(crate) used: u64,
    /// The control group that it is charged to; 0 if there is none.
    pub(crate) group: u64,
    /// The process that exported it, as in the names of its dma-bufs; 0 if it never was.
    pub(crate) exporter: u64,
}

/// The description of a new placement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) domain: Domain,
    pub(crate) len: u64,
    pub(crate) align: u64,
    /// Its range in the domain.
    pub(crate) range: (u64, u64),
    pub(crate) bo: u64,
    pub(crate) fixed: bool,
    /// The control group to charge.
    pub(crate) group: u64,
}

impl Ledger {
    /// A new table, for this process as number `owner`.
    pub(crate) fn create(geometry: u64, owner: u8) -> Result<Self, ExporterError> {
        let table = HostBuf::memfd("peerdma-gpu-ledger", TABLE)
            .map_err(|error| no_memory(format!("the GPU's ledger: {error}")))?;
        let ledger = Self::over(table, owner)?;
        ledger.store(GEOMETRY_AT, geometry);
        ledger.store(MAGIC_AT, MAGIC);
        Ok(ledger)
    }

    /// The table that another process made.
    pub(crate) fn join(file: OwnedFd, geometry: u64, owner: u8) -> Result<Self, ExporterError> {
        let table = HostBuf::received(file, TABLE).map_err(|error| {
            invalid(format!("the GPU's ledger, as another process sent it: {error}"))
        })?;
        let ledger = Self::over(table, owner)?;
        if ledger.load(MAGIC_AT) != MAGIC || ledger.load(GEOMETRY_AT) != geometry {
            return Err(invalid(
                "another process has this GPU with another configuration or version",
            ));
        }
        Ok(ledger)
    }

    fn over(table: HostBuf, owner: u8) -> Result<Self, ExporterError> {
        let path = format!("/proc/self/fd/{}", file_of(&table).as_raw_fd());
        let lock = File::options().read(true).write(true).open(&path).map_err(|error| {
            no_device(format!("the GPU's ledger cannot be opened again: {error}"))
        })?;
        let lock = PrivateFd::new(lock.into());
        Ok(Self { table, lock, threads: Mutex::new(()), owner, pid: std::process::id() })
    }

    /// The file, for another process.
    pub(crate) fn file(&self) -> &Known {
        file_of(&self.table)
    }

    /// Whether the program has left our descriptors, by which processes share the table, open.
    pub(crate) fn is_ours(&self) -> bool {
        self.lock.is_ours() && self.file().is_ours()
    }

    /// The number of this process.
    pub(crate) fn owner(&self) -> u8 {
        self.owner
    }

    /// Whether this is a forked child's copy, which owns nothing.
    pub(crate) fn is_husk(&self) -> bool {
        self.pid != std::process::id()
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // If the kernel does not grant the lock (no memory), or the program took its descriptor,
        // only our own threads are excluded.
        while self.lock.is_ours()
            && flock(&self.lock, FlockOperation::LockExclusive) == Err(rustix::io::Errno::INTR)
        {
        }
        Locked { ledger: self, _threads: threads }
    }

    /// Notes that a placement was just used.
    pub(crate) fn touch(&self, index: u64) {
        let now = self.table.fetch_add_u64(at(CLOCK_AT), 1, Ordering::Relaxed).unwrap_or(0);
        self.store(word(index, 4), now + 1);
    }

    /// Notes the process whose dma-bufs show a placement.
    pub(crate) fn set_exporter(&self, index: u64, token: u64) {
        self.store(word(index, 6), token);
    }

    fn load(&self, offset: u64) -> u64 {
        self.table.load_u64(at(offset), Ordering::Acquire).expect("inside the table, and aligned")
    }

    fn store(&self, offset: u64, value: u64) {
        let stored = self.table.store_u64(at(offset), value, Ordering::Release);
        stored.expect("inside the table, aligned, and ours to write");
    }
}

impl Locked<'_> {
    /// All valid placements. Garbage that another process wrote into the table is skipped.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let high = self.ledger.load(HIGH_AT).min(ENTRIES);
        (0..high).filter_map(|index| self.entry(index)).collect()
    }

    pub(crate) fn entry(&self, index: u64) -> Option<Entry> {
        let load = |n| self.ledger.load(word(index, n));
        let first = load(0);
        let (offset, len) = (load(1), load(2));
        if first & IN_USE == 0 || offset.max(len) > LONGEST {
            return None;
        }
        Some(Entry {
            index,
            // CAST: one byte each.
            owner: (first >> 8) as u8,
            domain: Domain::from_index((first >> 16) & 0xff)?,
            pinned: first & PINNED != 0,
            soft: first & SOFT != 0,
            fixed: first & FIXED != 0,
            leaving: first & LEAVING != 0,
            offset,
            len,
            bo: load(3),
            used: load(4),
            group: load(5),
            exporter: load(6),
        })
    }

    /// Makes a placement in the first gap that fits. `None` when there is none.
    pub(crate) fn place(&self, wanted: Wanted) -> Option<Entry> {
        let entries = self.entries();
        let mut taken: Vec<_> = entries
            .iter()
            .filter(|entry| entry.domain == wanted.domain)
            .map(|entry| (entry.offset, entry.offset.saturating_add(entry.len)))
            .collect();
        taken.sort_unstable();
        let offset = first_fit(&taken, wanted)?;
        let high = self.ledger.load(HIGH_AT).min(ENTRIES);
        let is_free = |index: &u64| self.ledger.load(word(*index, 0)) & IN_USE == 0;
        let index = (0..high).find(is_free).or((high < ENTRIES).then_some(high))?;
        let owner = u64::from(self.ledger.owner);
        let fixed = if wanted.fixed { FIXED } else { 0 };
        let first = IN_USE | owner << 8 | wanted.domain.index() << 16 | fixed;
        let words = [offset, wanted.len, wanted.bo, 0, wanted.group, 0, 0];
        for (n, value) in (1..).zip(words) {
            self.ledger.store(word(index, n), value);
        }
        self.ledger.touch(index);
        if index == high {
            self.ledger.store(HIGH_AT, high + 1);
        }
        self.ledger.store(word(index, 0), first);
        self.entry(index)
    }

    /// Ends a placement.
    pub(crate) fn free(&self, index: u64) {
        self.ledger.store(word(index, 0), 0);
        let mut high = self.ledger.load(HIGH_AT).min(ENTRIES);
        while high > 0 && self.ledger.load(word(high - 1, 0)) & IN_USE == 0 {
            high -= 1;
        }
        self.ledger.store(HIGH_AT, high);
    }

    /// Gives the placements of a dead process to an owner that no process is, so that the next
    /// process with the same number does not take them for its own.
    pub(crate) fn orphan(&self, owner: u8) {
        for entry in self.entries().into_iter().filter(|entry| entry.owner == owner) {
            let first = self.ledger.load(word(entry.index, 0)) & !(0xff << 8);
            self.ledger.store(word(entry.index, 0), first | u64::from(ORPHAN) << 8);
        }
    }

    pub(crate) fn set_pinned(&self, index: u64, pinned: bool) {
        self.set(index, PINNED, pinned);
    }

    /// Whether those that pinned it can lose it under pressure.
    pub(crate) fn set_soft(&self, index: u64, soft: bool) {
        self.set(index, SOFT, soft);
    }

    /// The bytes of this placement are being copied away.
    pub(crate) fn set_leaving(&self, index: u64) {
        self.set(index, LEAVING, true);
    }

    fn set(&self, index: u64, bit: u64, on: bool) {
        let first = self.ledger.load(word(index, 0));
        let first = if on { first | bit } else { first & !bit };
        self.ledger.store(word(index, 0), first);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Unlocking what was not locked does nothing.
        let _ = flock(&self.ledger.lock, FlockOperation::Unlock);
    }
}

/// The lowest offset at which `wanted` fits between the taken ranges, which are sorted.
fn first_fit(taken: &[(u64, u64)], wanted: Wanted) -> Option<u64> {
    let (start, end) = wanted.range;
    let align = wanted.align.max(1);
    let mut at = start.checked_next_multiple_of(align)?;
    for &(from, to) in taken {
        if to <= at {
            continue;
        }
        if at.checked_add(wanted.len)? <= from {
            break;
        }
        at = to.checked_next_multiple_of(align)?;
    }
    (at.checked_add(wanted.len)? <= end).then_some(at)
}

fn word(index: u64, n: u64) -> u64 {
    (index + 1) * ENTRY + n * 8
}

fn at(offset: u64) -> usize {
    // CAST: the table is half a megabyte.
    offset as usize
}

fn file_of(table: &HostBuf) -> &Known {
    table.known().expect("the table is a memfd")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(domain: Domain, len: u64, align: u64, range: (u64, u64)) -> Wanted {
        Wanted { domain, len, align, range, bo: 7, fixed: false, group: 0 }
    }

    #[test]
    fn the_first_gap_that_fits_is_taken_and_comes_back() {
        let ledger = Ledger::create(1, 3).expect("memory exists");
        let table = ledger.lock();
        let place = |len, align| table.place(wanted(Domain::Vram, len, align, (0, 0x10000)));
        let a = place(0x1000, 1).expect("room");
        let b = place(0x3000, 0x4000).expect("room");
        assert_eq!((a.offset, b.offset, b.owner, b.bo), (0, 0x4000, 3, 7));
        let c = place(0x3000, 1).expect("between them");
        assert_eq!(c.offset, 0x1000);
        assert!(place(0xa000, 1).is_none(), "the end is shorter");
        table.free(b.index);
        assert_eq!(place(0xa000, 1).expect("one gap now").offset, 0x4000);
        let gtt = table.place(wanted(Domain::Gtt, 0x1000, 1, (0, 0x10000))).expect("room");
        assert_eq!(gtt.offset, 0, "another domain");
        assert_eq!(table.entries().len(), 4);
    }

    #[test]
    fn another_process_sees_the_same_table_and_its_use_counts() {
        let ours = Ledger::create(5, 0).expect("memory exists");
        let dup = || ours.file().try_clone().expect("a free fd");
        assert!(Ledger::join(dup(), 6, 1).is_err(), "another geometry");
        let theirs = Ledger::join(dup(), 5, 1).expect("the same");
        let a = ours.lock().place(wanted(Domain::Vram, 4096, 1, (0, 8192))).expect("room");
        let b = theirs.lock().place(wanted(Domain::Vram, 4096, 1, (0, 8192))).expect("room");
        assert_eq!((a.offset, b.offset, b.owner), (0, 4096, 1));
        ours.touch(a.index);
        let entries = theirs.lock().entries();
        assert!(entries[0].used > entries[1].used, "touched later");
        theirs.lock().set_pinned(a.index, true);
        assert!(ours.lock().entry(a.index).expect("in use").pinned);
    }

    #[test]
    fn a_full_table_is_reported() {
        let ledger = Ledger::create(1, 0).expect("memory exists");
        let table = ledger.lock();
        // Not one by one, which would take quadratic time.
        for index in 0..ENTRIES {
            ledger.store(word(index, 1), 1 << 40);
            ledger.store(word(index, 0), IN_USE);
        }
        ledger.store(HIGH_AT, ENTRIES);
        assert!(table.place(wanted(Domain::Gtt, 1, 1, (0, 10))).is_none());
        table.free(ENTRIES - 1);
        assert!(table.place(wanted(Domain::Gtt, 1, 1, (0, 10))).is_some());
    }
}

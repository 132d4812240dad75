//! Virtual memory management: memory and addresses apart.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::copy::{At, Piece};
use crate::memory::Memory;
use crate::process::Process;
use crate::space::{Kind, LARGE_PAGE};
use crate::status::{Refusal, Result, Status, invalid};

/// Memory that has no address yet.
#[doc(alias = "CUmemGenericAllocationHandle")]
pub(crate) struct Allocation {
    pub(crate) handle: u64,
    pub(crate) size: u64,
    pub(crate) memory: Arc<Memory>,
    /// Kinds of handles by which other processes may be given it.
    pub(crate) handle_types: u32,
    /// Whether peers may reach it.
    pub(crate) is_rdma_capable: bool,
    /// How often the program holds the handle.
    users: AtomicU32,
}

/// Addresses into which allocations are mapped.
#[derive(Default)]
pub(crate) struct Reserved {
    maps: Mutex<BTreeMap<u64, Arc<Mapped>>>,
}

/// An allocation at an address.
pub(crate) struct Mapped {
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// Where in the allocation it begins.
    offset: u64,
    pub(crate) allocation: Arc<Allocation>,
    /// Never used twice in a process.
    pub(crate) id: u64,
    /// What the GPU may do: 0 nothing, 1 read, 3 read and write.
    access: AtomicU8,
}

impl Allocation {
    pub(crate) fn new(
        handle: u64,
        memory: Arc<Memory>,
        size: u64,
        handle_types: u32,
        is_rdma_capable: bool,
    ) -> Self {
        let users = AtomicU32::new(1);
        Self { handle, size, memory, handle_types, is_rdma_capable, users }
    }

    /// One more user of the handle, which a mapping may have outlived.
    pub(crate) fn retain(self: &Arc<Self>, process: &Process) {
        if self.users.fetch_add(1, Ordering::AcqRel) == 0 {
            process.allocations.restore(self.handle, self);
        }
    }

    /// One user less. What is mapped stays.
    pub(crate) fn release(&self, process: &Process) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            process.allocations.remove(self.handle);
        }
    }
}

impl Mapped {
    /// Where it ends.
    pub(crate) fn stop(&self) -> u64 {
        self.start + self.len
    }

    /// Where in the allocation an address is.
    pub(crate) fn offset_of(&self, addr: u64) -> u64 {
        self.offset + (addr - self.start)
    }

    pub(crate) fn access(&self) -> u8 {
        self.access.load(Ordering::Relaxed)
    }
}

impl Reserved {
    /// The mapping that has an address.
    pub(crate) fn find(&self, addr: u64) -> Option<Arc<Mapped>> {
        let maps = self.lock();
        let (_, mapped) = maps.range(..=addr).next_back()?;
        (addr < mapped.stop()).then(|| Arc::clone(mapped))
    }

    /// Whether nothing is mapped.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// All mappings of a range, if they cover it.
    ///
    /// # Errors
    ///
    /// They do not.
    pub(crate) fn covering(&self, addr: u64, len: u64) -> Result<Vec<Arc<Mapped>>> {
        let end = addr.saturating_add(len);
        let (mut at, mut found) = (addr, Vec::new());
        while at < end {
            let mapped = self.find(at);
            let mapped = mapped.ok_or_else(|| invalid(format!("nothing is mapped at {at:#x}")))?;
            at = mapped.stop();
            found.push(mapped);
        }
        Ok(found)
    }

    /// The memory of a range.
    ///
    /// # Errors
    ///
    /// Not all of it is mapped, or the GPU was not given access.
    pub(crate) fn pieces(&self, addr: u64, len: u64) -> Result<Vec<Piece>> {
        let end = addr + len;
        let piece = |mapped: Arc<Mapped>| {
            if mapped.access() == 0 {
                return Err(invalid(format!(
                    "{:#x} is mapped, and no GPU was given access (cuMemSetAccess)",
                    mapped.start
                )));
            }
            let (from, to) = (addr.max(mapped.start), end.min(mapped.stop()));
            let offset = mapped.offset + (from - mapped.start);
            let memory = Arc::clone(&mapped.allocation.memory);
            Ok(Piece { at: At::Device(memory, offset), len: to - from })
        };
        self.covering(addr, len)?.into_iter().map(piece).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Mapped>>> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Reserves addresses.
    ///
    /// # Errors
    ///
    /// Sizes that are no whole large pages, or no addresses left.
    pub(crate) fn reserve(&self, size: u64, align: u64, hint: u64) -> Result<u64> {
        if size == 0 || !size.is_multiple_of(LARGE_PAGE) {
            return Err(invalid(format!("{size:#x} bytes are not whole pages of {LARGE_PAGE:#x}")));
        }
        if align & align.wrapping_sub(1) != 0 {
            return Err(invalid(format!("alignment {align:#x} is no power of two")));
        }
        let start = self.space.take(size, align.max(LARGE_PAGE), hint)?;
        self.space.add(start, size, size, None, Kind::Reserved(Reserved::default()));
        Ok(start)
    }

    /// Gives reserved addresses back.
    ///
    /// # Errors
    ///
    /// They are not just what was reserved, or something is mapped.
    pub(crate) fn unreserve(&self, start: u64, size: u64) -> Result<()> {
        let is_that = |region: &crate::space::Region| {
            matches!(&region.kind, Kind::Reserved(reserved) if reserved.is_empty())
                && region.len == size
        };
        let region = self.space.remove(start, is_that);
        let region = region.ok_or_else(|| {
            invalid(format!(
                "{size:#x} bytes at {start:#x} are no reservation in which nothing is mapped"
            ))
        })?;
        self.space.end(&region);
        Ok(())
    }

    /// Maps an allocation.
    ///
    /// # Errors
    ///
    /// Room that is not reserved, or where something is mapped; or more than the allocation.
    pub(crate) fn map(&self, at: u64, size: u64, offset: u64, handle: u64) -> Result<()> {
        let allocation = self.allocation(handle)?;
        let whole = |value: u64| value.is_multiple_of(LARGE_PAGE);
        if size == 0 || !whole(size) || !whole(at) || offset != 0 || size > allocation.size {
            return Err(invalid(format!(
                "{size:#x} bytes at {at:#x} from {offset:#x} on of an allocation of {:#x}",
                allocation.size
            )));
        }
        let end = at.checked_add(size).ok_or_else(|| invalid("the range has no end"))?;
        self.in_reserved(at, end, |reserved| {
            let mut maps = reserved.lock();
            if maps.range(..end).next_back().is_some_and(|(_, mapped)| mapped.stop() > at) {
                return Err(invalid(format!("something is mapped at {at:#x} already")));
            }
            let id = self.space.next_id();
            let (start, len, access) = (at, size, AtomicU8::new(0));
            let mapped =
                Mapped { start, len, offset, allocation: Arc::clone(&allocation), id, access };
            maps.insert(at, Arc::new(mapped));
            Ok(())
        })
    }

    /// Unmaps whole mappings.
    ///
    /// # Errors
    ///
    /// The range does not begin and end with one.
    pub(crate) fn unmap(&self, at: u64, size: u64) -> Result<()> {
        let end = at.checked_add(size).ok_or_else(|| invalid("the range has no end"))?;
        let gone = self.in_reserved(at, end, |reserved| {
            let covering = reserved.covering(at, size)?;
            let is_whole = covering.first().is_some_and(|first| first.start == at)
                && covering.last().is_some_and(|last| last.stop() == end);
            if !is_whole {
                return Err(invalid(format!("{size:#x} bytes at {at:#x} are no whole mappings")));
            }
            let mut maps = reserved.lock();
            for mapped in &covering {
                maps.remove(&mapped.start);
            }
            Ok(covering)
        })?;
        for mapped in gone {
            mapped.allocation.memory.release(mapped.offset, mapped.len);
        }
        Ok(())
    }

    /// Says what the GPUs may do with mapped memory.
    ///
    /// # Errors
    ///
    /// Not all of the range is mapped.
    pub(crate) fn set_access(&self, at: u64, size: u64, access: u8) -> Result<()> {
        let end = at.checked_add(size).ok_or_else(|| invalid("the range has no end"))?;
        self.in_reserved(at, end, |reserved| {
            for mapped in reserved.covering(at, size)? {
                mapped.access.store(access, Ordering::Relaxed);
            }
            Ok(())
        })
    }

    /// The mapping that has an address.
    ///
    /// # Errors
    ///
    /// It is in no mapping.
    pub(crate) fn mapped(&self, addr: u64) -> Result<Arc<Mapped>> {
        let region = self.space.find_pointer(addr);
        let found = region.and_then(|region| match &region.kind {
            Kind::Reserved(reserved) => reserved.find(addr),
            _ => None,
        });
        found.ok_or_else(|| {
            Refusal::new(
                Status::InvalidValue,
                format!("{addr:#x} is in no mapping of an allocation"),
            )
        })
    }

    fn in_reserved<T>(
        &self,
        at: u64,
        end: u64,
        act: impl FnOnce(&Reserved) -> Result<T>,
    ) -> Result<T> {
        let region = self.space.find_pointer(at);
        match region.as_deref() {
            Some(region) if end <= region.stop() => match &region.kind {
                Kind::Reserved(reserved) => act(reserved),
                _ => Err(invalid(format!("{at:#x} is not reserved for mappings"))),
            },
            _ => Err(invalid(format!("{at:#x} to {end:#x} is not reserved"))),
        }
    }
}

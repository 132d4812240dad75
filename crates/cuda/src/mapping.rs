//! Virtual memory management: separate memory and addresses.

use std::sync::Arc;

use crate::process::Process;
use crate::space::{Held, Kind, LARGE_PAGE, Region};
use crate::status::{Refusal, Result, Status, invalid};
use crate::vmm::{Mapped, Reserved};

impl Process {
    /// Reserves addresses.
    ///
    /// # Errors
    ///
    /// A size that is not a multiple of a large page, or no addresses left.
    pub(crate) fn reserve(&self, size: u64, align: u64, hint: u64) -> Result<u64> {
        if size == 0 || !size.is_multiple_of(LARGE_PAGE) {
            return Err(invalid(format!("{size:#x} bytes are not whole pages of {LARGE_PAGE:#x}")));
        }
        if align & align.wrapping_sub(1) != 0 {
            return Err(invalid(format!("alignment {align:#x} is not a power of two")));
        }
        let start = self.space.take(size, align.max(LARGE_PAGE), hint)?;
        let held = Held::new(None, Kind::Reserved(Reserved::default()));
        self.space.add(start, size, size, held);
        Ok(start)
    }

    /// Frees a reservation.
    ///
    /// # Errors
    ///
    /// The range is not exactly a reservation, or something is mapped in it.
    pub(crate) fn unreserve(&self, start: u64, size: u64) -> Result<()> {
        let is_that = |region: &Region| {
            matches!(&region.kind, Kind::Reserved(reserved) if reserved.is_empty())
                && region.len == size
        };
        let region = self.space.remove(start, is_that);
        let region = region.ok_or_else(|| {
            invalid(format!("{size:#x} bytes at {start:#x} are not a reservation without mappings"))
        })?;
        self.space.end(&region);
        Ok(())
    }

    /// Maps an allocation.
    ///
    /// # Errors
    ///
    /// A range that is not reserved or not free; or one that is longer than the allocation.
    pub(crate) fn map(&self, at: u64, size: u64, offset: u64, handle: u64) -> Result<()> {
        let allocation = self.allocation(handle)?;
        let whole = |value: u64| value.is_multiple_of(LARGE_PAGE);
        if size == 0 || !whole(size) || !whole(at) || offset != 0 || size > allocation.size {
            return Err(invalid(format!(
                "{size:#x} bytes at {at:#x} from {offset:#x} on of an allocation of {:#x}",
                allocation.size
            )));
        }
        let end = at
            .checked_add(size)
            .ok_or_else(|| invalid("the range wraps around the end of the address space"))?;
        self.in_reserved(at, end, |reserved| {
            reserved.map(at, size, offset, &allocation, self.space.next_id(), 0)
        })
    }

    /// Unmaps whole mappings.
    ///
    /// # Errors
    ///
    /// The range does not begin and end with one.
    pub(crate) fn unmap(&self, at: u64, size: u64) -> Result<()> {
        let end = at
            .checked_add(size)
            .ok_or_else(|| invalid("the range wraps around the end of the address space"))?;
        self.in_reserved(at, end, |reserved| reserved.unmap(at, size))
    }

    /// Sets the access of the GPUs to mapped memory.
    ///
    /// # Errors
    ///
    /// Not all of the range is mapped.
    pub(crate) fn set_access(&self, at: u64, size: u64, access: u8) -> Result<()> {
        let end = at
            .checked_add(size)
            .ok_or_else(|| invalid("the range wraps around the end of the address space"))?;
        self.in_reserved(at, end, |reserved| reserved.set_access(at, size, access))
    }

    /// The mapping that contains an address.
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
        act: impl FnOnce(&Reserved) -> umd::Result<T>,
    ) -> Result<T> {
        let region = self.space.find_pointer(at);
        match region.as_deref() {
            Some(region) if end <= region.stop() => match &region.kind {
                Kind::Reserved(reserved) => Ok(act(reserved)?),
                _ => Err(invalid(format!("{at:#x} is not reserved for mappings"))),
            },
            _ => Err(invalid(format!("{at:#x} to {end:#x} is not reserved"))),
        }
    }
}

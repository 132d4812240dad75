//! The address space of an accelerator, and what is mapped in it.

use std::collections::BTreeMap;

use dmabuf::WeakDmaBuf;
use gpu::Bo;

use crate::{Result, is_all_mapped};

/// The page size of device memory, unless a program asks for another.
pub(super) const PAGE: u64 = 2 << 20;
/// The page sizes supported: a bit for each power of two.
pub(super) const PAGES: u64 = 1 << 16 | PAGE | 32 << 20;
/// Where the range for the device's own memory begins.
#[doc(alias = "dram_base_address")]
pub(super) const BASE: u64 = 0x1001_5000_0000_0000;
/// The size of that range, and of the range for host memory.
const SPAN: u64 = 1 << 44;
/// Where the range for host memory begins.
const HOST_BASE: u64 = BASE + SPAN;

#[doc(alias = "HL_MEM_FORCE_HINT")]
const FORCE_HINT: u32 = 0x8;

/// What a program has allocated and mapped.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) packs: BTreeMap<u32, Pack>,
    /// Keyed by address.
    maps: BTreeMap<u64, Mapping>,
}

/// An allocation.
#[doc(alias = "hl_vm_phys_pg_pack")]
pub(super) struct Pack {
    pub(super) bo: Bo,
    pub(super) mapped: usize,
}

/// What is mapped at an address.
#[doc(alias = "hl_vm_hash_node")]
pub(super) struct Mapping {
    len: u64,
    /// Device memory, or host memory if none.
    handle: Option<u32>,
    pub(super) exports: Vec<WeakDmaBuf>,
}

impl Mapping {
    fn is_exported(&self) -> bool {
        self.exports.iter().any(|buf| !buf.is_gone())
    }
}

impl Memory {
    pub(super) fn has_exports(&self) -> bool {
        self.maps.values().any(Mapping::is_exported)
    }

    /// Bytes of the device's memory that are allocated.
    #[doc(alias = "ctx_dram_mem")]
    pub(super) fn used(&self) -> u64 {
        self.packs.values().map(|pack| pack.bo.size()).sum()
    }

    pub(super) fn pack(&mut self, handle: u32) -> Result<&mut Pack> {
        let none = || refuse(libc::EINVAL, format_args!("there is no handle {handle}"));
        self.packs.get_mut(&handle).ok_or_else(none)
    }

    pub(super) fn mapping(&mut self, addr: u64) -> Result<&mut Mapping> {
        let none = || refuse(libc::EINVAL, format_args!("nothing is mapped at {addr:#x}"));
        self.maps.get_mut(&addr).ok_or_else(none)
    }

    #[doc(alias = "HL_MEM_OP_MAP")]
    pub(super) fn map_device(&mut self, handle: u64, hint: u64, flags: u32) -> Result<u64> {
        let handle = low(handle);
        let len = self.pack(handle)?.bo.size().next_multiple_of(PAGE);
        let addr = self.place(BASE, len, hint, flags)?;
        self.pack(handle)?.mapped += 1;
        self.maps.insert(addr, Mapping { len, handle: Some(handle), exports: vec![] });
        Ok(addr)
    }

    /// The program's memory, `len` bytes from an address.
    pub(super) fn map_host(&mut self, from: (u64, u64), hint: u64, flags: u32) -> Result<u64> {
        let (start, len) = from;
        let page = rustix::param::page_size() as u64;
        let end = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
        let Some(end) = end.filter(|_| len > 0) else {
            return Err(refuse(libc::EINVAL, format_args!("{len:#x} bytes at {start:#x}")));
        };
        let first = start - start % page;
        if !is_all_mapped(first, end - first) {
            let why = format_args!("{len:#x} bytes at {start:#x} are not all mapped");
            return Err(refuse(libc::EFAULT, why));
        }
        let addr = self.place(HOST_BASE, end - first, hint, flags)? + start % page;
        self.maps.insert(addr, Mapping { len: end - first, handle: None, exports: vec![] });
        Ok(addr)
    }

    /// A free range: the one asked for, or the first that is free.
    #[doc(alias = "get_va_block")]
    fn place(&self, base: u64, len: u64, hint: u64, flags: u32) -> Result<u64> {
        let whole = |addr: u64| addr - addr % rustix::param::page_size() as u64;
        let end = base + SPAN;
        let taken = |from: u64, to: u64| {
            self.maps.range(base..end).find_map(|(at, mapping)| {
                let behind = whole(*at) + mapping.len;
                (whole(*at) < to && from < behind).then_some(behind)
            })
        };
        let fits = |at: &u64| at.checked_add(len).is_some_and(|behind| behind <= end);
        if hint != 0 {
            let sound = hint >= base && hint.is_multiple_of(PAGE) && fits(&hint);
            if sound && taken(hint, hint + len).is_none() {
                return Ok(hint);
            }
            if flags & FORCE_HINT != 0 {
                return Err(refuse(libc::ENOMEM, format_args!("{hint:#x} cannot be had")));
            }
        }
        let mut at = base;
        while fits(&at) {
            match taken(at, at + len) {
                Some(behind) => at = behind.next_multiple_of(PAGE),
                None => return Ok(at),
            }
        }
        Err(refuse(libc::ENOMEM, format_args!("there are no addresses for {len:#x} bytes")))
    }

    #[doc(alias = "HL_MEM_OP_UNMAP")]
    pub(super) fn unmap(&mut self, addr: u64) -> Result<Option<Mapping>> {
        if self.mapping(addr)?.is_exported() {
            return Err(refuse(libc::EINVAL, format_args!("what is at {addr:#x} is exported")));
        }
        let mapping = self.maps.remove(&addr);
        if let Some(handle) = mapping.as_ref().and_then(|mapping| mapping.handle) {
            self.pack(handle)?.mapped -= 1;
        }
        Ok(mapping)
    }

    /// The memory at an address, if this range of it can be exported.
    pub(super) fn exportable(&mut self, addr: u64, size: u64, offset: u64) -> Result<Bo> {
        let no = |why: &str| {
            refuse(libc::EINVAL, format_args!("{size:#x} bytes at {addr:#x}+{offset:#x}: {why}"))
        };
        let Some(handle) = self.mapping(addr)?.handle else {
            return Err(no("memory of the host is not exported"));
        };
        let bo = self.pack(handle)?.bo.clone();
        let page = rustix::param::page_size() as u64;
        if !addr.wrapping_add(offset).is_multiple_of(page) || !size.is_multiple_of(page) {
            return Err(no("no whole pages"));
        }
        if size < page {
            return Err(no("less than a page"));
        }
        if offset.checked_add(size).is_none_or(|end| end > bo.size()) {
            return Err(no("more than is mapped"));
        }
        Ok(bo)
    }
}

/// Logs a refusal as the driver makes it, and returns its errno.
pub(super) fn refuse(errno: i32, why: std::fmt::Arguments<'_>) -> i32 {
    crate::no("habanalabs", errno, why)
}

/// Only the lower 32 bits of a handle count.
pub(super) fn low(handle: u64) -> u32 {
    // CAST: the lower half.
    handle as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(memory: &mut Memory, len: u64, hint: u64, flags: u32) -> Result<u64> {
        let addr = memory.place(BASE, len, hint, flags)?;
        memory.maps.insert(addr, Mapping { len, handle: None, exports: vec![] });
        Ok(addr)
    }

    #[test]
    fn addresses_are_those_asked_for_or_the_first_that_are_free() {
        let mut memory = Memory::default();
        assert_eq!(mapped(&mut memory, PAGE, 0, 0), Ok(BASE));
        assert_eq!(mapped(&mut memory, PAGE, BASE + 4 * PAGE, FORCE_HINT), Ok(BASE + 4 * PAGE));
        assert_eq!(mapped(&mut memory, PAGE, 0, 0), Ok(BASE + PAGE));
        assert_eq!(
            mapped(&mut memory, 3 * PAGE, 0, 0),
            Ok(BASE + 5 * PAGE),
            "the gap is too small"
        );
        assert_eq!(mapped(&mut memory, 2 * PAGE, 0, 0), Ok(BASE + 2 * PAGE), "the gap");
        assert_eq!(mapped(&mut memory, PAGE, BASE, 0), Ok(BASE + 8 * PAGE), "taken: another");
    }

    #[test]
    fn an_address_that_must_be_had_and_cannot_is_refused() {
        let mut memory = Memory::default();
        assert_eq!(mapped(&mut memory, PAGE, 0, 0), Ok(BASE));
        for hint in [BASE, BASE + 1, BASE - PAGE, BASE + SPAN, u64::MAX - PAGE + 1] {
            assert_eq!(mapped(&mut memory, PAGE, hint, FORCE_HINT), Err(libc::ENOMEM), "{hint:#x}");
        }
        for len in [SPAN, SPAN + PAGE, u64::MAX] {
            assert_eq!(mapped(&mut memory, len, 0, 0), Err(libc::ENOMEM), "{len:#x}");
        }
    }
}

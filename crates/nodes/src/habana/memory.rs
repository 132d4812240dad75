//! `HL_IOCTL_MEMORY`: memory of the device, and the addresses at which the device has it.

use std::collections::BTreeMap;
use std::os::fd::IntoRawFd;

use dmabuf::WeakDmaBuf;
use gpu::{Bo, Place};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Context, refuse};
use crate::args::{first_half, uapi};
use crate::file::File;
use crate::{Result, is_all_mapped, refused};

/// The page of the device's memory, unless a program asks for another.
pub(super) const PAGE: u64 = 2 << 20;
/// What pages there are besides: a bit for each power of two.
pub(super) const PAGES: u64 = 1 << 16 | PAGE | 32 << 20;
/// Where the device's own memory begins among its addresses.
#[doc(alias = "dram_base_address")]
pub(super) const BASE: u64 = 0x1001_5000_0000_0000;
/// How many addresses there are for it, and how many for memory of the host.
const SPAN: u64 = 1 << 44;
/// Where memory of the host is.
const HOST_BASE: u64 = BASE + SPAN;

uapi! {
    /// A union: the first word comes back.
    #[doc(alias = "hl_mem_args")]
    struct Args: 40 {
        words: [u64; 3],
        op: u32,
        flags: u32,
        ctx_id: u32,
        num_of_elements: u32,
    }
}

#[doc(alias = "HL_MEM_USERPTR")]
const USERPTR: u32 = 0x4;
#[doc(alias = "HL_MEM_FORCE_HINT")]
const FORCE_HINT: u32 = 0x8;

/// What a program has allocated and mapped.
#[derive(Default)]
pub(super) struct Memory {
    packs: BTreeMap<u32, Pack>,
    /// By the address.
    maps: BTreeMap<u64, Mapping>,
}

/// An allocation.
#[doc(alias = "hl_vm_phys_pg_pack")]
struct Pack {
    bo: Bo,
    mapped: usize,
}

/// What is at an address.
#[doc(alias = "hl_vm_hash_node")]
struct Mapping {
    len: u64,
    /// Memory of the device; of the host if it is none.
    handle: Option<u32>,
    exports: Vec<WeakDmaBuf>,
}

impl Mapping {
    fn is_exported(&self) -> bool {
        self.exports.iter().any(|buf| !buf.is_gone())
    }
}

/// One operation.
#[doc(alias = "hl_mem_ioctl")]
pub(super) fn ioctl(file: &File, context: &Context, args: &mut Args) -> Result<()> {
    if !file.node.gpu()?.is_operational() {
        return Err(refuse(libc::EBUSY, format_args!("the device is not operational")));
    }
    let ([first, second, third], flags) = (args.words, args.flags);
    let no = |why: &str| Err(refuse(libc::EINVAL, format_args!("{why}")));
    let (answer, failed) = match args.op {
        0 => (alloc(file, context, first, second).map(u64::from), 0),
        1 => return free(context, first),
        2 if flags & USERPTR != 0 => (context.memory().map_host((first, third), second, flags), 0),
        2 => (context.memory().map_device(second, first, flags), 0),
        3 => {
            let gone = context.memory().unmap(first)?;
            // With it go descriptors; what goes is dropped without the lock.
            drop(gone);
            return Ok(());
        }
        4 => return no("no block of registers can be mapped"),
        5 => (export(context, first, second, third, flags).map(as_word), as_word(-libc::EBADF)),
        6 => return no("no interrupt has time stamps"),
        op => return Err(refuse(libc::EINVAL, format_args!("there is no memory operation {op}"))),
    };
    // What came in does not come back, also when it failed.
    let words = [answer.unwrap_or(failed), 0, 0];
    *args = Args { words, op: 0, flags: 0, ctx_id: 0, num_of_elements: 0 };
    answer.map(drop)
}

/// A number of 32 bits in the first half of a word.
fn as_word(number: i32) -> u64 {
    // CAST: the bits.
    first_half(number as u32)
}

#[doc(alias = "HL_MEM_OP_ALLOC")]
fn alloc(file: &File, context: &Context, size: u64, page: u64) -> Result<u32> {
    let page = if page == 0 { PAGE } else { page };
    if !page.is_power_of_two() {
        return Err(refuse(libc::EINVAL, format_args!("a page of {page:#x} bytes")));
    }
    let whole = size.checked_next_multiple_of(page).filter(|size| *size > 0);
    let size = whole.ok_or_else(|| refuse(libc::EINVAL, format_args!("{size} bytes of memory")))?;
    let place = Place { align: page, ..Place::ONLY_VRAM };
    let bo = file.node.gpu()?.alloc(size, place).map_err(|error| refused(&error))?;
    let mut memory = context.memory();
    let free = (1..=u32::MAX).find(|handle| !memory.packs.contains_key(handle));
    let handle = free.ok_or(libc::EFAULT)?;
    memory.packs.insert(handle, Pack { bo, mapped: 0 });
    Ok(handle)
}

#[doc(alias = "HL_MEM_OP_FREE")]
fn free(context: &Context, handle: u64) -> Result<()> {
    let handle = low(handle);
    let mut memory = context.memory();
    let pack = memory.pack(handle)?;
    if pack.mapped > 0 {
        return Err(refuse(libc::EINVAL, format_args!("handle {handle} is mapped")));
    }
    let gone = memory.packs.remove(&handle);
    // What goes is dropped without the lock.
    drop(memory);
    drop(gone);
    Ok(())
}

/// A dma-buf of what is mapped from `addr + offset` on.
#[doc(alias = "HL_MEM_OP_EXPORT_DMABUF_FD")]
fn export(context: &Context, addr: u64, size: u64, offset: u64, flags: u32) -> Result<i32> {
    let bo = context.memory().exportable(addr, size, offset)?;
    let buf = bo.export_range(offset, size).map_err(|error| refused(&error))?;
    let weak = buf.downgrade();
    let mut memory = context.memory();
    // Somebody may have unmapped it meanwhile.
    let exports = &mut memory.mapping(addr)?.exports;
    let gone: Vec<_> = exports.extract_if(.., |buf| buf.is_gone()).collect();
    exports.push(weak);
    drop(memory);
    drop(gone);
    let flags = OFlags::from_bits_retain(flags);
    Ok(dmabuf::give(buf, flags).map_err(Errno::raw_os_error)?.into_raw_fd())
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

    fn pack(&mut self, handle: u32) -> Result<&mut Pack> {
        let none = || refuse(libc::EINVAL, format_args!("there is no handle {handle}"));
        self.packs.get_mut(&handle).ok_or_else(none)
    }

    fn mapping(&mut self, addr: u64) -> Result<&mut Mapping> {
        let none = || refuse(libc::EINVAL, format_args!("nothing is mapped at {addr:#x}"));
        self.maps.get_mut(&addr).ok_or_else(none)
    }

    #[doc(alias = "HL_MEM_OP_MAP")]
    fn map_device(&mut self, handle: u64, hint: u64, flags: u32) -> Result<u64> {
        let handle = low(handle);
        let len = self.pack(handle)?.bo.size().next_multiple_of(PAGE);
        let addr = self.place(BASE, len, hint, flags)?;
        self.pack(handle)?.mapped += 1;
        self.maps.insert(addr, Mapping { len, handle: Some(handle), exports: vec![] });
        Ok(addr)
    }

    /// Memory of the program: `from` an address, so long.
    fn map_host(&mut self, from: (u64, u64), hint: u64, flags: u32) -> Result<u64> {
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

    /// Free addresses: those asked for, or the first that are free.
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
    fn unmap(&mut self, addr: u64) -> Result<Option<Mapping>> {
        if self.mapping(addr)?.is_exported() {
            return Err(refuse(libc::EINVAL, format_args!("what is at {addr:#x} is exported")));
        }
        let mapping = self.maps.remove(&addr);
        if let Some(handle) = mapping.as_ref().and_then(|mapping| mapping.handle) {
            self.pack(handle)?.mapped -= 1;
        }
        Ok(mapping)
    }

    /// The memory at an address, if this stretch of it can be exported.
    fn exportable(&mut self, addr: u64, size: u64, offset: u64) -> Result<Bo> {
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

/// Of a handle only 32 bits count.
fn low(handle: u64) -> u32 {
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

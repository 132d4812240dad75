//! Private anonymous memory that the CPU touches.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use hmm::PAGE;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use umem::Umem;

/// A mapping, parts of which may be gone.
pub(crate) struct Memory {
    /// One page before it is mapped and not used: what is unmapped or dropped right below a range
    /// makes the module forget the first page of it.
    base: *mut u8,
    len: u64,
    cpu: Umem,
    /// A bit for each page that is unmapped: whatever is there now is somebody else's.
    gone: Cell<u64>,
}

impl Memory {
    pub(crate) fn new(pages: u64) -> Result<Self, String> {
        let len = pages * PAGE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                (len + PAGE) as usize,
                protection,
                MapFlags::PRIVATE,
            )
        };
        let base = base.map_err(|errno| format!("mmap: {errno}"))?.cast::<u8>();
        let base = base.wrapping_add(PAGE as usize);
        // SAFETY: advice about a range that is mapped; it changes no byte.
        unsafe { rustix::mm::madvise(base.cast(), len as usize, Advice::LinuxNoHugepage) }
            .map_err(|errno| format!("MADV_NOHUGEPAGE: {errno}"))?;
        // SAFETY: it stays mapped as long as this value, apart from what `unmap` takes, which
        // nothing touches after that.
        let cpu = unsafe { Umem::user(base.addr(), len) };
        Ok(Self { base, len, cpu, gone: Cell::new(0) })
    }

    pub(crate) fn addr(&self) -> u64 {
        self.base.addr() as u64
    }

    pub(crate) fn read(&self, first: u64, count: u64) -> Vec<u8> {
        let mut bytes = vec![0; (count * PAGE) as usize];
        self.cpu.read(first * PAGE, &mut bytes).expect("it is mapped");
        bytes
    }

    pub(crate) fn write(&self, first: u64, bytes: &[u8]) {
        self.cpu.write(first * PAGE, bytes).expect("it is mapped");
    }

    pub(crate) fn drop_pages(&self, first: u64, count: u64) {
        // SAFETY: pages of this mapping, to which nobody has a reference.
        unsafe {
            rustix::mm::madvise(self.at(first), (count * PAGE) as usize, Advice::LinuxDontNeed)
        }
        .expect("it is mapped");
    }

    pub(crate) fn unmap(&self, first: u64, count: u64) {
        self.gone.set(self.gone.get() | ((1 << count) - 1) << first);
        // SAFETY: pages of this mapping, to which nobody has a reference.
        unsafe { rustix::mm::munmap(self.at(first), (count * PAGE) as usize) }
            .expect("it is mapped");
    }

    fn at(&self, page: u64) -> *mut c_void {
        self.base.wrapping_add((page * PAGE) as usize).cast()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let pages = (0..self.len / PAGE).filter(|page| self.gone.get() & 1 << page == 0);
        let first = self.base.wrapping_sub(PAGE as usize).cast();
        for page in pages.map(|page| self.at(page)).chain([first]) {
            // SAFETY: it is mapped by this value, and nobody has a reference to it.
            unsafe { rustix::mm::munmap(page, PAGE as usize) }.expect("it is mapped");
        }
    }
}

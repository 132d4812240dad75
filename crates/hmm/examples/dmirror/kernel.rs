//! The kernel's side: the device of `test_hmm`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use hmm::PAGE;

use crate::memory::Memory;
use crate::{Answer, Mirrored, Seen};

const DEVICE: &str = "/dev/hmm_dmirror0";

/// `struct hmm_dmirror_cmd`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Command {
    addr: u64,
    ptr: u64,
    npages: u64,
    cpages: u64,
    faults: u64,
}

/// The requests, by number.
#[derive(Clone, Copy)]
enum Request {
    Read,
    Write,
    MigrateToDevice,
    MigrateToSystem,
    Snapshot,
    Exclusive,
    CheckExclusive,
    Flags = 8,
}

/// HMM_DMIRROR_FLAG_FAIL_ALLOC, and another bit, which means nothing: a number of pages that is
/// zero is refused.
const FAIL_ALLOC: u64 = 1;
const NOTHING: u64 = 2;

pub(crate) struct Kernel {
    device: File,
    pagemap: File,
    memory: Memory,
}

impl Kernel {
    pub(crate) fn new(pages: u64) -> Answer<Self> {
        let device = File::options().read(true).write(true).open(DEVICE);
        let device = device.map_err(|error| format!("{DEVICE}: {error}"))?;
        let pagemap = File::open("/proc/self/pagemap").map_err(words)?;
        Ok(Self { device, pagemap, memory: Memory::new(pages)? })
    }

    fn ask(&self, request: Request, first: u64, pages: u64, data: *mut u8) -> io::Result<Command> {
        let mut command = Command {
            addr: self.memory.addr() + first * PAGE,
            ptr: data.expose_provenance() as u64,
            npages: pages,
            ..Command::default()
        };
        // _IOWR('H', request, struct hmm_dmirror_cmd)
        let size = size_of::<Command>() as libc::c_ulong;
        let number =
            3 << 30 | size << 16 | libc::c_ulong::from(b'H') << 8 | request as libc::c_ulong;
        // SAFETY: the module reads and writes `command`, and as much data as the caller has.
        match unsafe { libc::ioctl(self.device.as_raw_fd(), number, &raw mut command) } {
            0 => Ok(command),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether an access of the device to the page may end in a fault that changes more than it
    /// should. The module forgets the entry behind each range that is invalidated
    /// (`dmirror_do_update` takes the end for a part of it). Its fault then ends exclusive use, and
    /// takes a page of its own device for one that it can copy, which is an oops.
    pub(crate) fn may_fault(&self, page: u64) -> Answer<bool> {
        Ok(matches!(self.seen(page)?, Seen::Exclusive | Seen::Device))
    }

    /// Whether the page table of the process has an entry that the CPU cannot use, by the bit for
    /// swap entries of `/proc/self/pagemap`.
    fn has_entry(&self, page: u64) -> Answer<bool> {
        const SWAP: u64 = 1 << 62;
        let mut entry = [0; 8];
        let at = (self.memory.addr() / PAGE + page) * 8;
        self.pagemap.read_exact_at(&mut entry, at).map_err(words)?;
        Ok(u64::from_ne_bytes(entry) & SWAP != 0)
    }

    fn snapshot(&self, page: u64) -> Answer<u8> {
        let mut protection = 0;
        self.ask(Request::Snapshot, page, 1, &raw mut protection).map_err(words)?;
        Ok(protection)
    }

    /// A request with a page of data for each page.
    fn with_data(&self, request: Request, first: u64, count: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (count * PAGE) as usize];
        self.ask(request, first, count, bytes.as_mut_ptr())?;
        Ok(bytes)
    }
}

fn words(error: io::Error) -> String {
    error.to_string()
}

impl Mirrored for Kernel {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    // Page by page, so that what faults is only the page itself.
    fn read(&self, first: u64, count: u64) -> Answer<Vec<u8>> {
        let page = |page| self.with_data(Request::Read, page, 1).map_err(words);
        let pages: Answer<Vec<_>> = (first..first + count).map(page).collect();
        Ok(pages?.concat())
    }

    fn write(&self, first: u64, bytes: &[u8]) -> Answer {
        for (page, bytes) in (first..).zip(bytes.to_vec().chunks_exact_mut(PAGE as usize)) {
            self.ask(Request::Write, page, 1, bytes.as_mut_ptr()).map_err(words)?;
        }
        Ok(())
    }

    fn to_device(&self, first: u64, count: u64) -> Answer {
        match self.with_data(Request::MigrateToDevice, first, count) {
            // Some page did not go.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            done => done.map(drop).map_err(words),
        }
    }

    fn to_system(&self, first: u64, count: u64) -> Answer {
        self.with_data(Request::MigrateToSystem, first, count).map(drop).map_err(words)
    }

    fn exclusive(&self, first: u64, count: u64) -> Answer {
        loop {
            match self.with_data(Request::Exclusive, first, count) {
                // It was held by somebody else for a moment.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                done => return done.map(drop).map_err(words),
            }
        }
    }

    fn is_exclusive(&self, page: u64) -> Answer<bool> {
        match self.with_data(Request::CheckExclusive, page, 1) {
            Ok(_) => Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(true),
            Err(error) => Err(words(error)),
        }
    }

    fn fail_allocations(&self, fail: bool) -> Answer {
        let flags = if fail { FAIL_ALLOC } else { NOTHING };
        self.ask(Request::Flags, 0, flags, std::ptr::null_mut()).map(drop).map_err(words)
    }

    fn seen(&self, page: u64) -> Answer<Seen> {
        match self.snapshot(page)? {
            // HMM_DMIRROR_PROT_ERROR
            0xff => Ok(Seen::Unmapped),
            // HMM_DMIRROR_PROT_NONE: nothing, or an entry that is not for the CPU.
            0 if self.has_entry(page)? => Ok(Seen::Exclusive),
            0 if self.is_exclusive(page)? => Err(format!("page {page} is exclusive and nowhere")),
            0 => Ok(Seen::Zeros),
            // HMM_DMIRROR_PROT_READ, HMM_DMIRROR_PROT_WRITE
            1 | 2 => Ok(Seen::Process),
            // HMM_DMIRROR_PROT_ZERO
            0x11 => Ok(Seen::Zeros),
            // HMM_DMIRROR_PROT_DEV_PRIVATE_LOCAL
            0x21 | 0x22 => Ok(Seen::Device),
            other => Err(format!("page {page}: a snapshot of {other:#x}")),
        }
    }

    fn settle(&self, _: u64, _: u64, _: Seen) -> Answer {
        Ok(())
    }
}

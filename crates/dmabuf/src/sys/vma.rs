//! The file mappings of this process.
//!
//! `PROCMAP_QUERY` (Linux 6.11, `fs/proc/task_mmu.c`) answers for one address in about a
//! microsecond. Without it the text of `/proc/self/maps` is read, whose cost grows with the number
//! of mappings.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use descriptors::PrivateFd;

use crate::fork::{self, Locked, Room};

/// A range of addresses where a file is mapped shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedFile {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The offset of `start` in the file.
    pub(crate) offset: u64,
    /// Device and inode.
    pub(crate) file: (u64, u64),
    /// Its path, as `/proc/self/maps` has it.
    pub(crate) name: String,
}

/// This process's `/proc/self/maps`, opened once: opening costs as much as a query. A forked child
/// opens its own.
static MAPS: Mutex<Option<PrivateFd>> = Mutex::new(None);

/// The first shared mapping of a file that ends after `from` and begins before `to`.
pub(crate) fn shared_file(from: u64, to: u64) -> Option<SharedFile> {
    let found = match query(from) {
        Ok(found) => found,
        Err(_) => in_text(&std::fs::read_to_string("/proc/self/maps").ok()?, from),
    };
    found.filter(|mapping| mapping.start < to)
}

fn query(from: u64) -> Result<Option<SharedFile>, Errno> {
    fork::hold(Room::Maps, || Box::new(MAPS.lock().unwrap_or_else(PoisonError::into_inner)));
    // A fork in another thread at this moment leaves the child with a lock that is never released.
    let Ok(mut maps) = MAPS.try_lock() else { return ask(open()?.as_fd(), from) };
    if !maps.as_ref().is_some_and(PrivateFd::is_ours) {
        *maps = Some(PrivateFd::new(open()?));
    }
    let Some(maps) = maps.as_ref() else { return Err(Errno::BADF) };
    ask(maps.as_fd(), from)
}

fn open() -> Result<OwnedFd, Errno> {
    let opened = File::open("/proc/self/maps");
    opened.map(Into::into).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT))
}

fn ask(maps: BorrowedFd<'_>, from: u64) -> Result<Option<SharedFile>, Errno> {
    // `PATH_MAX` is what the kernel allows.
    let mut name = [0_u8; 4096];
    let mut query = Query {
        size: size_of::<Query>() as u64,
        flags: COVERING_OR_NEXT | FILE_BACKED | SHARED,
        addr: from,
        name_size: name.len() as u32,
        name_addr: name.as_mut_ptr().expose_provenance() as u64,
        ..Query::default()
    };
    // SAFETY: the query is the kernel's structure; the name's address and size are those of an
    // array that outlives the call.
    match unsafe { ioctl(maps, ProcmapQuery(&mut query)) } {
        Err(Errno::NOENT) => return Ok(None),
        answer => answer?,
    }
    // With its NUL.
    let len = (query.name_size as usize).clamp(1, name.len()) - 1;
    Ok(Some(SharedFile {
        start: query.start,
        end: query.end,
        offset: query.offset,
        file: (rustix::fs::makedev(query.dev_major, query.dev_minor), query.inode),
        name: plain(&String::from_utf8_lossy(&name[..len])),
    }))
}

/// `START-END PERMS OFFSET MAJOR:MINOR INODE PATH`, for each mapping.
fn in_text(maps: &str, from: u64) -> Option<SharedFile> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    maps.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) = (hex(start)?, hex(end)?);
        let is_shared = words.next()?.ends_with('s');
        let offset = hex(words.next()?)?;
        let (major, minor) = words.next()?.split_once(':')?;
        // CAST: the kernel's device numbers have 12 and 20 bits.
        let dev = rustix::fs::makedev(hex(major)? as u32, hex(minor)? as u32);
        let inode = words.next()?.parse().ok()?;
        let name = line.find(" /").map_or("", |at| &line[at + 1..]);
        (end > from && is_shared && inode != 0).then(|| SharedFile {
            start,
            end,
            offset,
            file: (dev, inode),
            name: plain(name),
        })
    })
}

fn plain(name: &str) -> String {
    name.strip_suffix(" (deleted)").unwrap_or(name).to_owned()
}

const SHARED: u64 = 0x08;
const COVERING_OR_NEXT: u64 = 0x10;
const FILE_BACKED: u64 = 0x20;

/// `struct procmap_query`.
#[derive(Default)]
#[repr(C)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_addr: u64,
    build_id_addr: u64,
}

struct ProcmapQuery<'a>(&'a mut Query);

// SAFETY: opcode and structure are those of `<linux/fs.h>`; the kernel reads and writes the
// structure, and the name that it points to.
unsafe impl Ioctl for ProcmapQuery<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Query>(b'f', 17)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

impl Locked for MutexGuard<'static, Option<PrivateFd>> {
    /// The descriptor was closed.
    fn forget(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Pages, identity, sealed_memfd};

    #[test]
    fn both_ways_find_a_mapping_and_only_that() {
        let file = sealed_memfd("peerdma:vma", 0x4000).expect("a memfd");
        let pages = Pages::map(file.as_fd(), 0x1000, 0x2000, true).expect("room");
        let start = pages.addr() as u64;
        let (id, _) = identity(file.as_fd()).expect("a file");
        let expected = SharedFile {
            start,
            end: start + 0x2000,
            offset: 0x1000,
            file: id,
            name: "/memfd:peerdma:vma".to_owned(),
        };
        assert_eq!(shared_file(start + 0x1fff, start + 0x2000), Some(expected.clone()));
        let text = std::fs::read_to_string("/proc/self/maps").expect("proc");
        assert_eq!(in_text(&text, start), Some(expected));
        let anonymous = vec![0_u8; 1 << 20];
        let at = anonymous.as_ptr().addr() as u64;
        assert_eq!(shared_file(at, at + 4096), None);
    }

    #[test]
    fn a_line_is_read_whatever_its_path() {
        let maps = "7f0000000000-7f0000001000 rw-s 00002000 00:01 77 /memfd:a name (deleted)\n\
                    7f0000001000-7f0000002000 rw-p 00000000 00:00 0 \n";
        let found = in_text(maps, 0x7f00_0000_0000).expect("the first");
        assert_eq!(
            (found.name.as_str(), found.file.1, found.offset),
            ("/memfd:a name", 77, 0x2000)
        );
        assert_eq!(in_text(maps, 0x7f00_0000_1000), None);
    }
}

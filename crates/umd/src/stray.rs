//! The CPU followed a device pointer: explains in words whose memory it is.

use std::fmt::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::machine::Device;
use crate::space::{Content, Space};

/// A program that continues after such a fault is told this many times.
const TIMES: u32 = 8;

/// Drivers of one process: more than exist.
static WATCHED: [OnceLock<&'static dyn Explain>; 4] = [const { OnceLock::new() }; 4];

/// Text without an allocation.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - self.len;
        let part = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        Ok(())
    }
}

/// What knows addresses.
trait Explain: Send + Sync {
    fn is_device(&self, addr: u64) -> bool;

    fn explain(&self, addr: u64, line: &mut Line) -> fmt::Result;
}

struct Watched<K: 'static> {
    space: &'static Space<K>,
    devices: &'static [&'static Device],
    how: &'static str,
}

/// From now on, a fault at an address of this space is explained. `how` is the function by which
/// memory is copied.
pub fn watch<K: Content>(
    space: &'static Space<K>,
    devices: &'static [&'static Device],
    how: &'static str,
) {
    let mut new: Option<&'static dyn Explain> =
        Some(Box::leak(Box::new(Watched { space, devices, how })));
    for place in &WATCHED {
        place.get_or_init(|| new.take().expect("one place takes it"));
        if new.is_none() {
            break;
        }
    }
    umem::guard::explain_strays(explain);
}

impl<K: Content> Explain for Watched<K> {
    fn is_device(&self, addr: u64) -> bool {
        self.space.is_device(addr)
    }

    fn explain(&self, addr: u64, line: &mut Line) -> fmt::Result {
        match self.space.try_find(addr) {
            Some(region) => {
                let (start, len) = (region.start, region.len);
                // Dropping the last reference here would free the region here.
                let region = std::mem::ManuallyDrop::new(region);
                match region.device() {
                    Some(device) => {
                        let owner = &self.devices[device].name;
                        write!(line, "{len:#x} bytes of GPU {owner} at {start:#x}")?;
                    }
                    None => write!(
                        line,
                        "addresses for mapped memory of GPUs, {len:#x} from {start:#x}"
                    )?,
                }
            }
            None => write!(line, "no memory is allocated there")?,
        }
        writeln!(line, "; GPU memory is copied ({})", self.how)
    }
}

/// Writes to standard error what is at an address, if it can only be a device's. It runs in a
/// signal handler: it takes no lock that another thread may hold, and does not allocate.
fn explain(addr: usize) {
    static SAID: AtomicU32 = AtomicU32::new(0);
    let addr = addr as u64;
    let mut known = WATCHED.iter().filter_map(OnceLock::get);
    let Some(owner) = known.find(|owner| owner.is_device(addr)) else { return };
    if SAID.fetch_add(1, Ordering::Relaxed) >= TIMES {
        return;
    }
    let mut line = Line { bytes: [0; 256], len: 0 };
    let _ = write!(line, "peerdma: the CPU followed the device pointer {addr:#x}: ");
    let _ = owner.explain(addr, &mut line);
    // SAFETY: standard error may be closed; nothing else is done with it.
    let stderr = unsafe { std::os::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, &line.bytes[..line.len]);
}

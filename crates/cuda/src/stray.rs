//! The CPU followed a device pointer: whose memory that is, in words.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process;
use crate::space::Kind;

/// A program that goes on after such a fault is told so often.
const TIMES: u32 = 8;

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

/// Says on standard error what is at an address, if it can only be a device's. In a signal handler: without a lock that
/// somebody may hold, and without an allocation.
pub(crate) fn explain(addr: usize) {
    static SAID: AtomicU32 = AtomicU32::new(0);
    let addr = addr as u64;
    let Some(process) = process::even_in_child() else { return };
    if !process.space.is_device(addr) || SAID.fetch_add(1, Ordering::Relaxed) >= TIMES {
        return;
    }
    let mut line = Line { bytes: [0; 256], len: 0 };
    let _ = write!(line, "peerdma: the CPU followed the device pointer {addr:#x}: ");
    let _ = match process.space.try_find(addr) {
        Some(region) => {
            let (start, len) = (region.start, region.len);
            // A region that ends here would be freed here.
            let region = std::mem::ManuallyDrop::new(region);
            match &region.kind {
                Kind::Device { memory, .. } => {
                    let owner = &process.devices()[memory.device].name;
                    write!(line, "{len:#x} bytes of GPU {owner} at {start:#x}")
                }
                _ => write!(line, "addresses for mapped memory of GPUs, {len:#x} from {start:#x}"),
            }
        }
        None => write!(line, "no memory is allocated there"),
    };
    let _ = writeln!(line, "; GPU memory is copied (cuMemcpy)");
    // SAFETY: standard error may be closed; nothing else is done with it.
    let stderr = unsafe { std::os::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, &line.bytes[..line.len]);
}

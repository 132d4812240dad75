//! Shared address spaces: pages of a process that live in a device for a while, under the address
//! that they always had.
//!
//! This is what the kernel's HMM gives a GPU driver (`docs/semantics.md` 5), done by userfaultfd. A
//! [`Mirror`] watches a range of the process. Its pages are where the last user wants them:
//!
//! ```text
//!                    migrate_to_device                     exclusive
//!    the device  <-----------------------  the process  ------------------>  held for the device,
//!    (its own     ----------------------->  (ordinary   <------------------   out of reach of
//!     memory)      CPU touch,                 pages)       CPU touch          the CPU
//!                  migrate_to_system
//!                                        untouched or dropped: nowhere
//! ```
//!
//! * The CPU may touch any page at any time. A page that is in the device comes back first, as with
//!   `migrate_to_ram` in the kernel; the thread waits, and sees its bytes.
//! * The device reads and writes by [`Mirror::read`] and [`Mirror::write`], wherever a page is. A
//!   NIC does not even need that: it touches memory as the CPU does, on demand.
//! * The mirror forgets pages that the program drops (`madvise`, `munmap`), and follows pages that
//!   it moves (`mremap`).
//! * [`Mirror::track_writes`] write-protects pages, and [`Mirror::take_written`] returns those that
//!   were written since.
//! * A child of a fork has every byte: all pages are brought back before the fork.
//!
//! Where it is weaker than the kernel:
//!
//! * Without privilege the kernel reports only faults of user mode ([`Mirror::is_user_mode_only`]).
//!   A *system call* that is given an address whose page is in the device then fails with EFAULT,
//!   and so does one that writes to a page while it migrates. Bring such pages back first
//!   ([`Mirror::migrate_to_system`]).
//! * `munmap` and `madvise` do not wait for the device: it may use its own page a moment longer.
//! * A page that the kernel is writing by direct I/O, or that another process is writing by
//!   `process_vm_writev`, can migrate meanwhile, and the write is lost. The kernel's HMM does not
//!   move such a page; user space cannot detect it.
//! * Only private anonymous memory, in pages of 4,096 bytes. Huge pages are split.
//!
//! ```
//! use hmm::{DevicePages, Mirror, Place};
//! use umem::HostBuf;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = DevicePages::new(umem::Umem::host(&HostBuf::anonymous(1 << 20)?));
//! let mirror = Mirror::new(1 << 20, device)?;
//! mirror.umem().write(5000, b"by the CPU")?;
//! mirror.migrate_to_device(4096, 4096)?;
//! assert_eq!(mirror.snapshot(4096, 4096)?, [Place::Device]);
//!
//! let mut seen = [0; 10];
//! mirror.read(5000, &mut seen)?; // by the device, in place
//! mirror.umem().read(5000, &mut seen)?; // by the CPU: the page comes back
//! assert_eq!(&seen, b"by the CPU");
//! assert_eq!(mirror.stats().faulted_back, 1);
//! # Ok(())
//! # }
//! ```

mod access;
mod error;
mod fork;
mod handler;
mod mirror;
mod moves;
mod pagemap;
mod pages;
mod range;
mod shared;
mod stats;
mod table;
mod uffd;

pub use error::{Error, Result};
pub use mirror::Mirror;
pub use moves::Migrated;
pub use pages::DevicePages;
pub use stats::Stats;
pub use table::Place;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

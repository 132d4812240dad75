//! Nodes of `/dev` behind which are our software GPUs: DRM's (`drm`), accelerators of habanalabs
//! (`habana`), devices of VFIO (`vfio`).
//!
//! `libpeerdma-preload.so` stands in front of libc's `open`, `ioctl`, `mmap` and their kin. When a
//! program opens a node that `PEERDMA_DRM_NODE` names, it asks this library for its [`Door`] and
//! from then on shows it every descriptor that might be ours. The GPU is in the program's own
//! process, as its NIC is.
//!
//! ```text
//!   open("/dev/dri/renderD128")  -> Door::open    a socket; the other end is ours: it hangs up when the last copy closes
//!   ioctl(fd, GEM_CREATE)        -> Door::ioctl   common | amdgpu | intel  -> Gpu::alloc -> a handle
//!   ioctl(fd, PRIME_HANDLE_TO_FD)-> prime         Bo::export -> the memfd that ibv_reg_dmabuf_mr knows
//!   mmap(fd, offset of a handle) -> Door::mmap    Bo::cpu_pages: held in place until it is unmapped
//!   close(fd)                    -> Door::closed  files that hung up go, buffers that nobody has go
//! ```
//!
//! A descriptor is known by its inode (`known`), so copies of it are, whichever way they were
//! made, and in whichever order they are closed. What must not take a lock, because any thread
//! calls it at any time, reads atomics: `close` and `munmap` of everything else pass by. The GPU is
//! never called, and nothing of it dropped, with a lock of ours held.
//!
//! A child of a fork inherits descriptors that answer ENODEV, and opens the node anew. docs/DRM.md
//! says what is served.
#![allow(unsafe_code, reason = "this is the boundary to C")]

mod args;
mod boundary;
mod buffer;
mod common;
mod door;
mod drm;
mod errno;
mod file;
mod habana;
mod known;
mod maps;
mod node;
mod objects;
mod program;
mod refusal;
mod state;
mod vfio;

pub use self::boundary::Process;
pub use self::door::{Door, door};
pub(crate) use self::program::{inode, is_all_mapped, pages, pointer};
pub(crate) use self::refusal::{Result, no, refused};

//! Device nodes in `/dev` backed by our software GPUs: DRM nodes (`drm`), habanalabs accelerators
//! (`habana`), VFIO devices (`vfio`).
//!
//! `libpeerdma-preload.so` interposes libc's `open`, `ioctl`, `mmap` and related functions. When a
//! program opens a node that `PEERDMA_DRM_NODE` names, the preload library asks this library for
//! its [`FileOps`] and from then on shows it every descriptor that might be ours. The GPU runs in
//! the program's own process, as the NIC does.
//!
//! ```text
//!   open("/dev/dri/renderD128")  -> FileOps::open    a socket; the other end is ours: it hangs up when the last copy closes
//!   ioctl(fd, GEM_CREATE)        -> FileOps::ioctl   common | amdgpu | intel  -> Gpu::alloc -> a handle
//!   ioctl(fd, PRIME_HANDLE_TO_FD)-> prime            Bo::export -> the memfd that ibv_reg_dmabuf_mr knows
//!   mmap(fd, offset of a handle) -> FileOps::mmap    Bo::cpu_pages: pinned until it is unmapped
//!   close(fd)                    -> FileOps::closed  frees files that hung up, and unused buffers
//! ```
//!
//! A descriptor is recognised by its inode (`known`), and so are its copies, however they were made
//! and in whatever order they are closed. `close` and `munmap` are called by any thread at any
//! time, mostly for things that are not ours: the check must not take a lock, and reads atomics.
//! This library never calls the GPU, nor drops any object of it, while it holds one of its locks.
//!
//! In a forked child, inherited descriptors answer ENODEV; the child must open the node again.
//! docs/DRM.md says what is served.
#![allow(unsafe_code, reason = "this is the boundary to C")]

mod args;
mod boundary;
mod buffer;
mod common;
mod drm;
mod errno;
mod file;
mod file_ops;
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
pub use self::file_ops::{FileOps, file_ops};
pub(crate) use self::program::{inode, is_all_mapped, pages, pointer};
pub(crate) use self::refusal::{Result, no, refused};

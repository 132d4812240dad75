//! `libpeerdma-preload.so`: the library that a program needs when `peerdma run` cannot intercept
//! its system calls, or when it must find a GPU that the kernel does not have.
//!
//! It shows the program our NICs under `/sys` where a sandbox forbids the seccomp filter: libc's
//! functions that take a path look into the directory that `PEERDMA_SYSFS` names when the path is
//! one of ours, and call libc's own in every other case. `peerdma run` makes the directory, sets
//! the variable and loads this library; without the variable it does nothing.
//!
//! ```text
//!   open("/sys/class/infiniband/peerdma0/node_guid")
//!     -> hooks::open  -> redirect: "$PEERDMA_SYSFS/class/infiniband/peerdma0/node_guid" -> libc's open
//!   open("/etc/hosts")
//!     -> hooks::open  -> redirect: not ours                                              -> libc's open
//! ```
//!
//! A socket of NETLINK_RDMA becomes one to `peerdma run`, which lists devices and objects there.
//!
//! With `peerdma run --gpu` it also shows the program nodes of GPUs and other devices: their
//! `open`, `ioctl`, `mmap` and `close` go to `libpeerdma.so`, which is loaded with it and has the
//! software GPU (`docs/DRM.md`, `docs/EXPORTERS.md`). `PEERDMA_DRM_NODE` lists the nodes.
//!
//! It makes a dma-buf of ours, which is a memfd, behave as a dma-buf of the kernel, in every
//! process that gets its descriptor: `mmap`, `ioctl`, `poll` and `lseek` of it go to
//! `libpeerdma.so` as well.
//!
//! It does not reach static binaries, Go, raw system calls, libc's calls to itself (`glob`, `ftw`),
//! or relative paths from a directory outside the tree. It contains no engine and no state but
//! names; it allocates nothing but what `getcwd` is asked to, so that it may be called before
//! `main` and from within `malloc`. `errno` is what libc's function leaves.
//!
//! Behind the seccomp filter, where it redirects nothing, a program changes into the tree with its
//! help (`cwd`).

#[cfg_attr(test, expect(dead_code, reason = "the hooks are not in the tests"))]
mod buffers;
#[cfg_attr(test, expect(dead_code, reason = "the hooks are not in the tests"))]
mod cwd;
#[cfg_attr(test, expect(dead_code, reason = "the hooks are not in the tests"))]
mod drm;
mod errno;
#[cfg_attr(test, expect(dead_code, reason = "the hooks are not in the tests"))]
mod netlink;
mod redirect;
mod variable;

// The test harness is a program like any other: with these names in it, its own libc calls would
// come here.
#[cfg(not(test))]
mod directory;
#[cfg(not(test))]
mod files;
#[cfg(not(test))]
mod hooks;
#[cfg(not(test))]
mod next;
#[cfg(not(test))]
mod polls;
#[cfg(not(test))]
mod sockets;

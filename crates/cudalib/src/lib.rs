//! `libpeerdma-cuda.so`: what CUDA programs are linked with, by name.
//!
//! The library is a `libcuda.so.1`, a `libnvidia-ml.so.1`, a `libcudart.so.12` and a
//! `libcudart.so.13`: one file, to which those names lead as links. It has every name that the
//! public headers have, and nothing behind them: each function says which name it is and jumps
//! through a table, which the first call of any of them fills from `libpeerdma.so`, where the GPU
//! is (crate `cuda`).
//!
//! ```text
//!   cuMemAlloc_v2:  mov eax, 412   three times, so that a hook has room      entry.rs
//!                   jmp go  ->  jmp [TABLE + 8 * eax]
//!                                   |        \
//!                                   | later   \ first call: load() finds libpeerdma.so, fills the table, and starts over
//!                                   v
//!                          libpeerdma.so: cuda::driver::memory::cuMemAlloc_v2
//! ```
//!
//! It is a library of its own, so that a verbs program on a machine with a real GPU does not find
//! another driver in its `libibverbs.so.1`. Nothing runs when it is loaded, and loading it does not
//! load `libpeerdma.so`: a program that only looks whether the library is there learns that, and no
//! more.
//!
//! # Beginnings of functions
//!
//! UCX patches the first bytes of the driver's functions that allocate and free. It moves what it
//! overwrites elsewhere, and for that has to understand it: pushes, `mov` of a constant into a
//! register of the old eight, and few more; no `endbr64`, `jmp` or `lea`. It overwrites 5 or 12
//! bytes. So every function begins with 15 bytes of `mov eax, INDEX`, and no two functions are
//! alike, which the linker would make one.
#![allow(unsafe_code, reason = "this is a table of C functions")]

mod entry;
mod load;

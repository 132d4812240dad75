//! The way to CUDA's libraries, for `libpeerdma-cuda.so`, which has their names.

use super::boundary::control;
use super::context::watch_the_end;

/// What is behind the names. Null is never returned but after a panic.
pub(crate) extern "C" fn peerdma_cuda_resolver() -> *const cuda::Resolver {
    control("peerdma_cuda_resolver", std::ptr::null(), || {
        watch_the_end();
        cuda::resolver()
    })
}

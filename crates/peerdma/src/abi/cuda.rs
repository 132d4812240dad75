//! The functions behind the names of CUDA's libraries, for `libpeerdma-cuda.so`, which has the
//! names.

use super::boundary::control;
use super::context::watch_the_end;

/// Where to find the functions. Null only after a panic.
pub(crate) extern "C" fn peerdma_cuda_resolver() -> *const cuda::Resolver {
    control("peerdma_cuda_resolver", std::ptr::null(), || {
        watch_the_end();
        cuda::resolver()
    })
}

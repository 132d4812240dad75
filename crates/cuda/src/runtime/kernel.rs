//! Kernels and variables of modules: programs that have these start, and get a refusal when they
//! use one.

use std::ffi::{c_int, c_void};
use std::sync::Once;

use super::call::{Failure, INVALID_DEVICE_FUNCTION, INVALID_SYMBOL, Result, initialized};
use crate::boundary::{Calls, Function, LOG, calls};

/// Refuses a query about a kernel.
fn no_kernel() -> Result<()> {
    Err(Failure::new(INVALID_DEVICE_FUNCTION, "a kernel: this GPU runs no code"))
}

/// Refuses the launch of a kernel.
fn launch() -> Result<()> {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            target: LOG,
            "the program launched a kernel: this GPU runs no code, and it is refused (cudaErrorInvalidDeviceFunction; \
             docs/CUDA.md)"
        );
    });
    no_kernel()
}

/// Refuses a variable of a module.
pub(super) fn no_symbol(symbol: *const c_void) -> Result<()> {
    Err(Failure::new(
        INVALID_SYMBOL,
        format!("{symbol:p} is not a variable: modules are empty here"),
    ))
}

/// Functions that query or launch a kernel, or query a variable. Their arguments are not read.
macro_rules! refused {
    ($($name:ident => $refusal:expr;)*) => {
        calls! {
            /// All of them.
            CALLS by initialized: $( fn $name() { $refusal } )*
        }
    };
}

refused! {
    cudaLaunchKernel => launch();
    cudaLaunchKernelExC => launch();
    cudaLaunchCooperativeKernel => launch();
    __cudaLaunchKernel => launch();
    cudaGraphLaunch => launch();
    __cudaGetKernel => no_kernel();
    cudaGetKernel => no_kernel();
    cudaGetFuncBySymbol => no_kernel();
    cudaFuncGetAttributes => no_kernel();
    cudaFuncSetAttribute => no_kernel();
    cudaFuncSetCacheConfig => no_kernel();
    cudaFuncSetSharedMemConfig => no_kernel();
    cudaFuncGetName => no_kernel();
    cudaFuncGetParamInfo => no_kernel();
    cudaOccupancyMaxActiveBlocksPerMultiprocessor => no_kernel();
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags => no_kernel();
    cudaOccupancyAvailableDynamicSMemPerBlock => no_kernel();
    cudaOccupancyMaxPotentialClusterSize => no_kernel();
    cudaOccupancyMaxActiveClusters => no_kernel();
    cudaMemcpyToSymbol => no_symbol(std::ptr::null());
    cudaMemcpyToSymbolAsync => no_symbol(std::ptr::null());
    cudaMemcpyFromSymbol => no_symbol(std::ptr::null());
    cudaMemcpyFromSymbolAsync => no_symbol(std::ptr::null());
}

/// The handle of a program's code. It is never read.
static HANDLE: [usize; 2] = [0; 2];

/// Registers a program's code, before `main`: it is neither read nor kept.
#[allow(non_snake_case, reason = "names of C")]
extern "C" fn __cudaRegisterFatBinary(_code: *const c_void) -> *const c_void {
    HANDLE.as_ptr().cast()
}

/// Registers a kernel or a variable, without effect.
extern "C" fn ignore() {}

/// Begins a launch: succeeds, so that the program goes on to the launch itself, which is refused.
extern "C" fn go_on() -> c_int {
    0
}

/// Functions that compiled programs call around `main` and around a launch. They log nothing, since
/// often no launch follows.
pub(super) const REGISTRATION: Calls = &[
    ("__cudaRegisterFatBinary", Function(__cudaRegisterFatBinary as *const ())),
    ("__cudaRegisterFatBinaryEnd", Function(ignore as *const ())),
    ("__cudaUnregisterFatBinary", Function(ignore as *const ())),
    ("__cudaRegisterFunction", Function(ignore as *const ())),
    ("__cudaRegisterVar", Function(ignore as *const ())),
    ("__cudaRegisterManagedVar", Function(ignore as *const ())),
    ("__cudaRegisterHostVar", Function(ignore as *const ())),
    ("__cudaRegisterUnifiedTable", Function(go_on as *const ())),
    ("__cudaInitModule", Function(go_on as *const ())),
    ("__cudaPushCallConfiguration", Function(go_on as *const ())),
    ("__cudaPopCallConfiguration", Function(go_on as *const ())),
];

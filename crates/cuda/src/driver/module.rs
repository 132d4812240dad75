//! Modules of GPU code, none of which runs.

use std::ffi::{c_int, c_void};
use std::sync::Once;

use crate::boundary::{LOG, calls};
use crate::c::{Out, Text};
use crate::context;
use crate::process;
use crate::status::{Refusal, Result, Status, unsupported};

/// The handle of every module, so that programs that load modules start.
const MODULE: u64 = 0x4000;

fn launch() -> Result<()> {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            target: LOG,
            "the program launched a kernel: this GPU runs no code, and it is refused (CUDA_ERROR_NOT_SUPPORTED; docs/CUDA.md)"
        );
    });
    process::get()?;
    Err(unsupported("a kernel was launched: this GPU runs no code"))
}

fn load(module: Out<u64>) -> Result<()> {
    process::get()?;
    context::current()?;
    module.put(MODULE)
}

fn no_symbol(what: &str, name: Text) -> Result<()> {
    let name = name.get()?.to_string_lossy();
    Err(Refusal::new(Status::NotFound, format!("no {what} {name:?}: modules are empty here")))
}

calls! { CALLS:
    fn cuModuleLoadData(module: Out<u64>, _image: *const c_void) { load(module) }

    fn cuModuleLoadDataEx(
        module: Out<u64>,
        _image: *const c_void,
        _count: u32,
        _options: *const c_int,
        _values: *const *const c_void,
    ) {
        load(module)
    }

    fn cuModuleLoadFatBinary(module: Out<u64>, _image: *const c_void) { load(module) }

    fn cuModuleUnload(_module: u64) { process::get().map(|_| ()) }

    fn cuModuleGetFunction(_function: Out<u64>, _module: u64, name: Text) {
        no_symbol("kernel", name)
    }

    fn cuModuleGetGlobal_v2(_at: Out<u64>, _len: Out<usize>, _module: u64, name: Text) {
        no_symbol("variable", name)
    }

    fn cuModuleGetLoadingMode(mode: Out<c_int>) {
        // Lazy.
        mode.put(2)
    }

    fn cuLibraryLoadData(
        library: Out<u64>,
        _image: *const c_void,
        _options: *const c_int,
        _values: *const *const c_void,
        _count: u32,
        _library_options: *const c_int,
        _library_values: *const *const c_void,
        _library_count: u32,
    ) {
        process::get()?;
        library.put(MODULE)
    }

    fn cuLibraryUnload(_library: u64) { process::get().map(|_| ()) }

    fn cuLibraryGetKernel(_kernel: Out<u64>, _library: u64, name: Text) {
        no_symbol("kernel", name)
    }

    fn cuLibraryGetModule(module: Out<u64>, _library: u64) { module.put(MODULE) }

    fn cuLibraryGetGlobal(_at: Out<u64>, _len: Out<usize>, _library: u64, name: Text) {
        no_symbol("variable", name)
    }

    fn cuLibraryGetManaged(_at: Out<u64>, _len: Out<usize>, _library: u64, name: Text) {
        no_symbol("variable", name)
    }

    fn cuLaunchKernel() { launch() }

    fn cuLaunchKernelEx() { launch() }

    fn cuLaunchCooperativeKernel() { launch() }

    fn cuLaunch() { launch() }

    fn cuLaunchGrid() { launch() }

    fn cuLaunchGridAsync() { launch() }

    fn cuGraphLaunch() { launch() }
}

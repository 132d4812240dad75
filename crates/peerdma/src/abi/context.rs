//! Opening and closing devices.

use std::ffi::c_int;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;

use descriptors::Known;
use device::{Hca, Refusal};

use threads::first::First;
use threads::fork::Handlers;

use super::boundary::control;
use super::own::context::{self as own, Opening};
use super::types::context::{ABI_IS_EXTENDED, Context};
use super::types::device::Device;
use super::types::ops::VerbsContext;
use super::{device as devices, errno, functions, gpu_trace, report};

pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    control("ibv_open_device", ptr::null_mut(), || {
        watch_forks();
        // SAFETY: contract: the device is one of ours.
        let nic = unsafe { devices::nic(device) };
        watch_the_end();
        report::begin();
        errno::or_null(Hca::open(&nic).and_then(|hca| open(device, hca)))
    })
}

/// Registers an exit handler, so that a program that ends without closing its devices loses nothing
/// from its capture, and reports its counters and the rules of its fault plan that fired.
pub(crate) fn watch_the_end() {
    static WATCH: First = First::new();
    extern "C" fn at_the_end() {
        device::finish_records();
        gpu_trace::end();
        gpu::weather::report();
        // The report needs thread-local storage, and the thread that ends the process may have lost
        // its own.
        if let Ok(thread) = threads::spawn("peerdma-report", report::finish) {
            let _ = thread.join();
        }
    }
    device::set_weather(gpu::weather::struck);
    gpu_trace::begin();
    // SAFETY: the function has the signature that atexit asks for, touches no argument, and is not
    // unloaded: the library is linked with `-z nodelete`. If it cannot be registered, the last
    // packets may be missing.
    WATCH.call(|| unsafe {
        libc::atexit(at_the_end);
    });
}

fn open(device: *mut Device, hca: Arc<Hca>) -> Result<*mut Context, Refusal> {
    let id = hca.alive()?.open_ctx()?;
    let (opening, cmd_fd) = own::register(hca, id, device.expose_provenance())?;
    Ok(create(device, opening, cmd_fd))
}

/// A context of a device that is open, with the descriptor that becomes its own.
pub(crate) fn create(device: *mut Device, opening: Arc<Opening>, cmd_fd: Known) -> *mut Context {
    let engine = opening.hca.lock();
    let async_fd =
        engine.async_fd(opening.id).expect("the context was opened just now").as_raw_fd();
    let vectors = engine.device_attr().num_comp_vectors;
    drop(engine);

    // SAFETY: the structure is made of integers, pointers, and pointers to functions that may be
    // absent, for all of which zero is a value; so it is for a mutex (`PTHREAD_MUTEX_INITIALIZER`).
    let mut c: VerbsContext = unsafe { mem::zeroed() };
    functions::fill(&mut c);
    c.sz = size_of::<VerbsContext>();
    c.context.device = device;
    c.context.cmd_fd = cmd_fd.as_raw_fd();
    c.context.async_fd = async_fd;
    c.context.num_comp_vectors = c_int::try_from(vectors).unwrap_or(c_int::MAX);
    c.context.abi_compat = ABI_IS_EXTENDED;
    own::add(c, opening, cmd_fd)
}

pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    control("ibv_close_device", -1, || {
        // SAFETY: contract: the context is one of ours, and the program uses it no more.
        unsafe { own::remove(context) };
        0
    })
}

/// Registers the fork handlers of devices, when the first one is opened. A module that calls a
/// device with a lock of its own held, and holds that lock across a fork, registers after this:
/// prepare handlers run in the reverse order of their registration, so that its lock is taken first
/// there, too.
pub(crate) fn watch_forks() {
    extern "C" fn prepare() {
        device::fork::prepare();
    }
    extern "C" fn parent() {
        device::fork::parent();
    }
    extern "C" fn child() {
        device::fork::child();
    }
    static WATCH: First = First::new();
    WATCH.call(|| {
        // An engine takes locks of buffers, and never the other way round.
        dmabuf::watch_forks();
        Handlers { prepare: Some(prepare), parent: Some(parent), child: Some(child) }.register();
    });
}

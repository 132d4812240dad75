//! The thread's device, and its context.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use super::call::{Failure, Result, done, in_context, initialized};
use crate::begin;
use crate::boundary::calls;
use crate::c::{In, Out};
use crate::context::{self, Context};
use crate::driver;
use crate::process::{self, Process};
use crate::status::{Status, invalid};

thread_local! {
    static DEVICE: Cell<usize> = const { Cell::new(0) };
}

/// GPUs whose primary context the library has retained: once, until it is reset.
static HELD: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Host memory can be mapped for the device, which is always possible.
const MAP_HOST: u32 = 8;

/// Flags of a device: scheduling, host memory, stacks, and copies.
const FLAGS: u32 = 0xff;

/// The device that the thread chose.
fn chosen() -> usize {
    DEVICE.try_with(Cell::get).unwrap_or_default()
}

/// The device that the thread works on: that of its context, or the one it chose.
pub(super) fn device() -> usize {
    context::top().map_or_else(chosen, |context| context.device)
}

/// The primary context of a GPU, which the library retains when it first needs it.
pub(super) fn primary(process: &Process, device: usize) -> Arc<Context> {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if held.contains(&device)
        && let Some(context) = process.contexts.primary_if_active(device)
    {
        return context;
    }
    // The program may have ended the context that was retained before.
    held.retain(|other| *other != device);
    held.push(device);
    process.contexts.retain_primary(device)
}

/// Gives the thread a context if it has none, or if its context was reset.
///
/// # Errors
///
/// The program has destroyed the context that it made current.
pub(super) fn ready(process: &'static Process) -> Result<()> {
    match (context::current(), context::top()) {
        (Ok(_), _) => Ok(()),
        (Err(refusal), Some(top)) if !top.is_primary() => Err(refusal.into()),
        (Err(_), _) => {
            context::set(Some(primary(process, device())));
            Ok(())
        }
    }
}

fn choose(device: usize, process: &'static Process) {
    let _ = DEVICE.try_with(|chosen| chosen.set(device));
    context::set(Some(primary(process, device)));
}

fn reset() -> Result<()> {
    let process = begin::init()?;
    let device = device();
    HELD.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| *other != device);
    process.reset_primary(device);
    if context::top().is_some_and(|top| top.is_primary() && top.device == device) {
        context::set(None);
        let _ = DEVICE.try_with(|chosen| chosen.set(device));
    }
    Ok(())
}

calls! { CALLS by in_context:
    fn cudaDeviceSynchronize() { done(driver::context::cuCtxSynchronize()) }

    fn cudaDeviceGetLimit(value: Out<usize>, limit: u32) {
        done(driver::context::cuCtxGetLimit(value, limit))
    }

    fn cudaDeviceSetLimit(limit: u32, value: usize) {
        done(driver::context::cuCtxSetLimit(limit, value))
    }

    fn cudaDeviceGetCacheConfig(config: Out<c_int>) {
        done(driver::context::cuCtxGetCacheConfig(config))
    }

    fn cudaDeviceSetCacheConfig(config: c_int) {
        done(driver::context::cuCtxSetCacheConfig(config))
    }

    fn cudaDeviceGetSharedMemConfig(config: Out<c_int>) {
        done(driver::context::cuCtxGetSharedMemConfig(config))
    }

    fn cudaDeviceSetSharedMemConfig(config: c_int) {
        done(driver::context::cuCtxSetSharedMemConfig(config))
    }

    fn cudaCtxResetPersistingL2Cache() {
        done(driver::context::cuCtxResetPersistingL2Cache())
    }

    fn cudaDeviceGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        done(driver::context::cuCtxGetStreamPriorityRange(least, greatest))
    }

    fn cudaDeviceEnablePeerAccess(peer: c_int, flags: u32) {
        let process = process::get()?;
        let peer = primary(process, process.ordinal(peer)?);
        let failed = done(driver::context::cuCtxEnablePeerAccess(peer.handle, flags));
        failed.map_err(|failure| match failure.number {
            // The runtime reports an invalid device here.
            _ if peer.device == device() => {
                Failure::new(Status::InvalidDevice.number(), "a GPU is not a peer of itself")
            }
            _ => failure,
        })
    }

    fn cudaDeviceDisablePeerAccess(peer: c_int) {
        let process = process::get()?;
        let peer = primary(process, process.ordinal(peer)?);
        done(driver::context::cuCtxDisablePeerAccess(peer.handle))
    }

    fn cudaDeviceFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) {
        done(driver::device::cuFlushGPUDirectRDMAWrites(target, scope))
    }

    fn cudaGetDeviceFlags(flags: Out<u32>) {
        let current = context::current()?.flags.load(std::sync::atomic::Ordering::Relaxed);
        Ok(flags.put(current | MAP_HOST)?)
    }
}

calls! { QUERIES by initialized:
    fn cudaSetDevice(device: c_int) {
        let process = process::get()?;
        choose(process.ordinal(device)?, process);
        Ok(())
    }

    fn cudaInitDevice(device: c_int, device_flags: u32, flags: u32) {
        let process = process::get()?;
        let device = process.ordinal(device)?;
        // Flag 1: set the flags of the device.
        if flags & !1 != 0 {
            return Err(invalid(format!("flags {flags:#x}")).into());
        }
        if flags == 1 {
            process.contexts.set_primary_flags(device, device_flags & FLAGS, false)?;
        }
        primary(process, device);
        Ok(())
    }

    fn cudaGetDevice(out: Out<c_int>) {
        // CAST: there are few GPUs.
        Ok(out.put(device() as c_int)?)
    }

    fn cudaSetDeviceFlags(flags: u32) {
        let process = process::get()?;
        if flags & !FLAGS != 0 {
            return Err(invalid(format!("flags {flags:#x} of a device")).into());
        }
        Ok(process.contexts.set_primary_flags(device(), flags, false)?)
    }

    fn cudaDeviceReset() { reset() }

    fn cudaSetValidDevices(list: In<c_int>, count: c_int) {
        let process = process::get()?;
        for index in 0..usize::try_from(count).map_err(|_| invalid("a negative count"))? {
            process.ordinal(list.get_at(index)?)?;
        }
        Ok(())
    }
}

// Older names of the same functions.
calls! { ONLY_12 by in_context:
    fn cudaThreadSynchronize() { done(driver::context::cuCtxSynchronize()) }

    fn cudaThreadExit() { reset() }

    fn cudaThreadGetLimit(value: Out<usize>, limit: u32) {
        done(driver::context::cuCtxGetLimit(value, limit))
    }

    fn cudaThreadSetLimit(limit: u32, value: usize) {
        done(driver::context::cuCtxSetLimit(limit, value))
    }

    fn cudaThreadGetCacheConfig(config: Out<c_int>) {
        done(driver::context::cuCtxGetCacheConfig(config))
    }

    fn cudaThreadSetCacheConfig(config: c_int) {
        done(driver::context::cuCtxSetCacheConfig(config))
    }
}

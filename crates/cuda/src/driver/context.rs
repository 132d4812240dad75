//! Contexts.

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::boundary::calls;
use crate::c::{In, Out};
use crate::context::{self, Context};
use crate::process::{self, Process};
use crate::status::{Refusal, Result, Status, invalid, unsupported};

/// Limits: number and value. They can be set, without effect.
const LIMITS: [usize; 8] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0, 0];

fn create(out: Out<u64>, flags: u32, device: c_int, version: u32) -> Result<()> {
    out.check()?;
    let process = process::get()?;
    let context = process.contexts.create(process.ordinal(device)?, flags, version)?;
    out.put_if(context.handle);
    context::push(context);
    Ok(())
}

/// Parameters of `_v4` beside the flags: cores and graphics. Neither is supported.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CreateParameters {
    affinity: *const c_void,
    count: c_int,
    graphics: *const c_void,
}

fn synchronize(process: &Process, context: &Context) -> Result<()> {
    process.streams_of(context).iter().try_for_each(|stream| stream.synchronize())
}

calls! { CALLS:
    fn cuCtxCreate_v2(context: Out<u64>, flags: u32, device: c_int) {
        create(context, flags, device, 3020)
    }

    fn cuCtxCreate_v3(context: Out<u64>, affinity: In<u8>, count: c_int, flags: u32, device: c_int) {
        if !affinity.is_null() && count != 0 {
            return Err(unsupported("contexts on a part of a GPU's cores"));
        }
        create(context, flags, device, 3020)
    }

    fn cuCtxCreate_v4(
        context: Out<u64>,
        parameters: In<CreateParameters>,
        flags: u32,
        device: c_int,
    ) {
        let parameters = parameters.get_if();
        if parameters.is_some_and(|given| given.count != 0 && !given.affinity.is_null()) {
            return Err(unsupported("contexts on a part of a GPU's cores"));
        }
        if parameters.is_some_and(|given| !given.graphics.is_null()) {
            return Err(unsupported("contexts for graphics"));
        }
        create(context, flags, device, 3020)
    }

    fn cuCtxDestroy_v2(context: u64) {
        let process = process::get()?;
        process.destroy_context(context)
    }

    fn cuCtxPushCurrent_v2(context: u64) {
        let process = process::get()?;
        context::push(process.contexts.find(context)?);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<u64>) {
        process::get()?;
        let top = context::pop()?;
        context.put_if(top.handle);
        Ok(())
    }

    fn cuCtxSetCurrent(context: u64) {
        let process = process::get()?;
        let new = if context == 0 { None } else { Some(process.contexts.find(context)?) };
        context::set(new);
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<u64>) {
        context.check()?;
        process::get()?;
        context.put(context::top().map_or(0, |context| context.handle))
    }

    fn cuCtxGetDevice(device: Out<c_int>) {
        process::get()?;
        // CAST: there are few GPUs.
        device.put(context::current()?.device as c_int)
    }

    fn cuCtxGetDevice_v2(device: Out<c_int>, context: u64) {
        // CAST: there are few GPUs.
        device.put(process::get()?.contexts.find_or_current(context)?.device as c_int)
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        process::get()?;
        flags.put(context::current()?.flags.load(Ordering::Relaxed))
    }

    fn cuCtxSetFlags(flags: u32) {
        process::get()?;
        context::current()?.set_flags(flags)
    }

    fn cuCtxGetId(context: u64, id: Out<u64>) {
        id.check()?;
        id.put(process::get()?.contexts.find_or_current(context)?.id)
    }

    fn cuCtxGetApiVersion(context: u64, version: Out<u32>) {
        version.put(process::get()?.contexts.find_or_current(context)?.version)
    }

    fn cuCtxSynchronize() {
        let process = process::get()?;
        synchronize(process, &*context::current()?)
    }

    fn cuCtxSynchronize_v2(context: u64) {
        let process = process::get()?;
        synchronize(process, &*process.contexts.find_or_current(context)?)
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: u32) {
        process::get()?;
        context::current()?;
        let limit = LIMITS.get(limit as usize);
        value.put(*limit.ok_or_else(|| Refusal::new(Status::UnsupportedLimit, "no such limit"))?)
    }

    fn cuCtxSetLimit(limit: u32, _value: usize) {
        process::get()?;
        context::current()?;
        let known = LIMITS.get(limit as usize).map(|_| ());
        known.ok_or_else(|| Refusal::new(Status::UnsupportedLimit, "no such limit"))
    }

    fn cuCtxGetCacheConfig(config: Out<c_int>) {
        process::get()?;
        context::current()?;
        config.put(0)
    }

    fn cuCtxSetCacheConfig(_config: c_int) {
        process::get()?;
        context::current().map(|_| ())
    }

    fn cuCtxGetSharedMemConfig(config: Out<c_int>) {
        process::get()?;
        context::current()?;
        config.put(0)
    }

    fn cuCtxSetSharedMemConfig(_config: c_int) {
        process::get()?;
        context::current().map(|_| ())
    }

    fn cuCtxResetPersistingL2Cache() {
        process::get()?;
        context::current().map(|_| ())
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        process::get()?;
        context::current()?;
        least.put_if(0);
        greatest.put_if(crate::driver::stream::GREATEST_PRIORITY);
        Ok(())
    }

    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) {
        let process = process::get()?;
        if flags != 0 {
            return Err(invalid(format!("flags {flags}: must be 0")));
        }
        let (context, peer) = (context::current()?, process.contexts.find(peer)?);
        let devices = process.devices();
        let (own, other) = (devices[context.device], devices[peer.device]);
        if context.device == peer.device || !own.reaches(other) {
            return Err(Refusal::new(
                Status::PeerAccessUnsupported,
                format!("{} does not reach {}: there is no path on PCI", own.name, other.name),
            ));
        }
        let mut peers = context.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.contains(&peer.device) {
            return Err(Refusal::new(Status::PeerAccessAlreadyEnabled, "access to it is enabled already"));
        }
        peers.push(peer.device);
        Ok(())
    }

    fn cuCtxDisablePeerAccess(peer: u64) {
        let process = process::get()?;
        let (context, peer) = (context::current()?, process.contexts.find(peer)?);
        let mut peers = context.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let at = peers.iter().position(|device| *device == peer.device);
        let none = || Refusal::new(Status::PeerAccessNotEnabled, "access to it is not enabled");
        peers.swap_remove(at.ok_or_else(none)?);
        Ok(())
    }

    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: c_int) {
        context.check()?;
        let process = process::get()?;
        context.put(process.contexts.retain_primary(process.ordinal(device)?).handle)
    }

    fn cuDevicePrimaryCtxRelease(device: c_int) {
        let process = process::get()?;
        process.release_primary(process.ordinal(device)?)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let process = process::get()?;
        process.release_primary(process.ordinal(device)?)
    }

    fn cuDevicePrimaryCtxReset(device: c_int) {
        let process = process::get()?;
        process.reset_primary(process.ordinal(device)?);
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        let process = process::get()?;
        process.reset_primary(process.ordinal(device)?);
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<u32>, is_active: Out<c_int>) {
        let process = process::get()?;
        let (now, active) = process.contexts.primary_state(process.ordinal(device)?);
        flags.put_if(now);
        is_active.put_if(c_int::from(active));
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags(device: c_int, flags: u32) {
        let process = process::get()?;
        process.contexts.set_primary_flags(process.ordinal(device)?, flags, true)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: u32) {
        let process = process::get()?;
        process.contexts.set_primary_flags(process.ordinal(device)?, flags, false)
    }
}

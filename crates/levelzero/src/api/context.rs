//! Contexts.

use crate::boundary::calls;
use crate::c::{Head, In, Out};
use crate::context::Context;
use crate::process::{self, driver};
use crate::status::{Refusal, Result, Status, flags};

/// Flags of contexts.
const FLAGS: u32 = 1;

#[derive(Clone, Copy)]
#[repr(C)]
struct ContextDesc {
    head: Head,
    flags: u32,
}

fn create(handle: u64, desc: In<ContextDesc>, devices: &[u64], out: Out<u64>) -> Result<()> {
    let process = driver(handle)?;
    let desc = desc.get()?;
    out.check()?;
    flags(desc.flags, FLAGS)?;
    let mut own = devices.iter().map(|one| process.device(*one)).collect::<Result<Vec<_>>>()?;
    if own.is_empty() {
        own = (0..process.devices.len()).collect();
    }
    let new = |handle| Context { handle, devices: own };
    out.put(process.contexts.add(new).handle)
}

fn check(context: u64, device: u64) -> Result<()> {
    let process = process::get()?;
    process.context(context)?.check(process.device(device)?)
}

fn check_range(context: u64, device: u64, addr: u64, len: usize) -> Result<()> {
    check(context, device)?;
    if addr == 0 {
        return Err(Refusal::new(Status::InvalidNullPointer, "no address"));
    }
    process::get()?.space.pieces(addr, len as u64)?;
    Ok(())
}

calls! { CALLS:
    fn zeContextCreate(driver: u64, desc: In<ContextDesc>, out: Out<u64>) {
        create(driver, desc, &[], out)
    }

    fn zeContextCreateEx(
        driver: u64,
        desc: In<ContextDesc>,
        count: u32,
        devices: In<u64>,
        out: Out<u64>,
    ) {
        if count > 0 && devices.is_null() {
            return Err(Refusal::new(Status::InvalidSize, format!("{count} devices at null")));
        }
        create(driver, desc, &devices.list(count as usize)?, out)
    }

    fn zeContextDestroy(context: u64) {
        process::get()?.end_context(context)
    }

    fn zeContextGetStatus(context: u64) {
        let process = process::get()?;
        for device in &process.context(context)?.devices {
            process.devices[*device].gpu()?;
        }
        Ok(())
    }

    fn zeContextSystemBarrier(context: u64, device: u64) {
        check(context, device)
    }

    fn zeContextMakeMemoryResident(context: u64, device: u64, addr: u64, len: usize) {
        check_range(context, device, addr, len)
    }

    fn zeContextEvictMemory(context: u64, device: u64, addr: u64, len: usize) {
        check_range(context, device, addr, len)
    }
}

//! Memory of other processes.

use std::os::fd::AsFd;

use umd::Memory;

use super::memory::{agents, all};
use crate::boundary::calls;
use crate::c::{In, Out};
use crate::ipc::{self, Raw};
use crate::process;
use crate::space::{Allocation, Held, Kind};
use crate::status::{Refusal, Status, invalid};

/// The unit to which some programs round lengths up.
const PAGE: u64 = 4096;

calls! { CALLS:
    // Only for a whole allocation.
    fn hsa_amd_ipc_memory_create(addr: u64, len: usize, out: Out<Raw>) {
        let process = process::get()?;
        out.check()?;
        if addr == 0 {
            return Err(invalid("no address"));
        }
        let region = process.space.find(addr).filter(|region| region.start == addr);
        let region = region.ok_or_else(|| invalid(format!("no allocation begins at {addr:#x}")))?;
        let (own, len) = (region.len, len as u64);
        if len != own && len != own.next_multiple_of(PAGE) {
            return Err(invalid(format!("{len:#x} bytes of {}: a handle is of all", region.name())));
        }
        let Kind::Device { memory, is_ipc: false, .. } = &region.kind else {
            return Err(invalid(format!("{} is not this process's GPU memory", region.name())));
        };
        let pages = u32::try_from(own.div_ceil(PAGE)).map_err(|_| {
            invalid(format!("{} is too large for a handle", region.name()))
        })?;
        out.put(memory.with_descriptor(|descriptor| ipc::handle(descriptor, pages))?)
    }

    fn hsa_amd_ipc_memory_attach(
        handle: In<Raw>,
        len: usize,
        count: u32,
        handles: In<u64>,
        out: Out<u64>,
    ) {
        let process = process::get()?;
        out.check()?;
        let bits = match count {
            0 => all(process) & !1,
            _ => agents(process, count as usize, handles)?,
        };
        let (file, pages) = ipc::open(&handle.get()?)?;
        let (len, most) = (len as u64, u64::from(pages) * PAGE);
        if len == 0 || len > most {
            return Err(invalid(format!("{len:#x} bytes of a handle of {most:#x}")));
        }
        let memory = Memory::import(&process.gpus, 0, file.as_fd())?;
        let held = Held::new(Kind::device(memory, true), bits);
        out.put(process.space.place(len, 1, held)?.start)
    }

    fn hsa_amd_ipc_memory_detach(start: u64) {
        let process = process::get()?;
        let is_attached =
            |region: &Allocation| matches!(region.kind, Kind::Device { is_ipc: true, .. });
        let region = process.space.remove(start, is_attached).ok_or_else(|| {
            Refusal::new(Status::INVALID_ARGUMENT, format!("nothing is attached at {start:#x}"))
        })?;
        process.space.end(&region);
        Ok(())
    }
}

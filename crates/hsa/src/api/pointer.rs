//! Queries about addresses.

use std::sync::atomic::Ordering;

use super::memory::all;
use crate::boundary::calls;
use crate::c::{In, Out};
use crate::process::{self, Process, agent_handle};
use crate::space::Kind;
use crate::status::{Refusal, Result, Status, invalid};

/// What is known about an address: the structure that programs pass. Older programs know fewer
/// fields; the size tells how many.
#[doc(alias = "hsa_amd_pointer_info_t")]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Info {
    size: u32,
    kind: u32,
    agent_base: u64,
    host_base: u64,
    len: usize,
    user_data: u64,
    owner: u64,
    flags: u32,
}

/// Kinds: unknown, allocated here, locked memory of the program, attached.
const UNKNOWN: u32 = 0;
const HSA: u32 = 1;
const LOCKED: u32 = 2;
const IPC: u32 = 4;

/// A function of the program that allocates.
type Allocate = Option<extern "C" fn(len: usize) -> Out<u64>>;

/// What is known about an address, and which agents reach it.
fn find(process: &Process, addr: u64) -> (Info, u64) {
    if let Some(region) = process.space.find(addr) {
        let (kind, host_base, owner, flags) = match &region.kind {
            Kind::Device { memory, is_ipc: true, .. } => (IPC, 0, memory.device + 1, 4),
            Kind::Device { memory, .. } => {
                let has_host = process.gpus[memory.device].config.host_access;
                (HSA, if has_host { region.start } else { 0 }, memory.device + 1, 4)
            }
            Kind::Host { flags, .. } => (HSA, region.start, 0, *flags),
        };
        let info = Info {
            kind,
            agent_base: region.start,
            host_base,
            // CAST: addresses are 64 bits wide here.
            len: region.len as usize,
            user_data: region.user_data.load(Ordering::Relaxed),
            owner: agent_handle(owner),
            flags,
            ..Info::default()
        };
        return (info, region.agents());
    }
    match process.locked.find(addr) {
        Some(range) => {
            let info = Info {
                kind: LOCKED,
                agent_base: range.start,
                host_base: range.start,
                len: range.len as usize,
                owner: agent_handle(0),
                flags: 2,
                ..Info::default()
            };
            (info, all(process))
        }
        None => (Info { kind: UNKNOWN, ..Info::default() }, 0),
    }
}

/// Returns the list of these agents, in memory that the program's function allocates.
fn put_agents(bits: u64, allocate: Allocate, count: Out<u32>, out: Out<Out<u64>>) -> Result<()> {
    let Some(allocate) = allocate else { return Ok(()) };
    if count.is_null() || out.is_null() {
        return Ok(());
    }
    // CAST: few.
    let agents: Vec<_> = (0..u64::BITS as usize).filter(|bit| bits & 1 << bit != 0).collect();
    let list = allocate(agents.len() * size_of::<u64>());
    if list.is_null() && !agents.is_empty() {
        return Err(Refusal::new(Status::OUT_OF_RESOURCES, "the program's function has no memory"));
    }
    for (index, agent) in agents.iter().enumerate() {
        list.put_at(index, agent_handle(*agent));
    }
    out.put(list)?;
    count.put(u32::try_from(agents.len()).unwrap_or_default())
}

calls! { CALLS:
    // For an unknown address the call succeeds with the unknown kind: programs ask for every
    // pointer.
    fn hsa_amd_pointer_info(
        addr: u64,
        place: Out<u8>,
        allocate: Allocate,
        count: Out<u32>,
        agents: Out<Out<u64>>,
    ) {
        let process = process::get()?;
        place.check()?;
        if addr == 0 {
            return Err(invalid("no address"));
        }
        let room = place.of::<u32>().input().get()? as usize;
        if room == 0 {
            return Err(invalid("a structure of no bytes"));
        }
        let (mut info, bits) = find(process, addr);
        let len = room.min(size_of::<Info>());
        // CAST: the size of a small structure.
        info.size = len as u32;
        let from: In<u8> = Out::to(&mut info).of::<u8>().input();
        for (index, byte) in from.list(len)?.into_iter().enumerate() {
            place.put_at(index, byte);
        }
        if info.kind == UNKNOWN {
            return Ok(());
        }
        put_agents(bits, allocate, count, agents)
    }

    fn hsa_amd_pointer_info_set_userdata(addr: u64, data: u64) {
        let process = process::get()?;
        let found = process.space.find(addr).filter(|region| region.start == addr);
        let found = found.ok_or_else(|| invalid(format!("no allocation begins at {addr:#x}")))?;
        found.user_data.store(data, Ordering::Relaxed);
        Ok(())
    }
}

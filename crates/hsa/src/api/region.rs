//! What regions and pools report about themselves, and about the path to them.

use super::agent::{Each, each};
use crate::boundary::calls;
use crate::c::Out;
use crate::process::{self, Process};
use crate::region::Region;
use crate::status::{Result, Status, invalid};

/// Host pages: the granularity of allocations.
fn page() -> usize {
    rustix::param::page_size()
}

/// The size of a region in bytes.
pub(super) fn size(process: &Process, region: Region) -> u64 {
    match region {
        Region::System(_) => rustix::system::sysinfo().totalram as u64,
        Region::Vram(gpu) => process.gpus[gpu].config.vram,
        Region::Group(_) => 64 << 10,
    }
}

/// The attributes that regions and pools share.
fn put(process: &Process, region: Region, attribute: u32, value: Out<u8>) -> Result<()> {
    let is_group = matches!(region, Region::Group(_));
    // CAST: addresses are 64 bits wide here.
    let bytes = |count: u64| value.of::<usize>().put(count as usize);
    match attribute {
        // The segment: global or group.
        0 => value.of::<u32>().put(if is_group { 3 } else { 0 }),
        1 => value.of::<u32>().put(region.flags()),
        2 => bytes(size(process, region)),
        // The maximum size of one allocation, the unit of sizes, and the alignment.
        4 | 16 => bytes(if is_group { 0 } else { size(process, region) }),
        5 => value.of::<bool>().put(!is_group),
        6 | 7 => value.of::<usize>().put(if is_group { 0 } else { page() }),
        _ => Err(invalid(format!("there is no attribute {attribute:#x} of memory"))),
    }
}

/// Whether an agent reaches a pool: never, always, or after it is allowed to.
fn access(process: &Process, agent: usize, region: Region) -> u32 {
    let (never, always, allowed) = (0, 1, 2);
    match (region, agent.checked_sub(1)) {
        _ if region.agent() == agent => always,
        (Region::System(_), _) => allowed,
        (Region::Vram(owner), None) => {
            if process.gpus[owner].config.host_access {
                allowed
            } else {
                never
            }
        }
        (Region::Group(_), _) => never,
        (Region::Vram(owner), Some(gpu)) => {
            if process.reaches(gpu, owner) {
                allowed
            } else {
                never
            }
        }
    }
}

/// The path from an agent to a pool.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Link {
    latency: [u32; 2],
    bandwidth: [u32; 2],
    atomics_32: bool,
    atomics_64: bool,
    is_coherent: bool,
    kind: u32,
    distance: u32,
}

/// The link is PCI Express.
const PCIE: u32 = 2;

calls! { CALLS:
    fn hsa_agent_iterate_regions(agent: u64, act: Each, data: u64) {
        let agent = process::get()?.agent(agent)?;
        each(act, data, Process::regions(agent).into_iter().map(Region::handle))
    }

    fn hsa_amd_agent_iterate_memory_pools(agent: u64, act: Each, data: u64) {
        let agent = process::get()?.agent(agent)?;
        each(act, data, Process::own_regions(agent).into_iter().map(Region::handle))
    }

    fn hsa_region_get_info(region: u64, attribute: u32, value: Out<u8>) {
        let process = process::get()?;
        value.check()?;
        let region = process.region(region, Status::INVALID_REGION)?;
        match attribute {
            // Whether the CPU reaches it; its base address; its bus width, and its clock.
            0xa000 => value.of::<bool>().put(region.agent() == 0),
            0xa001 => value.of::<u64>().put(0),
            0xa002 | 0xa003 => value.of::<u32>().put(0),
            // Private memory of a work group: none.
            8 => value.of::<u32>().put(0),
            15 | 16 => Err(invalid(format!("there is no attribute {attribute:#x} of a region"))),
            _ => put(process, region, attribute, value),
        }
    }

    fn hsa_amd_memory_pool_get_info(pool: u64, attribute: u32, value: Out<u8>) {
        let process = process::get()?;
        value.check()?;
        let region = process.region(pool, Status::INVALID_MEMORY_POOL)?;
        match attribute {
            15 => value.of::<bool>().put(region.agent() == 0),
            // Where it is: with the CPU, or a GPU.
            17 => value.of::<u32>().put(u32::from(region.agent() > 0)),
            18 => put(process, region, 6, value),
            _ => put(process, region, attribute, value),
        }
    }

    fn hsa_amd_agent_memory_pool_get_info(
        agent: u64,
        pool: u64,
        attribute: u32,
        value: Out<u8>,
    ) {
        let process = process::get()?;
        value.check()?;
        let agent = process.agent(agent)?;
        let region = process.region(pool, Status::INVALID_MEMORY_POOL)?;
        let access = access(process, agent, region);
        let hops = u32::from(access != 0 && region.agent() != agent);
        match attribute {
            0 => value.of::<u32>().put(access),
            1 => value.of::<u32>().put(hops),
            2 => {
                let kind = if hops > 0 { PCIE } else { 0 };
                value.of::<Link>().put(Link { kind, distance: 20 * hops, ..Link::default() })
            }
            _ => Err(invalid(format!("there is no attribute {attribute:#x} of a path to memory"))),
        }
    }
}

//! Agents: the CPU, and the GPUs.

use umd::c::text;
use umd::machine::Device;

use super::system::{CLOCK_HZ, go_on};
use crate::boundary::calls;
use crate::c::Out;
use crate::process::{self, Process, agent_handle, uuid};
use crate::status::{Result, invalid};

/// A callback of the program for each item: gets a handle, and the program's own data.
pub(super) type Each = Option<extern "C" fn(handle: u64, data: u64) -> i32>;

/// The instruction set that GPUs report. No code of it runs.
const NAME: &str = "gfx90a";

/// Calls a function of the program for each handle, until the function stops the traversal.
///
/// # Errors
///
/// There is no function; otherwise its result, if that is not success.
pub(super) fn each(act: Each, data: u64, handles: impl Iterator<Item = u64>) -> Result<()> {
    let act = act.ok_or_else(|| invalid("there is no function to call: it is null"))?;
    for handle in handles {
        go_on(act(handle, data))?;
    }
    Ok(())
}

/// Attributes that are the same for both kinds of agents, since nothing computes.
fn put_common(process: &Process, agent: usize, attribute: u32, value: Out<u8>) -> Result<()> {
    match attribute {
        // Features (kernel or agent dispatch): none.
        2 => value.of::<u32>().put(0),
        // Large addresses; the full profile of a CPU, the base profile of a GPU; rounding.
        3 => value.of::<u32>().put(1),
        4 => value.of::<u32>().put(u32::from(agent == 0)),
        5 | 23 => value.of::<u32>().put(2),
        24 => value.of::<bool>().put(false),
        // Waves, work groups, grids, barriers, queues.
        6 | 8 | 10..=14 => value.of::<u32>().put(0),
        7 => value.of::<[u16; 3]>().put([0; 3]),
        9 => value.of::<[u32; 3]>().put([0; 3]),
        15 => value.of::<u32>().put(0),
        // Its node, which equals its number.
        16 | 0xa004 => value.of::<u32>().put(u32::try_from(agent).unwrap_or_default()),
        17 => value.of::<u32>().put(u32::from(agent > 0)),
        18 => value.of::<[u32; 4]>().put([0; 4]),
        // The instruction set: none that code could be built for.
        19 => value.of::<u64>().put(0),
        20 => value.of::<[u8; 128]>().put([0; 128]),
        21 | 22 => value.of::<u16>().put(1),
        0xa001 => value.of::<u32>().put(64),
        // Units, clocks, watch points, waves, engines, revisions, firmware.
        0xa002
        | 0xa003
        | 0xa005
        | 0xa00a..=0xa00d
        | 0xa012
        | 0xa014
        | 0xa107..=0xa10b
        | 0xa110
        | 0xa111 => value.of::<u32>().put(0),
        0xa00e => value.of::<[u64; 2]>().put([0; 2]),
        0xa010 => value.of::<bool>().put(false),
        // Whether the CPU reaches the agent's memory.
        0xa013 => value.of::<bool>().put(agent == 0),
        0xa016 => value.of::<u64>().put(CLOCK_HZ),
        0xa112 => value.of::<u32>().put(u32::try_from(agent).unwrap_or_default()),
        0xa113 => value.of::<u64>().put(if agent == 0 { 0 } else { agent_handle(0) }),
        0xa114 | 0xa115 => value.of::<[u8; 8]>().put([0; 8]),
        _ => {
            let count = process.agents();
            Err(invalid(format!("there is no attribute {attribute:#x} of the {count} agents")))
        }
    }
}

fn put_gpu(own: &Device, value: Out<u8>, attribute: u32) -> Option<Result<()>> {
    let name = |name: &str| value.of::<[u8; 64]>().put(text(name));
    Some(match attribute {
        0 => name(NAME),
        1 => name("AMD"),
        0xa000 => value.of::<u32>().put(crate::PCI_ID >> 16),
        // Bus, device and function; and the domain.
        0xa006 => {
            let [bus, within] = [own.bdf.bus(), own.bdf.devfn()].map(u32::from);
            value.of::<u32>().put(bus << 8 | within)
        }
        0xa00f => value.of::<u32>().put(own.bdf.domain()),
        // The width of its memory bus in bits, and the clock in MHz.
        0xa007 => value.of::<u32>().put(4096),
        0xa008 => value.of::<u32>().put(1600),
        0xa009 => name(&own.title()),
        0xa011 => value.of::<[u8; 21]>().put(text(&uuid(own))),
        0xa015 => match own.gpu() {
            Ok(open) => {
                let used = open.used(gpu::Domain::Vram);
                value.of::<u64>().put(own.config.vram.saturating_sub(used))
            }
            Err(refusal) => Err(refusal.into()),
        },
        _ => return None,
    })
}

fn put_cpu(value: Out<u8>, attribute: u32) -> Option<Result<()>> {
    let name = |name: &str| value.of::<[u8; 64]>().put(text(name));
    Some(match attribute {
        0 | 0xa009 => name("CPU"),
        1 => name("CPU"),
        0xa000 | 0xa006 | 0xa007 | 0xa008 | 0xa00f => value.of::<u32>().put(0),
        0xa011 => value.of::<[u8; 21]>().put(text("CPU-XX")),
        _ => return None,
    })
}

calls! { CALLS:
    fn hsa_iterate_agents(act: Each, data: u64) {
        let count = process::get()?.agents();
        each(act, data, (0..count).map(agent_handle))
    }

    fn hsa_agent_get_info(agent: u64, attribute: u32, value: Out<u8>) {
        let process = process::get()?;
        value.check()?;
        let agent = process.agent(agent)?;
        let own = match agent.checked_sub(1) {
            None => put_cpu(value, attribute),
            Some(gpu) => put_gpu(process.gpus[gpu], value, attribute),
        };
        own.unwrap_or_else(|| put_common(process, agent, attribute, value))
    }

    // There are none: nothing computes, and the caches of a CPU are reported elsewhere.
    fn hsa_agent_iterate_isas(agent: u64, act: Each, data: u64) {
        process::get()?.agent(agent)?;
        each(act, data, std::iter::empty())
    }

    fn hsa_agent_iterate_caches(agent: u64, act: Each, data: u64) {
        process::get()?.agent(agent)?;
        each(act, data, std::iter::empty())
    }
}

//! Devices, ports, character devices, and the counters of ports.

use super::message::{Message, Request};
use super::numbers::attr;
use super::{Answer, DATAGRAM, Machine, NO_PORT, device, some_devices};
use crate::sysfs::{Device, NicFacts};

/// `RDMA_NODE_CA`.
const NODE_CA: u8 = 1;
/// States of a port (`enum ib_port_state`, `enum ib_port_phys_state`).
const PORT_DOWN: u8 = 1;
const PORT_ACTIVE: u8 = 4;
const PHYS_DISABLED: u8 = 3;
const PHYS_LINK_UP: u8 = 5;
/// The version of the ABI of uverbs (`IB_USER_VERBS_ABI_VERSION`).
const UVERBS_ABI: u64 = 6;
/// `RDMA_DRIVER_UNKNOWN`.
const DRIVER_UNKNOWN: u32 = 0;

/// The attributes by which every answer names its device.
pub(super) fn handle(out: &mut Message, index: usize, nic: &NicFacts) {
    // CAST: a handful of NICs.
    out.u32(attr::DEV_INDEX, index as u32);
    out.text(attr::DEV_NAME, &nic.name);
}

/// `RDMA_NLDEV_CMD_GET`.
pub(super) fn get(request: &Request<'_>, port: u32, machine: &dyn Machine) -> Answer {
    let describe = |index: usize| {
        let nic = &machine.nics()[index];
        let mut out = request.answer(port);
        handle(&mut out, index, nic);
        out.u32(attr::PORT_INDEX, nic.ports);
        out.text(attr::FW_VERSION, env!("CARGO_PKG_VERSION"));
        out.u64(attr::NODE_GUID, nic.node_guid);
        out.u64(attr::SYS_IMAGE_GUID, nic.node_guid);
        out.u8(attr::DEV_NODE_TYPE, NODE_CA);
        out.text(attr::DEV_PROTOCOL, "roce");
        out.finish()
    };
    Ok(some_devices(request, machine)?.into_iter().map(describe).collect())
}

/// `RDMA_NLDEV_CMD_PORT_GET`.
pub(super) fn ports(request: &Request<'_>, port: u32, machine: &dyn Machine) -> Answer {
    let index = device(request, machine)?;
    let nic = &machine.nics()[index];
    let describe = |number: u32| {
        let mut out = request.answer(port);
        handle(&mut out, index, nic);
        out.u32(attr::PORT_INDEX, number);
        out.u8(attr::PORT_STATE, if nic.active { PORT_ACTIVE } else { PORT_DOWN });
        out.u8(attr::PORT_PHYS_STATE, if nic.active { PHYS_LINK_UP } else { PHYS_DISABLED });
        out.u32(attr::NDEV_INDEX, nic.netdev.index);
        out.text(attr::NDEV_NAME, &nic.netdev.name);
        out.finish()
    };
    if request.is_dump() {
        return Ok((1..=nic.ports).map(describe).collect());
    }
    Ok(vec![describe(asked_port(request, nic)?)])
}

fn asked_port(request: &Request<'_>, nic: &NicFacts) -> Result<u32, super::Refusal> {
    let number = request.number(attr::PORT_INDEX).ok_or(NO_PORT)?;
    if (1..=nic.ports).contains(&number) { Ok(number) } else { Err(NO_PORT) }
}

/// `RDMA_NLDEV_CMD_SYS_GET`: devices belong to a network namespace, and memory that a NIC uses
/// stays the parent's in a fork.
pub(super) fn system(request: &Request<'_>, port: u32) -> Vec<u8> {
    let mut out = request.answer(port);
    out.u8(attr::SYS_NETNS_MODE, 0);
    out.u8(attr::SYS_COPY_ON_FORK, 1);
    out.finish()
}

/// `RDMA_NLDEV_CMD_GET_CHARDEV`.
pub(super) fn chardev(request: &Request<'_>, port: u32, machine: &dyn Machine) -> Answer {
    if request.text(attr::CHARDEV_TYPE) != Some("uverbs") {
        return Err((libc::ENOENT, "there is no character device of this type"));
    }
    let index = device(request, machine)?;
    let name = format!("uverbs{index}");
    let number = Device::named(&format!("{}/{name}", crate::sysfs::DEVICES));
    let mut out = request.answer(port);
    out.u64(attr::CHARDEV, number.map_or(0, Device::number));
    out.u64(attr::CHARDEV_ABI, UVERBS_ABI);
    out.text(attr::CHARDEV_NAME, &name);
    out.u32(attr::UVERBS_DRIVER_ID, DRIVER_UNKNOWN);
    Ok(vec![out.finish()])
}

/// `RDMA_NLDEV_CMD_STAT_GET`: the counters of a port. No counters are bound to queue pairs or
/// regions, so lists of those are empty.
pub(super) fn statistics(request: &Request<'_>, port: u32, machine: &dyn Machine) -> Answer {
    if request.number(attr::STAT_RES).is_some() {
        if request.is_dump() {
            return Ok(Vec::new());
        }
        return Err((libc::ENOENT, "no counter is bound to an object; a port has counters"));
    }
    let index = device(request, machine)?;
    let nic = &machine.nics()[index];
    let number = asked_port(request, nic)?;
    let counts = machine.counters(index, number);
    let mut out = request.answer(port);
    handle(&mut out, index, nic);
    out.u32(attr::PORT_INDEX, number);
    out.nest(attr::STAT_HWCOUNTERS, |out| {
        for name in crate::sysfs::hardware_counters() {
            // Longer names and numbers than those of today would be left out, and not cut in the
            // middle.
            if out.len() + name.len() + 32 > DATAGRAM {
                break;
            }
            let value = counts.get(name).copied().unwrap_or(0);
            out.nest(attr::STAT_HWCOUNTER_ENTRY, |out| {
                out.text(attr::STAT_HWCOUNTER_ENTRY_NAME, name);
                out.u64(attr::STAT_HWCOUNTER_ENTRY_VALUE, value);
            });
        }
    });
    Ok(vec![out.finish()])
}

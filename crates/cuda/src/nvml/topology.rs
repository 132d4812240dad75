//! The distance between GPUs.

use std::ffi::c_int;

use super::call::{Code, Failure, Result, device, handle, initialized};
use crate::boundary::calls;
use crate::c::{In, Out};
use crate::machine::{self, Nearness};

/// The capability that a query is about: reads, writes, NVLink, atomics, PCI.
const READ: c_int = 0;
const WRITE: c_int = 1;
const NVLINK: c_int = 2;
const ATOMICS: c_int = 3;
const PCI: c_int = 4;

/// The status: the path exists, the chipset does not have it, the GPU does not have it.
const OK: c_int = 0;
const NO_PATH: c_int = 3;
const NOT_SUPPORTED: c_int = 5;

/// The number of a distance.
fn level(nearness: Nearness) -> c_int {
    match nearness {
        Nearness::Same => 0,
        Nearness::OneSwitch => 10,
        Nearness::Switches => 20,
        Nearness::HostBridge => 30,
        Nearness::System => 50,
    }
}

fn common(gpu: u64, other: u64) -> Result<c_int> {
    Ok(level(device(gpu)?.1.nearness(device(other)?.1)))
}

calls! { CALLS by initialized:
    fn nvmlDeviceGetTopologyCommonAncestor(gpu: u64, other: u64, out: Out<c_int>) {
        Ok(out.put(common(gpu, other)?)?)
    }

    fn nvmlDeviceGetTopologyNearestGpus(
        gpu: u64,
        wanted: c_int,
        count: Out<u32>,
        list: Out<u64>,
    ) {
        let (own, device) = device(gpu)?;
        count.check()?;
        if ![0, 10, 20, 30, 40, 50].contains(&wanted) {
            return Err(Failure::new(Code::InvalidArgument, format!("distance {wanted}")));
        }
        let all = machine::devices().iter().enumerate();
        let near: Vec<_> = all
            .filter(|(index, other)| *index != own && level(device.nearness(other)) == wanted)
            .map(|(index, _)| handle(index))
            .collect();
        let room: In<u32> = count.input();
        let room = room.get()? as usize;
        for (at, handle) in near.iter().take(room).enumerate() {
            list.check()?;
            list.put_at(at, *handle);
        }
        // CAST: there are few GPUs.
        Ok(count.put(near.len() as u32)?)
    }

    fn nvmlDeviceGetP2PStatus(gpu: u64, other: u64, what: c_int, out: Out<c_int>) {
        let (from, to) = (device(gpu)?.1, device(other)?.1);
        Ok(out.put(match what {
            READ | WRITE | PCI if from.reaches(to) => OK,
            READ | WRITE | PCI => NO_PATH,
            NVLINK | ATOMICS => NOT_SUPPORTED,
            _ => return Err(Failure::new(Code::InvalidArgument, format!("path for {what}"))),
        })?)
    }
}

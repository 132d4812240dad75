//! Devices.

use std::ffi::{c_char, c_int};

use crate::attribute;
use crate::boundary::calls;
use crate::c::{Out, Text};
use crate::machine;
use crate::process;
use crate::status::{Refusal, Status, invalid};

/// A UUID, as in the header.
type Uuid = [u8; 16];

calls! { CALLS:
    fn cuDeviceGetCount(count: Out<c_int>) {
        // CAST: there are few GPUs.
        count.put(process::get()?.devices().len() as c_int)
    }

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        device.check()?;
        process::get()?.ordinal(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(name: Out<c_char>, len: c_int, device: c_int) {
        let len = usize::try_from(len).map_err(|_| invalid("a negative length"))?;
        name.put_text(&process::get()?.device(device)?.title(), len)
    }

    fn cuDeviceGetUuid(uuid: Out<Uuid>, device: c_int) {
        uuid.put(process::get()?.device(device)?.uuid)
    }

    fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: c_int) {
        uuid.put(process::get()?.device(device)?.uuid)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        // CAST: addresses are 64 bits wide here.
        bytes.put(process::get()?.device(device)?.config.vram as usize)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) {
        value.check()?;
        value.put(attribute::of(process::get()?.device(device)?, attribute)?)
    }

    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: c_int) {
        let device = process::get()?.device(device)?;
        major.put(attribute::of(device, attribute::COMPUTE_MAJOR)?)?;
        minor.put(attribute::of(device, attribute::COMPUTE_MINOR)?)
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, len: c_int, device: c_int) {
        let len = usize::try_from(len).map_err(|_| invalid("a negative length"))?;
        let bdf = process::get()?.device(device)?.bdf.to_string().to_uppercase();
        if len <= bdf.len() {
            return Err(invalid(format!("{len} bytes have no room for {bdf}")));
        }
        text.put_text(&bdf, len)
    }

    fn cuDeviceGetByPCIBusId(device: Out<c_int>, text: Text) {
        device.check()?;
        let text = text.get()?.to_string_lossy().to_lowercase();
        let process = process::get()?;
        let wanted = machine::bdf(&text)?;
        let found = process.devices().iter().position(|device| device.bdf == wanted);
        let none = || Refusal::new(Status::InvalidDevice, format!("no GPU is at {text}"));
        // CAST: there are few GPUs.
        device.put(found.ok_or_else(none)? as c_int)
    }

    fn cuDeviceCanAccessPeer(answer: Out<c_int>, device: c_int, peer: c_int) {
        let process = process::get()?;
        let (device, peer) = (process.device(device)?, process.device(peer)?);
        answer.put(c_int::from(device.bdf != peer.bdf && device.reaches(peer)))
    }

    fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, from: c_int, to: c_int) {
        let process = process::get()?;
        let (from, to) = (process.device(from)?, process.device(to)?);
        if from.bdf == to.bdf {
            return Err(Refusal::new(Status::InvalidDevice, "a GPU is not a peer of itself"));
        }
        let reaches = c_int::from(from.reaches(to));
        value.put(match attribute {
            // Rank, access, atomics, arrays, some atomics, in the order of their numbers.
            1 | 3 | 5 => 0,
            2 | 4 => reaches,
            _ => return Err(invalid(format!("peer attribute {attribute}"))),
        })
    }

    fn cuDeviceGetExecAffinitySupport(answer: Out<c_int>, _kind: c_int, device: c_int) {
        process::get()?.device(device)?;
        answer.put(0)
    }

    fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) {
        process::get()?;
        crate::context::current()?;
        if target != 0 || ![100, 200].contains(&scope) {
            return Err(invalid(format!("writes are not flushed for target {target}, scope {scope}")));
        }
        // A NIC's write is in memory before its completion is visible.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }
}

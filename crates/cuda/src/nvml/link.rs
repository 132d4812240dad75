//! NVLink, which no GPU has; and values by field number.

use std::ffi::c_int;

use super::call::{Code, Failure, Result, device, initialized};
use crate::boundary::calls;
use crate::c::{In, Out};

/// A value requested by its number.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FieldValue {
    field: u32,
    scope: u32,
    timestamp: i64,
    latency: i64,
    kind: c_int,
    code: c_int,
    value: u64,
}

const _: () = assert!(size_of::<FieldValue>() == 40);

/// The known fields: the current and the pending ECC mode, and the number of NVLinks.
const KNOWN: [u32; 3] = [1, 2, 91];

/// The type of a value.
const UNSIGNED: c_int = 1;

/// A larger number of fields is an error: there are fewer field numbers.
const MOST_FIELDS: c_int = 4096;

fn no_links(gpu: u64) -> Result<()> {
    device(gpu)?;
    Err(Failure::new(Code::NotSupported, "the GPU has no NVLink"))
}

fn no_fabric(gpu: u64) -> Result<()> {
    device(gpu)?;
    Err(Failure::new(Code::NotSupported, "the GPU is in no NVLink fabric"))
}

calls! { CALLS by initialized:
    fn nvmlDeviceGetFieldValues(gpu: u64, count: c_int, values: Out<FieldValue>) {
        device(gpu)?;
        values.check()?;
        if !(1..=MOST_FIELDS).contains(&count) {
            return Err(Failure::new(Code::InvalidArgument, format!("{count} fields")));
        }
        // CAST: checked.
        for index in 0..count as usize {
            let asked: In<FieldValue> = values.input();
            let mut value = asked.get_at(index)?;
            let is_known = KNOWN.contains(&value.field);
            value.code = if is_known { 0 } else { Code::NotSupported as c_int };
            (value.timestamp, value.latency, value.kind, value.value) = (0, 0, UNSIGNED, 0);
            values.put_at(index, value);
        }
        Ok(())
    }

    fn nvmlDeviceClearFieldValues(gpu: u64, _count: c_int, _values: Out<FieldValue>) {
        device(gpu).map(|_| ())
    }

    fn nvmlDeviceGetNvLinkState(gpu: u64, _link: u32, _active: Out<c_int>) { no_links(gpu) }

    fn nvmlDeviceGetNvLinkVersion(gpu: u64, _link: u32, _version: Out<u32>) { no_links(gpu) }

    fn nvmlDeviceGetNvLinkCapability(gpu: u64, _link: u32, _which: c_int, _answer: Out<u32>) {
        no_links(gpu)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo(gpu: u64, _link: u32, _info: Out<u8>) { no_links(gpu) }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu: u64, _link: u32, _info: Out<u8>) { no_links(gpu) }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(gpu: u64, _link: u32, _kind: Out<c_int>) {
        no_links(gpu)
    }

    fn nvmlDeviceGetGpuFabricInfo(gpu: u64, _info: Out<u8>) { no_fabric(gpu) }

    fn nvmlDeviceGetGpuFabricInfoV(gpu: u64, _info: Out<u8>) { no_fabric(gpu) }
}

//! Attributes of pointers.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::c::Out;
use crate::process::Process;
use crate::space::{Kind, Region, Source};
use crate::status::{Result, invalid};

/// A value with the width of the program's variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Four bytes.
    Int(c_int),
    /// Eight.
    Long(u64),
    /// The P2P tokens of the older GPUDirect API: eight bytes, and four.
    Tokens(u64, u32),
}

const CONTEXT: c_int = 1;
pub(crate) const MEMORY_TYPE: c_int = 2;
pub(crate) const DEVICE_POINTER: c_int = 3;
pub(crate) const HOST_POINTER: c_int = 4;
const P2P_TOKENS: c_int = 5;
/// The only attribute that can be set.
pub(crate) const SYNC_MEMOPS: c_int = 6;
const BUFFER_ID: c_int = 7;
pub(crate) const IS_MANAGED: c_int = 8;
pub(crate) const DEVICE_ORDINAL: c_int = 9;
const IS_LEGACY_IPC_CAPABLE: c_int = 10;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;
const MAPPED: c_int = 13;
const ALLOWED_HANDLE_TYPES: c_int = 14;
const IS_RDMA_CAPABLE: c_int = 15;
const ACCESS_FLAGS: c_int = 16;
const POOL_HANDLE: c_int = 17;
const MAPPING_SIZE: c_int = 18;
const MAPPING_BASE: c_int = 19;
const BLOCK_ID: c_int = 20;
const IS_DECOMPRESS_CAPABLE: c_int = 21;
const LOCALITY: c_int = 22;

/// Types of memory: host, or a GPU's.
const TYPE_HOST: c_int = 1;
const TYPE_DEVICE: c_int = 2;

/// The ordinal that stands for no device.
const NOWHERE: c_int = -2;

const READ_WRITE: c_int = 3;

impl Value {
    /// Stores it in the program's variable.
    pub(crate) fn put(self, data: Out<u8>) {
        match self {
            Self::Int(value) => data.of().put_if(value),
            Self::Long(value) => data.of().put_if(value),
            Self::Tokens(first, second) => {
                data.of().put_if(first);
                data.of().put_at(2, second);
            }
        }
    }

    /// The number, or the first of several.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Int(value) => i64::from(value).cast_unsigned(),
            Self::Long(value) | Self::Tokens(value, _) => value,
        }
    }
}

/// The attributes of an address that CUDA does not know: all empty.
///
/// # Errors
///
/// There is no such attribute.
pub(crate) fn unknown(attribute: c_int) -> Result<Value> {
    Ok(match attribute {
        DEVICE_ORDINAL => Value::Int(NOWHERE),
        P2P_TOKENS => Value::Tokens(0, 0),
        CONTEXT | DEVICE_POINTER | HOST_POINTER | BUFFER_ID | RANGE_START | RANGE_SIZE
        | ALLOWED_HANDLE_TYPES | POOL_HANDLE | MAPPING_SIZE | MAPPING_BASE | BLOCK_ID => {
            Value::Long(0)
        }
        MEMORY_TYPE
        | SYNC_MEMOPS
        | IS_MANAGED
        | IS_LEGACY_IPC_CAPABLE
        | MAPPED
        | IS_RDMA_CAPABLE
        | ACCESS_FLAGS
        | IS_DECOMPRESS_CAPABLE
        | LOCALITY => Value::Int(0),
        _ => return Err(invalid(format!("a pointer has no attribute {attribute}"))),
    })
}

/// Facts of device memory beside its address.
struct Device {
    ordinal: usize,
    pool: u64,
    is_legacy: bool,
    is_rdma: bool,
    handle_types: u32,
    mapping: Option<(u64, u64, u64)>,
}

/// An attribute of an address in a region.
///
/// # Errors
///
/// There is no such attribute, or memory of this kind does not have it.
pub(crate) fn attribute(
    process: &Process,
    region: &Region,
    attribute: c_int,
    addr: u64,
) -> Result<Value> {
    let device = device(region, addr)?;
    let none = || invalid(format!("{} has no attribute {attribute}", region.name()));
    let is_managed = matches!(region.kind, Kind::Managed { .. });
    let is_device = device.is_some();
    let context = region.context.as_ref();
    let ordinal = || match (&device, is_managed) {
        (Some(device), _) => device.ordinal,
        _ => context.map_or(0, |context| context.device),
    };
    Ok(match attribute {
        CONTEXT => Value::Long(context.map_or(0, |context| context.handle)),
        MEMORY_TYPE => Value::Int(if is_device || is_managed { TYPE_DEVICE } else { TYPE_HOST }),
        DEVICE_POINTER => Value::Long(addr),
        HOST_POINTER if is_device => return Err(none()),
        HOST_POINTER => Value::Long(addr),
        P2P_TOKENS => match &device {
            Some(device) if device.is_legacy && device.is_rdma => {
                region.sync_memops.store(true, Ordering::Relaxed);
                // CAST: any bits will do, so the low ones are taken.
                Value::Tokens(region.id, device.ordinal as u32)
            }
            _ => return Err(none()),
        },
        SYNC_MEMOPS => {
            let own = region.sync_memops.load(Ordering::Relaxed);
            Value::Int((own || context.is_some_and(|context| context.syncs_memops())).into())
        }
        BUFFER_ID => {
            let mapping = device.as_ref().and_then(|device| device.mapping);
            Value::Long(mapping.map_or(region.id, |(_, _, id)| id))
        }
        IS_MANAGED => Value::Int(is_managed.into()),
        // CAST: few.
        DEVICE_ORDINAL => Value::Int(ordinal() as c_int),
        IS_LEGACY_IPC_CAPABLE => Value::Int(device.as_ref().is_some_and(|d| d.is_legacy).into()),
        RANGE_START => Value::Long(region.start),
        RANGE_SIZE => Value::Long(region.len),
        MAPPED => Value::Int(1),
        ALLOWED_HANDLE_TYPES => {
            Value::Long(device.as_ref().map_or(0, |device| device.handle_types.into()))
        }
        IS_RDMA_CAPABLE => Value::Int(device.as_ref().is_some_and(|device| device.is_rdma).into()),
        ACCESS_FLAGS => Value::Int(match &region.kind {
            Kind::Reserved(_) => process.mapped(addr)?.access().into(),
            _ => READ_WRITE,
        }),
        POOL_HANDLE => Value::Long(device.as_ref().map_or(0, |device| device.pool)),
        MAPPING_SIZE => mapping(&device, region, |(_, len, _)| len),
        MAPPING_BASE => mapping(&device, region, |(start, _, _)| start),
        BLOCK_ID => mapping(&device, region, |(_, _, id)| id),
        IS_DECOMPRESS_CAPABLE | LOCALITY => Value::Int(0),
        _ => return Err(invalid(format!("a pointer has no attribute {attribute}"))),
    })
}

fn mapping(device: &Option<Device>, region: &Region, which: fn((u64, u64, u64)) -> u64) -> Value {
    let mapping = device.as_ref().and_then(|device| device.mapping);
    Value::Long(which(mapping.unwrap_or((region.start, region.len, region.id))))
}

fn device(region: &Region, addr: u64) -> Result<Option<Device>> {
    Ok(match &region.kind {
        Kind::Device { memory, source, .. } => {
            let ordinal = memory.device;
            Some(match source {
                Source::Pool(pool) => Device {
                    ordinal,
                    pool: pool.handle,
                    is_legacy: false,
                    is_rdma: pool.is_rdma_capable,
                    handle_types: pool.handle_types,
                    mapping: None,
                },
                _ => Device {
                    ordinal,
                    pool: 0,
                    is_legacy: true,
                    is_rdma: true,
                    handle_types: 0,
                    mapping: None,
                },
            })
        }
        Kind::Reserved(reserved) => {
            let mapped = reserved.find(addr);
            let mapped =
                mapped.ok_or_else(|| invalid(format!("nothing is mapped at {addr:#x}")))?;
            let allocation = &mapped.allocation;
            Some(Device {
                ordinal: allocation.memory.device,
                pool: 0,
                is_legacy: false,
                is_rdma: allocation.is_rdma_capable,
                handle_types: allocation.handle_types,
                mapping: Some((mapped.start, mapped.len, mapped.id)),
            })
        }
        _ => None,
    })
}

//! A process that owns memory of some kind, which one peer writes and reads.

use gpu::{Bo, Gpu, GpuConfig, Place};
use verbs::{Access, Dm, HostBuf, Pd, QpSpec};

use super::{hear, say};
use crate::{Outcome, exchange};

/// Owns `length` bytes: `anonymous`, `memfd`, `dm` (device memory of the NIC) or `gpu` (VRAM).
/// Reports its endpoint and the region. `connect ENDPOINT` connects; `fill BYTE` sets every byte,
/// `check BYTE` checks each.
pub(super) fn run(kind: &str, length: usize) -> Outcome<()> {
    let devices = verbs::devices()?;
    let context = devices.first().ok_or("there is no device")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    let (memory, mr) = Memory::new(&pd, kind, length)?;
    memory.write(&vec![1; length])?;
    let qp = pd.create_qp(&QpSpec::rc(&cq))?;
    say(&format!("{} {}", exchange::show(&qp.endpoint()?), exchange::show_memory(mr.remote(0))))?;
    while let Some(words) = hear()? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["connect", peer] => qp.connect(&exchange::endpoint(peer)?)?,
            ["fill", byte] => memory.write(&vec![byte.parse()?; length])?,
            ["check", byte] => {
                let (byte, bytes) = (byte.parse::<u8>()?, memory.read(length)?);
                if let Some(at) = bytes.iter().position(|found| *found != byte) {
                    return Err(format!("byte {at} is {}, not {byte}", bytes[at]).into());
                }
            }
            _ => return Err(format!("an owner does not know {words:?}").into()),
        }
        say("")?;
    }
    Ok(())
}

enum Memory {
    Host(HostBuf),
    Dm(Dm),
    Gpu(Bo),
}

impl Memory {
    fn new(pd: &Pd, kind: &str, length: usize) -> Outcome<(Self, verbs::Mr)> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Ok(match kind {
            "dm" => {
                let dm = pd.context().alloc_dm(length as u64)?;
                let mr = pd.reg_dm_mr(&dm, 0, length as u64, access)?;
                (Self::Dm(dm), mr)
            }
            "gpu" => {
                let config = GpuConfig { shared: false, vram: 64 << 20, ..GpuConfig::default() };
                let gpu = Gpu::open(&config)?;
                let bo = gpu.alloc(length as u64, Place::VRAM)?;
                let mr = pd.reg_whole_dmabuf(&bo.export()?, access)?;
                (Self::Gpu(bo), mr)
            }
            _ => {
                let buffer = match kind {
                    "memfd" => HostBuf::memfd("bench-owner", length)?,
                    _ => HostBuf::anonymous(length)?,
                };
                let mr = pd.reg_mr(&buffer, access)?;
                (Self::Host(buffer), mr)
            }
        })
    }

    fn write(&self, bytes: &[u8]) -> Outcome<()> {
        match self {
            Self::Host(buffer) => buffer.write(0, bytes)?,
            Self::Dm(dm) => dm.write(0, bytes)?,
            Self::Gpu(bo) => bo.write(0, bytes)?,
        }
        Ok(())
    }

    fn read(&self, length: usize) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; length];
        match self {
            Self::Host(buffer) => buffer.read(0, &mut bytes)?,
            Self::Dm(dm) => dm.read(0, &mut bytes)?,
            Self::Gpu(bo) => bo.read(0, &mut bytes)?,
        }
        Ok(bytes)
    }
}

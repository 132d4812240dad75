//! The kinds of memory of the demo, and patterns in them.

use std::error::Error;
use std::fmt;

use gpu::{Bo, Gpu, Place};
use umem::Umem;
use verbs::{Access, Dm, DmaBuf, HostBuf, Mr, Pd};

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Host memory.
    Host = 0,
    /// Memory of the NIC.
    Dm = 1,
    /// A dma-buf of plain memory.
    DmaBuf = 2,
    /// Memory of a GPU, which keeps moving it.
    Gpu = 3,
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Self; 4] = [Self::Host, Self::Dm, Self::DmaBuf, Self::Gpu];

    /// The kind with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Dm => "dm",
            Self::DmaBuf => "dma-buf",
            Self::Gpu => "gpu",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A registered memory of some kind.
pub(crate) struct Memory {
    kind: Kind,
    bytes: Bytes,
    mr: Mr,
    size: u64,
    exporter: Option<String>,
}

enum Bytes {
    Host(HostBuf),
    Dm(Dm),
    DmaBuf(Umem),
    Gpu(Bo),
}

/// The value of bytes that no operation has written.
const EMPTY: u8 = 0xee;

fn pattern(index: u32, seed: u8) -> u8 {
    (index as u8).wrapping_mul(31).wrapping_add((index >> 8) as u8).wrapping_add(seed)
}

impl Memory {
    /// Allocates and registers `size` bytes.
    pub(crate) fn new(pd: &Pd, gpu: &Gpu, kind: Kind, size: u64) -> Result<Self, Box<dyn Error>> {
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mut exporter = None;
        let (bytes, mr) = match kind {
            Kind::Host => {
                let buffer = HostBuf::anonymous(usize::try_from(size)?)?;
                let mr = pd.reg_mr(&buffer, access)?;
                (Bytes::Host(buffer), mr)
            }
            Kind::Dm => {
                let dm = pd.context().alloc_dm(size)?;
                let mr = pd.reg_dm_mr(&dm, 0, size, access)?;
                (Bytes::Dm(dm), mr)
            }
            Kind::DmaBuf => {
                let buffer = DmaBuf::export(size, "demo")?;
                exporter = Some(buffer.exporter_name().to_owned());
                let mr = pd.reg_whole_dmabuf(&buffer, access)?;
                let umem = Umem::dmabuf(buffer.map(0, buffer.size())?, 0, size)?;
                (Bytes::DmaBuf(umem), mr)
            }
            Kind::Gpu => {
                let bo = gpu.alloc(size, Place::VISIBLE_VRAM)?;
                let mr = pd.reg_whole_dmabuf(&bo.export()?, access)?;
                (Bytes::Gpu(bo), mr)
            }
        };
        Ok(Self { kind, bytes, mr, size, exporter })
    }

    /// Its kind.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Its exporter, if it is a dma-buf: `udmabuf`, or peerdma itself where the kernel has none for
    /// us.
    pub(crate) fn exporter(&self) -> Option<&str> {
        self.exporter.as_deref()
    }

    /// The buffer, if it is a GPU's.
    pub(crate) fn bo(&self) -> Option<&Bo> {
        match &self.bytes {
            Bytes::Gpu(bo) => Some(bo),
            _ => None,
        }
    }

    /// Its region.
    pub(crate) fn mr(&self) -> &Mr {
        &self.mr
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
        match &self.bytes {
            Bytes::Host(buffer) => buffer.write(0, bytes)?,
            Bytes::Dm(dm) => dm.write(0, bytes)?,
            Bytes::DmaBuf(umem) => umem.write(0, bytes)?,
            Bytes::Gpu(bo) => bo.write(0, bytes)?,
        }
        Ok(())
    }

    fn read(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        let mut bytes = vec![0; usize::try_from(self.size)?];
        match &self.bytes {
            Bytes::Host(buffer) => buffer.read(0, &mut bytes)?,
            Bytes::Dm(dm) => dm.read(0, &mut bytes)?,
            Bytes::DmaBuf(umem) => umem.read(0, &mut bytes)?,
            Bytes::Gpu(bo) => bo.read(0, &mut bytes)?,
        }
        Ok(bytes)
    }

    /// Marks every byte as not written.
    pub(crate) fn clear(&self) -> Result<(), Box<dyn Error>> {
        self.write(&vec![EMPTY; usize::try_from(self.size)?])
    }

    /// Writes a pattern at `offset`, and the mark around it.
    pub(crate) fn fill(&self, offset: u32, length: u32, seed: u8) -> Result<(), Box<dyn Error>> {
        let mut bytes = vec![EMPTY; usize::try_from(self.size)?];
        for index in 0..length {
            bytes[(offset + index) as usize] = pattern(index, seed);
        }
        self.write(&bytes)
    }

    /// Checks that the pattern lies at `offset` and the mark everywhere else.
    pub(crate) fn check(&self, offset: u32, length: u32, seed: u8) -> Result<(), Box<dyn Error>> {
        for (at, byte) in self.read()?.into_iter().enumerate() {
            let at = at as u32;
            let inside = (offset..offset + length).contains(&at);
            let want = if inside { pattern(at - offset, seed) } else { EMPTY };
            if byte != want {
                let kind = self.kind;
                return Err(format!("byte {at} of {kind} is {byte:#04x}, not {want:#04x}").into());
            }
        }
        Ok(())
    }

    /// Stores eight bytes at `offset`.
    pub(crate) fn set_word(&self, offset: usize, word: u64) -> Result<(), Box<dyn Error>> {
        let mut bytes = self.read()?;
        bytes[offset..offset + 8].copy_from_slice(&word.to_ne_bytes());
        self.write(&bytes)
    }

    /// The eight bytes at `offset`.
    pub(crate) fn word(&self, offset: usize) -> Result<u64, Box<dyn Error>> {
        Ok(u64::from_ne_bytes(self.read()?[offset..offset + 8].try_into()?))
    }
}

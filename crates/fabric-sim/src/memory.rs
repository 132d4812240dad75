//! Simulated memory regions.

use std::cell::Cell;

use iba::Access;
use transport::Sge;
use transport::env::{AtomicOp, LocalError, RemoteError};

/// A registered region. Its lkey and rkey are one number, as in the kernel's rxe.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Region {
    /// The key.
    pub key: u32,
    /// Where it begins.
    pub addr: u64,
    /// Its contents.
    pub bytes: Vec<u8>,
    /// What it may be used for.
    pub access: Access,
    /// Whether its pages are there. A region without pages keeps its key and fails as unmapped
    /// memory does.
    pub present: bool,
}

/// The regions of one host.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    regions: Vec<Region>,
    /// One access in this many finds the memory absent for the moment; 0 for none.
    pub absent: u32,
    /// This many accesses after such a one find it absent too.
    pub absent_for: u64,
    accesses: Cell<u64>,
}

impl Memory {
    /// Registers `length` zero bytes at `addr`.
    pub fn register(&mut self, key: u32, addr: u64, length: usize, access: Access) {
        let bytes = vec![0; length];
        self.regions.push(Region { key, addr, bytes, access, present: true });
    }

    /// The region with this key.
    pub fn region_mut(&mut self, key: u32) -> Option<&mut Region> {
        self.regions.iter_mut().find(|region| region.key == key)
    }

    /// Takes a key out of use.
    pub fn invalidate(&mut self, key: u32) -> Result<(), RemoteError> {
        let at = self.regions.iter().position(|region| region.key == key);
        self.regions.remove(at.ok_or(RemoteError::Access)?);
        Ok(())
    }

    /// Checks a range for an access.
    pub fn check(
        &self,
        key: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<(), RemoteError> {
        self.find(key, addr, length, access).map(|_| ())
    }

    /// The bytes of a range, on the owner's behalf.
    ///
    /// # Panics
    ///
    /// If no region holds the range.
    pub fn bytes_mut(&mut self, addr: u64, length: usize) -> &mut [u8] {
        let region = self
            .regions
            .iter_mut()
            .find(|region| {
                addr >= region.addr
                    && addr + length as u64 <= region.addr + region.bytes.len() as u64
            })
            .expect("the test uses memory it registered");
        let start = (addr - region.addr) as usize;
        &mut region.bytes[start..][..length]
    }

    /// Copies out of a region.
    pub fn read(&self, key: u32, addr: u64, out: &mut [u8]) -> Result<(), RemoteError> {
        self.look()?;
        self.read_present(key, addr, out)
    }

    /// Whether this access finds the memory present.
    pub fn look(&self) -> Result<(), RemoteError> {
        if self.absent == 0 {
            return Ok(());
        }
        let count = self.accesses.get() + 1;
        self.accesses.set(count);
        // Looks random, and never refuses for long.
        let period = 1 + (count - 1) / (1 + self.absent_for);
        let hash = period.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        if hash.is_multiple_of(u64::from(self.absent)) {
            Err(RemoteError::NotPresent)
        } else {
            Ok(())
        }
    }

    fn read_present(&self, key: u32, addr: u64, out: &mut [u8]) -> Result<(), RemoteError> {
        let (index, start) = self.find(key, addr, out.len() as u64, Access::empty())?;
        let region = &self.regions[index];
        if !region.present {
            return Err(RemoteError::Fault);
        }
        out.copy_from_slice(&region.bytes[start..][..out.len()]);
        Ok(())
    }

    /// Copies into a region.
    pub fn write(
        &mut self,
        key: u32,
        addr: u64,
        bytes: &[u8],
        access: Access,
    ) -> Result<(), RemoteError> {
        self.look()?;
        self.write_present(key, addr, bytes, access)
    }

    fn write_present(
        &mut self,
        key: u32,
        addr: u64,
        bytes: &[u8],
        access: Access,
    ) -> Result<(), RemoteError> {
        let (index, start) = self.find(key, addr, bytes.len() as u64, access)?;
        let region = &mut self.regions[index];
        if !region.present {
            return Err(RemoteError::Fault);
        }
        region.bytes[start..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Runs an atomic.
    pub fn atomic(&mut self, key: u32, addr: u64, op: AtomicOp) -> Result<u64, RemoteError> {
        if !addr.is_multiple_of(8) {
            return Err(RemoteError::Misaligned);
        }
        let mut old = [0; 8];
        self.check(key, addr, 8, Access::REMOTE_ATOMIC)?;
        self.look()?;
        self.read_present(key, addr, &mut old)?;
        let old = u64::from_ne_bytes(old);
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
        };
        self.write_present(key, addr, &new.to_ne_bytes(), Access::REMOTE_ATOMIC)?;
        Ok(old)
    }

    /// Checks a scatter/gather list.
    pub fn check_list(&self, sges: &[Sge], access: Access) -> Result<(), LocalError> {
        for sge in sges {
            self.check(sge.lkey.0, sge.addr, sge.length.into(), access)
                .map_err(|_| LocalError::Protection)?;
        }
        Ok(())
    }

    /// Appends `length` bytes of a gather list, `offset` from its start.
    pub fn gather(
        &self,
        sges: &[Sge],
        offset: u64,
        length: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), LocalError> {
        for (sge, at, count) in pieces(sges, offset, length) {
            let start = out.len();
            out.resize(start + count as usize, 0);
            self.read(sge.lkey.0, sge.addr + at, &mut out[start..]).map_err(local)?;
        }
        Ok(())
    }

    /// Copies into a scatter list.
    pub fn scatter(
        &mut self,
        sges: &[Sge],
        offset: u64,
        mut bytes: &[u8],
    ) -> Result<(), LocalError> {
        for (sge, at, count) in pieces(sges, offset, bytes.len() as u32) {
            let (head, tail) = bytes.split_at(count as usize);
            self.write(sge.lkey.0, sge.addr + at, head, Access::LOCAL_WRITE).map_err(local)?;
            bytes = tail;
        }
        assert!(bytes.is_empty(), "the transport overran a scatter list");
        Ok(())
    }

    fn find(
        &self,
        key: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<(usize, usize), RemoteError> {
        let index =
            self.regions.iter().position(|region| region.key == key).ok_or(RemoteError::Access)?;
        let region = &self.regions[index];
        let start = addr.checked_sub(region.addr).ok_or(RemoteError::Access)?;
        let end = start.checked_add(length).ok_or(RemoteError::Access)?;
        if end > region.bytes.len() as u64 || !region.access.contains(access) {
            return Err(RemoteError::Access);
        }
        Ok((index, start as usize))
    }
}

/// The parts of each element that `length` bytes at `offset` of a list cover.
fn pieces(sges: &[Sge], mut offset: u64, length: u32) -> impl Iterator<Item = (&Sge, u64, u32)> {
    let mut left = length;
    sges.iter().filter_map(move |sge| {
        let size = u64::from(sge.length);
        if offset >= size || left == 0 {
            offset = offset.saturating_sub(size);
            return None;
        }
        let at = core::mem::take(&mut offset);
        let count = left.min((size - at) as u32);
        left -= count;
        Some((sge, at, count))
    })
}

fn local(error: RemoteError) -> LocalError {
    match error {
        RemoteError::Fault => LocalError::Fault,
        RemoteError::NotPresent => LocalError::NotPresent,
        RemoteError::Access | RemoteError::Misaligned => LocalError::Protection,
    }
}

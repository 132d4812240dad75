//! Copies and fills, between any two addresses.

use std::sync::Arc;

use umem::{Fault, Umem};

use crate::memory::Memory;
use crate::process::Process;
use crate::space::Kind;
use crate::status::{Refusal, Result, Status, invalid};
/// Memory of one kind in a row.
pub(crate) struct Piece {
    pub(crate) at: At,
    pub(crate) len: u64,
}

/// Where it is.
#[derive(Clone)]
pub(crate) enum At {
    /// So many bytes into memory of a GPU.
    Device(Arc<Memory>, u64),
    /// An address of the program.
    Host(u64),
}

impl At {
    fn step(&self, by: u64) -> Self {
        match self {
            Self::Device(memory, offset) => Self::Device(Arc::clone(memory), offset + by),
            Self::Host(addr) => Self::Host(addr + by),
        }
    }
}

impl Process {
    /// What `len` bytes at `addr` are. Addresses that CUDA knows nothing of are the program's.
    ///
    /// # Errors
    ///
    /// Addresses of the arena where no memory is, or a range that leaves its allocation.
    pub(crate) fn pieces(&self, addr: u64, len: u64) -> Result<Vec<Piece>> {
        let end = addr.checked_add(len).ok_or_else(|| {
            invalid(format!("{len:#x} bytes at {addr:#x} go round the end of all addresses"))
        })?;
        if !self.space.is_device(addr) {
            if addr < self.space.arena().end && end > self.space.arena().start {
                return Err(outside(addr, len, "plain memory"));
            }
            return self.host_pieces(addr, len);
        }
        let region = self.space.find(addr);
        let region = region.ok_or_else(|| invalid(format!("{addr:#x} is in no allocation")))?;
        if end > region.stop() {
            return Err(outside(addr, len, &region.name()));
        }
        match &region.kind {
            Kind::Device { memory, .. } => {
                Ok(vec![Piece { at: At::Device(Arc::clone(memory), addr - region.start), len }])
            }
            Kind::Reserved(reserved) => reserved.pieces(addr, len),
            _ => self.host_pieces(addr, len),
        }
    }

    fn host_pieces(&self, addr: u64, len: u64) -> Result<Vec<Piece>> {
        if let Some(region) = self.space.find(addr)
            && !matches!(region.kind, Kind::Registered { .. })
            && addr + len > region.stop()
        {
            return Err(outside(addr, len, &region.name()));
        }
        Ok(vec![Piece { at: At::Host(addr), len }])
    }

    /// Copies.
    ///
    /// # Errors
    ///
    /// A range of which not all is there, or memory that was lost.
    pub(crate) fn copy(&self, dst: u64, src: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let (to, from) = (self.pieces(dst, len)?, self.pieces(src, len)?);
        let (mut to, mut from) = (to.into_iter(), from.into_iter());
        let (mut dst, mut src) = (to.next(), from.next());
        while let (Some(d), Some(s)) = (&mut dst, &mut src) {
            let part = d.len.min(s.len);
            copy_piece(&d.at, &s.at, part)?;
            (d.at, d.len) = (d.at.step(part), d.len - part);
            (s.at, s.len) = (s.at.step(part), s.len - part);
            if d.len == 0 {
                dst = to.next();
            }
            if s.len == 0 {
                src = from.next();
            }
        }
        Ok(())
    }

    /// Fills `count` values of `size` bytes (1, 2 or 4).
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy); and an address that is not a multiple of `size`.
    pub(crate) fn fill(&self, dst: u64, value: u32, size: u64, count: u64) -> Result<()> {
        if !dst.is_multiple_of(size) {
            return Err(invalid(format!("{dst:#x} is no multiple of {size}")));
        }
        let len = count.checked_mul(size).ok_or_else(|| invalid("more bytes than there are"))?;
        if len == 0 {
            return Ok(());
        }
        let pattern = value.to_le_bytes();
        // CAST: 1, 2 or 4.
        let pattern = &pattern[..size as usize];
        for piece in self.pieces(dst, len)? {
            match &piece.at {
                At::Device(memory, offset) => memory.fill(*offset, pattern, piece.len)?,
                At::Host(addr) => fill(&user(*addr, piece.len), pattern).map_err(fault)?,
            }
        }
        Ok(())
    }
}

/// Memory of the program.
pub(crate) fn user(addr: u64, len: u64) -> Umem {
    // CAST: addresses are 64 bits wide here.
    let addr = addr as usize;
    // SAFETY: the program passed the address to be read or written, and a page that is not there is found by the guard.
    unsafe { Umem::user(addr, len) }
}

fn copy_piece(dst: &At, src: &At, len: u64) -> Result<()> {
    match (dst, src) {
        (At::Host(dst), At::Host(src)) => {
            Umem::copy(&user(*dst, len), 0, &user(*src, len), 0, len).map_err(fault)
        }
        (At::Device(memory, offset), At::Host(src)) => memory.write_from(*offset, &user(*src, len)),
        (At::Host(dst), At::Device(memory, offset)) => memory.read_into(*offset, &user(*dst, len)),
        (At::Device(to, at), At::Device(from, offset)) => {
            Memory::copy((to, *at), (from, *offset), len)
        }
    }
}

/// Fills memory of the program with a pattern.
fn fill(bytes: &Umem, pattern: &[u8]) -> std::result::Result<(), Fault> {
    let len = bytes.len();
    if pattern.iter().all(|byte| *byte == pattern[0]) {
        return bytes.fill(0, pattern[0], len);
    }
    let block = pattern.repeat(4096 / pattern.len());
    let mut at = 0;
    while at < len {
        let part = (block.len() as u64).min(len - at);
        // CAST: at most a block.
        bytes.write(at, &block[..part as usize])?;
        at += part;
    }
    Ok(())
}

fn outside(addr: u64, len: u64, of: &str) -> Refusal {
    invalid(format!("{len:#x} bytes at {addr:#x} are not all inside {of}"))
}

fn fault(fault: Fault) -> Refusal {
    Refusal::new(Status::InvalidValue, fault.to_string())
}

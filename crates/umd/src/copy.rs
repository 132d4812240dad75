//! Copies and fills, between any two addresses.

use std::sync::Arc;

use umem::{Fault, Umem};

use crate::memory::Memory;
use crate::refusal::{Refusal, Result, invalid};
use crate::space::{Content, Space};

/// Memory of one kind in a row.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "drivers make and take them apart")]
pub struct Piece {
    /// Where it is.
    pub at: At,
    /// How many bytes.
    pub len: u64,
}

/// Where it is.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "memory is one or the other")]
pub enum At {
    /// This many bytes into memory of a GPU.
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

impl<K: Content> Space<K> {
    /// Copies.
    ///
    /// # Errors
    ///
    /// A range that is not wholly present, or memory that was lost.
    pub fn copy(&self, dst: u64, src: u64, len: u64) -> Result<()> {
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

    /// Fills `len` bytes with a repeated pattern.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy); and an empty pattern.
    pub fn fill(&self, dst: u64, pattern: &[u8], len: u64) -> Result<()> {
        if pattern.is_empty() {
            return Err(invalid("a pattern of no bytes"));
        }
        if len == 0 {
            return Ok(());
        }
        let mut pattern = pattern.to_vec();
        for piece in self.pieces(dst, len)? {
            match &piece.at {
                At::Device(memory, offset) => memory.fill(*offset, &pattern, piece.len)?,
                At::Host(addr) => {
                    let bytes = user(*addr, piece.len);
                    bytes.fill_with(0, &pattern, piece.len).map_err(fault)?;
                }
            }
            // CAST: less than the pattern's length.
            let turn = (piece.len % pattern.len() as u64) as usize;
            pattern.rotate_left(turn);
        }
        Ok(())
    }
}

/// Memory of the program.
pub fn user(addr: u64, len: u64) -> Umem {
    // CAST: addresses are 64 bits wide here.
    let addr = addr as usize;
    // SAFETY: the program passed the address to be read or written, and the guard catches a page
    // that is not there.
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

fn fault(fault: Fault) -> Refusal {
    invalid(fault.to_string())
}

//! Memory that is passed to the kernel.

use std::sync::Arc;

use dmabuf::gate::OwnedGateGuard;
use umem::Umem;

use super::Fixed;

/// Contiguous bytes that stay valid for the kernel while this exists: it holds a handle of the
/// memory, and has entered the memory's gate, if there is one.
pub(crate) struct Place {
    /// The contiguous length, from `at` on.
    memory: Umem,
    at: u64,
    len: u32,
    /// The registered buffer that holds all of it.
    fixed: Option<Arc<Fixed>>,
    /// Dropped last: the memory may be freed after that.
    _gate: Option<Arc<OwnedGateGuard>>,
}

impl Place {
    /// The contiguous bytes at `at` of `memory`, at most `len`. `None` if they are not inside.
    pub(crate) fn new(
        memory: &Umem,
        at: u64,
        len: u32,
        fixed: &[Arc<Fixed>],
        gate: Option<Arc<OwnedGateGuard>>,
    ) -> Option<Self> {
        if len == 0 || at.checked_add(len.into()).is_none_or(|end| end > memory.len()) {
            return None;
        }
        let mut first = None;
        memory.for_each_part(at, len.into(), |part, at, len| {
            first.get_or_insert_with(|| (part.clone(), at, len));
        });
        let (memory, at, len) = first?;
        let is_inside = at.checked_add(len).is_some_and(|end| end <= memory.len());
        if !is_inside || memory.addr() == 0 {
            return None;
        }
        // CAST: 32 bits, as asked for, or less.
        let (addr, len) = (memory.addr() + at as usize, len as u32);
        let fixed = fixed.iter().find(|fixed| fixed.holds(addr, len)).cloned();
        Some(Self { memory, at, len, fixed, _gate: gate })
    }

    /// Where the bytes are.
    pub(crate) fn addr(&self) -> usize {
        // CAST: inside the memory, which is mapped.
        self.memory.addr() + self.at as usize
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn fixed(&self) -> Option<&Fixed> {
        self.fixed.as_deref()
    }

    /// Counts bytes that the kernel moved.
    pub(crate) fn count(&self, bytes: u32) {
        self.memory.carried(bytes.into());
    }
}

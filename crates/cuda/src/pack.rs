//! Small allocations packed into blocks, as real drivers pack them (`pack = true`). Their addresses
//! are not page-aligned, which breaks a program that exports memory without rounding.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use umd::Memory;
use umd::addresses::Addresses;
use umd::space::LARGE_PAGE;

use crate::context::Context;

/// The alignment of an allocation.
pub(crate) const ALIGN: u64 = 512;

/// The largest allocation that is packed.
pub(crate) const LONGEST: u64 = 1 << 20;

/// Memory that several allocations of one context share.
pub(crate) struct Block {
    pub(crate) start: u64,
    pub(crate) memory: Arc<Memory>,
    context: Arc<Context>,
    /// `None` once all was given back: the block has ended.
    free: Mutex<Option<Free>>,
}

struct Free {
    addresses: Addresses,
    /// The number of allocations in the block.
    used: usize,
}

impl Block {
    pub(crate) fn new(start: u64, memory: Arc<Memory>, context: &Arc<Context>) -> Self {
        let addresses = Addresses::new(start..start + LARGE_PAGE);
        let free = Mutex::new(Some(Free { addresses, used: 0 }));
        Self { start, memory, context: Arc::clone(context), free }
    }

    /// The address of its end.
    pub(crate) fn stop(&self) -> u64 {
        self.start + LARGE_PAGE
    }

    /// Whether it serves allocations of this context.
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// Takes `len` bytes, if there is room.
    pub(crate) fn take(&self, len: u64) -> Option<u64> {
        let mut free = self.free();
        let free = free.as_mut()?;
        let at = free.addresses.take(len.next_multiple_of(ALIGN), ALIGN, 0)?;
        free.used += 1;
        Some(at)
    }

    /// Gives an allocation back. Returns whether it was the last one.
    pub(crate) fn give(&self, start: u64, len: u64) -> bool {
        let mut free = self.free();
        let Some(there) = free.as_mut() else { return false };
        there.addresses.give(start, len.next_multiple_of(ALIGN));
        there.used -= 1;
        let is_over = there.used == 0;
        if is_over {
            *free = None;
        }
        is_over
    }

    fn free(&self) -> MutexGuard<'_, Option<Free>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! What the kernel says of the process's own pages (`/proc/self/pagemap`, proc_pid_pagemap(5)).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::PAGE;

/// Bit 63: in memory. Bit 62: in swap.
const HAS_BYTES: u64 = 3 << 62;

/// The process's page map.
#[derive(Debug)]
pub(crate) struct PageMap(File);

impl PageMap {
    pub(crate) fn open() -> io::Result<Self> {
        File::open("/proc/self/pagemap").map(Self)
    }

    /// Whether the page at an address has bytes: it was touched, and not dropped since. A page of
    /// zeros that was only read counts as well.
    pub(crate) fn has_bytes(&self, addr: usize) -> io::Result<bool> {
        let mut word = [0; 8];
        self.0.read_exact_at(&mut word, addr as u64 / PAGE * 8)?;
        Ok(u64::from_ne_bytes(word) & HAS_BYTES != 0)
    }
}

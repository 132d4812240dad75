//! Registered memory: the key table, and where the bytes of a region are now.

pub(crate) mod dm_export;
pub(crate) mod faults;
mod finding;
pub(crate) mod import;
pub(crate) mod mr;
mod null;
pub(crate) mod odp;
pub(crate) mod peer;
pub(crate) mod pins;
mod rehearsal;
pub(crate) mod window;

use slab::Slab;

pub(crate) use self::finding::BroughtIn;
pub(crate) use self::null::NULL_KEY;
pub(crate) use self::rehearsal::rehearse;

use self::dm_export::DmExport;
use self::faults::Faults;
use self::mr::MrTable;
use self::pins::Pins;
use crate::budget::Budget;
use crate::ids::CtxId;
use crate::objects::charges::Charge;
use crate::objects::uses::Uses;

/// A block of device memory.
#[derive(Debug)]
pub(crate) struct Dm {
    pub(crate) ctx: CtxId,
    pub(crate) length: u64,
    pub(crate) memory: umem::HostBuf,
    pub(crate) uses: Uses,
    /// Its dma-buf, once it was requested.
    pub(crate) export: Option<DmExport>,
    pub(crate) _charge: Charge,
}

/// All registered memory of one NIC.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) mrs: MrTable,
    pub(crate) dms: Slab<Dm>,
    /// This process's share of the device memory of its user.
    pub(crate) dm_budget: Budget,
    /// Pages charged to the limit of locked memory.
    pub(crate) pins: Pins,
    /// The thread that asks exporters in other processes where their buffers are now.
    pub(crate) faults: Faults,
}

impl Memory {
    pub(crate) fn new(faults: Faults) -> Self {
        Self {
            mrs: MrTable::default(),
            dms: Slab::new(),
            dm_budget: Budget::new("dm".to_owned()),
            pins: Pins::default(),
            faults,
        }
    }

    /// In a forked child, gives up what belongs to the parent.
    pub(crate) fn abandon_in_child(&mut self) {
        self.faults.abandon_in_child();
        self.dm_budget.abandon_in_child();
        self.pins.abandon_in_child();
    }
}

//! The registers of a controller: properties, over a fabric (NVMe 1.4, 3.1).

use crate::wire::Status;
use crate::wire::cm::MAX_DEPTH;

#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod offset {
    pub const CAP: u32 = 0x00;
    pub const VS: u32 = 0x08;
    pub const CC: u32 = 0x14;
    pub const CSTS: u32 = 0x1c;
}

/// NVMe 1.4.
pub const VERSION: u32 = 0x0001_0400;

/// CC.EN.
pub const CC_EN: u32 = 1;
/// CC with the sizes of entries that the NVM command set has, enabled.
pub const CC_ENABLE: u32 = 4 << 20 | 6 << 16 | CC_EN;
/// CC.SHN: a normal shutdown.
pub const CC_SHN_NORMAL: u32 = 1 << 14;
/// CSTS.RDY.
pub const CSTS_RDY: u32 = 1;
/// CSTS.CFS.
pub const CSTS_CFS: u32 = 2;
/// CSTS.SHST: the shutdown is complete.
pub const CSTS_SHST_DONE: u32 = 2 << 2;

const CC_SHN: u32 = 3 << 14;
/// I/O command set, page size, arbitration, entry sizes: what a host chooses before it enables.
const CC_CHOICES: u32 = 0x00ff_3ff0;

/// The registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    cc: u32,
    csts: u32,
}

impl Registers {
    /// Queues of [`MAX_DEPTH`] entries, contiguous, the NVM command set, pages of 4 KiB; ready
    /// within half a second.
    pub const CAP: u64 = (MAX_DEPTH as u64 - 1) | 1 << 16 | 1 << 24 | 1 << 37;

    /// Whether commands are accepted.
    pub fn is_ready(&self) -> bool {
        self.csts & (CSTS_RDY | CSTS_CFS) == CSTS_RDY
    }

    /// A register, read with this length.
    ///
    /// # Errors
    ///
    /// Invalid Field if there is no register of this length.
    pub fn get(&self, at: u32, size: u8) -> Result<u64, Status> {
        match (at, size) {
            (offset::CAP, 8) => Ok(Self::CAP),
            (offset::VS, 4) => Ok(VERSION.into()),
            (offset::CC, 4) => Ok(self.cc.into()),
            (offset::CSTS, 4) => Ok(self.csts.into()),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    /// Writes a register. CC alone can be written.
    ///
    /// # Errors
    ///
    /// Invalid Field for any other.
    pub fn set(&mut self, at: u32, size: u8, value: u64) -> Result<(), Status> {
        if (at, size) != (offset::CC, 4) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        // CAST: the register has 32 bits.
        let (old, new) = (self.cc, value as u32);
        self.cc = new;
        if new & CC_EN != 0 && old & CC_EN == 0 {
            let fits = new & CC_CHOICES == CC_ENABLE & CC_CHOICES;
            self.csts = if fits { CSTS_RDY } else { CSTS_CFS };
        }
        if new & CC_EN == 0 && old & CC_EN != 0 {
            self.csts &= !(CSTS_RDY | CSTS_CFS);
        }
        if new & CC_SHN != 0 && old & CC_SHN == 0 {
            self.csts = self.csts & !CSTS_RDY | CSTS_SHST_DONE;
            self.cc &= !CC_EN;
        } else if new & CC_SHN == 0 && old & CC_SHN != 0 {
            self.csts &= !CSTS_SHST_DONE;
        }
        Ok(())
    }

    /// The controller has failed.
    pub fn fail(&mut self) {
        self.csts |= CSTS_CFS;
    }
}

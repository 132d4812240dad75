//! The function's configuration space.

use gpu::nodes::{VFIO_CLASS, VFIO_ID};

/// Without extensions.
#[doc(alias = "PCI_CFG_SPACE_SIZE")]
pub(super) const SIZE: usize = 256;

/// The command register.
#[doc(alias = "PCI_COMMAND")]
const COMMAND: usize = 0x04;
/// Memory Space Enable; Bus Master Enable; Interrupt Disable.
#[doc(alias = "PCI_COMMAND_MEMORY")]
const MEMORY: u8 = 0x02;
const MASTER: u8 = 0x04;
const NO_INTERRUPTS: u8 = 0x04;
/// BAR 0, and the upper half of its address.
#[doc(alias = "PCI_BASE_ADDRESS_0")]
const BAR: usize = 0x10;
/// 64 bits, prefetchable.
const BAR_KIND: u64 = 0xc;

/// The registers, and which of their bits a program may write.
pub(super) struct Config {
    bytes: [u8; SIZE],
    writable: [u8; SIZE],
}

impl Config {
    /// The state when the device is opened: memory is enabled.
    pub(super) fn new(bar: u64) -> Self {
        let (mut bytes, mut writable) = ([0; SIZE], [0; SIZE]);
        bytes[..4].copy_from_slice(&VFIO_ID.to_le_bytes());
        bytes[COMMAND] = MEMORY;
        bytes[0x08..0x0c].copy_from_slice(&(VFIO_CLASS << 8).to_le_bytes());
        bytes[0x2c..0x30].copy_from_slice(&VFIO_ID.to_le_bytes());
        bytes[BAR..BAR + 8].copy_from_slice(&BAR_KIND.to_le_bytes());
        writable[COMMAND] = MEMORY | MASTER;
        writable[COMMAND + 1] = NO_INTERRUPTS;
        // The size of a BAR is a power of two, and address bits below it read as zero.
        let mask = !(bar.next_power_of_two() - 1);
        writable[BAR..BAR + 8].copy_from_slice(&mask.to_le_bytes());
        Self { bytes, writable }
    }

    pub(super) fn has_memory(&self) -> bool {
        self.bytes[COMMAND] & MEMORY != 0
    }

    pub(super) fn read(&self, at: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes[at..at + out.len()]);
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        let places = self.bytes[at..].iter_mut().zip(&self.writable[at..]);
        for ((place, writable), byte) in places.zip(bytes) {
            *place = *place & !writable | byte & writable;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_large_it_is() {
        let mut config = Config::new(3 << 20);
        config.write(BAR, &[0xff; 8]);
        let mut said = [0; 8];
        config.read(BAR, &mut said);
        assert_eq!(!(u64::from_le_bytes(said) & !0xf) + 1, 4 << 20);
    }

    #[test]
    fn only_what_may_be_written_changes() {
        let mut config = Config::new(4096);
        config.write(0, &[0xff; SIZE]);
        let mut said = [0; 4];
        config.read(0, &mut said);
        assert_eq!(u32::from_le_bytes(said), VFIO_ID);
        config.read(COMMAND, &mut said);
        assert_eq!(said, [0x06, 0x04, 0, 0]);
        config.write(COMMAND, &[0, 0]);
        assert!(!config.has_memory());
    }
}

//! Character devices that exist only as names: what `stat` reports for them.

use std::mem::offset_of;

use super::tree::DEVICES;

/// The device numbers of uverbs (`IB_UVERBS_MAJOR`, `IB_UVERBS_BASE_MINOR`).
pub(super) const UVERBS_MAJOR: u32 = 231;
pub(super) const UVERBS_BASE_MINOR: u32 = 192;

/// A character device that exists only as a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    minor: u32,
}

/// The mode of a character device that everyone may read and write.
const MODE: u32 = libc::S_IFCHR | 0o666;

impl Device {
    /// The device that an absolute path names.
    pub(crate) fn named(path: &str) -> Option<Self> {
        let index = path.strip_prefix(DEVICES)?.trim_start_matches('/').strip_prefix("uverbs")?;
        Some(Self { minor: UVERBS_BASE_MINOR + u32::from(index.parse::<u8>().ok()?) })
    }

    /// Its number, as the kernel writes it for programs (`huge_encode_dev`).
    pub(crate) fn number(self) -> u64 {
        let (major, minor) = (u64::from(UVERBS_MAJOR), u64::from(self.minor));
        minor & 0xff | major << 8 | (minor & !0xff) << 12
    }

    /// Turns the `struct stat` of the file that represents the device into that of the device.
    pub(crate) fn show_stat(self, out: &mut [u8; size_of::<libc::stat>()]) {
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset_of!(libc::stat, st_mode), &MODE.to_ne_bytes());
        let device = libc::makedev(UVERBS_MAJOR, self.minor);
        put(offset_of!(libc::stat, st_rdev), &device.to_ne_bytes());
    }

    /// The same for a `struct statx`.
    pub(crate) fn show_statx(self, out: &mut [u8; size_of::<libc::statx>()]) {
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        // CAST: the file type and the permissions are 16 bits.
        put(offset_of!(libc::statx, stx_mode), &(MODE as u16).to_ne_bytes());
        put(offset_of!(libc::statx, stx_rdev_major), &UVERBS_MAJOR.to_ne_bytes());
        put(offset_of!(libc::statx, stx_rdev_minor), &self.minor.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_names_of_devices_are_devices() {
        assert_eq!(Device::named("/dev/infiniband/uverbs1"), Some(Device { minor: 193 }));
        assert_eq!(Device::named("/dev/infiniband//uverbs0"), Some(Device { minor: 192 }));
        for path in ["/dev/infiniband", "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbsx", "/"] {
            assert_eq!(Device::named(path), None, "{path}");
        }
    }
}

//! `/dev/iommu`, as far as binding a device needs it: an address space is only a number.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::structure::{LETTER, put, take};
use crate::args::{Request, Uapi, uapi};
use crate::{Result, no};

uapi! {
    #[doc(alias = "iommu_destroy")]
    struct Destroy: 8 {
        size: u32,
        id: u32,
    }
    #[doc(alias = "iommu_ioas_alloc")]
    struct IoasAlloc: 12 {
        size: u32,
        flags: u32,
        id: u32,
    }
}

/// The longest structure accepted.
const LONGEST: usize = 4096;

/// An open iommufd.
#[derive(Default)]
pub(crate) struct Iommu {
    ids: Mutex<Ids>,
}

#[derive(Default)]
struct Ids {
    last: u32,
    /// Address spaces, and how many devices are attached to each.
    spaces: BTreeMap<u32, usize>,
}

impl Ids {
    fn next(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1).max(1);
        self.last
    }
}

impl Iommu {
    fn ids(&self) -> MutexGuard<'_, Ids> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An ID for a device that is bound to this iommufd.
    pub(super) fn next_id(&self) -> u32 {
        self.ids().next()
    }

    /// Attaches a device to this address space.
    pub(super) fn attach(&self, id: u32) -> Result<()> {
        let mut ids = self.ids();
        let none = || refuse(libc::ENOENT, format_args!("there is no address space {id}"));
        *ids.spaces.get_mut(&id).ok_or_else(none)? += 1;
        Ok(())
    }

    pub(super) fn detach(&self, id: u32) {
        if let Some(devices) = self.ids().spaces.get_mut(&id) {
            *devices = devices.saturating_sub(1);
        }
    }

    /// # Safety
    ///
    /// `place` points to what the request needs.
    #[doc(alias = "iommufd_fops_ioctl")]
    pub(crate) unsafe fn ioctl(&self, request: Request, place: *mut c_void) -> Result<()> {
        if request.letter() != LETTER {
            return Err(libc::ENOTTY);
        }
        match request.nr() {
            // SAFETY: the caller's promise.
            0x80 => self.destroy(unsafe { sized::<Destroy>(place) }?),
            0x81 => {
                // SAFETY: the caller's promise.
                let mut alloc = unsafe { sized::<IoasAlloc>(place) }?;
                if alloc.flags != 0 {
                    let why = format_args!("flags {:#x} of an address space", alloc.flags);
                    return Err(refuse(libc::EOPNOTSUPP, why));
                }
                let mut ids = self.ids();
                alloc.id = ids.next();
                let id = alloc.id;
                ids.spaces.insert(id, 0);
                drop(ids);
                // SAFETY: the caller's promise.
                unsafe { put(place, &alloc) };
                Ok(())
            }
            0x82..0xa0 => {
                Err(refuse(libc::EOPNOTSUPP, format_args!("no device of ours does DMA by it")))
            }
            _ => Err(libc::ENOTTY),
        }
    }

    #[doc(alias = "IOMMU_DESTROY")]
    fn destroy(&self, destroy: Destroy) -> Result<()> {
        let (id, mut ids) = (destroy.id, self.ids());
        match ids.spaces.get(&id) {
            None => Err(refuse(libc::ENOENT, format_args!("there is no object {id}"))),
            Some(0) => {
                ids.spaces.remove(&id);
                Ok(())
            }
            Some(_) => Err(refuse(libc::EBUSY, format_args!("a device is attached to {id}"))),
        }
    }
}

/// A structure that begins with its size, which may be larger than ours if the rest is zero.
///
/// # Safety
///
/// `place` is null or a structure as long as it says.
#[doc(alias = "copy_struct_from_user")]
unsafe fn sized<T: Uapi>(place: *mut c_void) -> Result<T> {
    // SAFETY: the caller's promise; each structure begins with its size.
    let said = unsafe { take::<u32>(place) }? as usize;
    if said < size_of::<T>() {
        return Err(refuse(libc::EINVAL, format_args!("a size of {said} bytes")));
    }
    // SAFETY: the caller's promise: it is as long as this.
    let value = unsafe { take::<T>(place) }?;
    let is_zero = |at: usize| {
        let byte = place.cast::<u8>().wrapping_add(at);
        // SAFETY: the caller's promise: it is as long as it says.
        unsafe { byte.read() == 0 }
    };
    if said > LONGEST || !(size_of::<T>()..said).all(is_zero) {
        return Err(refuse(libc::E2BIG, format_args!("more than is known of the structure")));
    }
    Ok(value)
}

fn refuse(errno: i32, why: std::fmt::Arguments<'_>) -> i32 {
    no("iommufd", errno, why)
}

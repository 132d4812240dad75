//! The devices of a library.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use verbs_abi::device::Device as CDevice;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::library::Library;

/// The list that a library gave, and gets back.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) library: &'static Library,
    first: NonNull<*mut CDevice>,
}

// SAFETY: the list is only read until it is given back, and libibverbs may be called from any
// thread.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        let free = self.library.functions.ibv_free_device_list;
        // SAFETY: the library gave the list, and nothing refers to its devices any more.
        unsafe { free(self.first.as_ptr()) };
    }
}

/// A device of a library, not yet open. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_device")]
pub struct Device {
    list: Arc<List>,
    raw: NonNull<CDevice>,
    name: String,
}

// SAFETY: a device is only read, and libibverbs may be called from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Library {
    /// The devices that it finds now.
    ///
    /// # Errors
    ///
    /// The library failed to look: ENOSYS without the kernel's RDMA, for one.
    #[doc(alias = "ibv_get_device_list")]
    pub fn devices(&'static self) -> Result<Vec<Device>> {
        let mut count: c_int = 0;
        let get = self.functions.ibv_get_device_list;
        // SAFETY: a place for a number.
        let first = unsafe { get(&raw mut count) };
        let first = NonNull::new(first).ok_or_else(|| Error::last("ibv_get_device_list"))?;
        let list = Arc::new(List { library: self, first });
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the library said how many pointers are there; the list lives as long as `list`.
        let devices = unsafe { slice::from_raw_parts(first.as_ptr(), count) };
        let device = |raw: &*mut CDevice| {
            let raw = NonNull::new(*raw)?;
            // SAFETY: the device lives as long as its list.
            let name = unsafe { &raw const (*raw.as_ptr()).name };
            // SAFETY: the field is a string of C (`struct ibv_device`).
            let name = unsafe { CStr::from_ptr(name.cast()) };
            let name = name.to_string_lossy().into_owned();
            Some(Device { list: Arc::clone(&list), raw, name })
        };
        Ok(devices.iter().filter_map(device).collect())
    }
}

impl Device {
    /// Its name.
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its GUID.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> u64 {
        let get = self.list.library.functions.ibv_get_device_guid;
        // SAFETY: the device lives as long as its list.
        u64::from_be(unsafe { get(self.raw.as_ptr()) })
    }

    /// The library it is of.
    pub fn library(&self) -> &'static Library {
        self.list.library
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// The library's: EACCES without rights on `/dev/infiniband`, for one.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        let open = self.list.library.functions.ibv_open_device;
        // SAFETY: the device lives as long as its list.
        let raw = unsafe { open(self.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_open_device"))?;
        Context::new(Arc::clone(&self.list), raw, self.name.clone())
    }
}

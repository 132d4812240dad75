//! Arguments of ioctls: how they are copied, and those of the DRM core.

use std::ffi::{c_ulong, c_void};
use std::ptr;

use crate::Result;

/// A request number, as `_IOC` encodes it.
#[derive(Clone, Copy)]
pub(crate) struct Request(u32);

impl Request {
    pub(crate) fn new(request: c_ulong) -> Self {
        // CAST: the kernel looks at 32 bits only, and programs may sign-extend them.
        Self(request as u32)
    }

    pub(crate) fn nr(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    pub(crate) fn letter(self) -> u8 {
        self.0.to_le_bytes()[1]
    }

    fn size(self) -> usize {
        (self.0 >> 16 & 0x3fff) as usize
    }

    fn writes(self) -> bool {
        self.0 >> 30 & 1 != 0
    }

    fn reads(self) -> bool {
        self.0 >> 31 != 0
    }
}

/// A structure of the kernel's UAPI: every bit pattern is a valid value.
///
/// # Safety
///
/// The type is `repr(C)` and consists only of integers, without padding.
pub(crate) unsafe trait Uapi: Copy {}

// SAFETY: an integer.
unsafe impl Uapi for u32 {}

/// Defines structures of the kernel's UAPI.
macro_rules! uapi {
    ($($(#[$note:meta])* struct $name:ident: $size:literal { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$note])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == $size $(&& size_of::<$type>() > 0)*);
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*, "padding");

        // SAFETY: all fields are integers, and their sizes add up to the size of the structure.
        unsafe impl $crate::args::Uapi for $name {}
    )*};
}
pub(crate) use uapi;

uapi! {
    #[doc(alias = "drm_version")]
    struct Version: 64 {
        major: i32,
        minor: i32,
        patch: i32,
        pad: u32,
        name_len: u64,
        name: u64,
        date_len: u64,
        date: u64,
        desc_len: u64,
        desc: u64,
    }
    #[doc(alias = "drm_get_cap")]
    struct GetCap: 16 {
        capability: u64,
        value: u64,
    }
    #[doc(alias = "drm_gem_close")]
    #[doc(alias = "drm_mode_destroy_dumb")]
    struct GemClose: 8 {
        handle: u32,
        pad: u32,
    }
    #[doc(alias = "drm_prime_handle")]
    struct Prime: 12 {
        handle: u32,
        flags: u32,
        fd: i32,
    }
    #[doc(alias = "drm_mode_create_dumb")]
    struct CreateDumb: 32 {
        height: u32,
        width: u32,
        bpp: u32,
        flags: u32,
        handle: u32,
        pitch: u32,
        size: u64,
    }
    #[doc(alias = "drm_mode_map_dumb")]
    struct MapDumb: 16 {
        handle: u32,
        pad: u32,
        offset: u64,
    }
    #[doc(alias = "dma_buf_sync")]
    struct Sync: 8 {
        flags: u64,
    }
    #[doc(alias = "dma_buf_export_sync_file")]
    #[doc(alias = "dma_buf_import_sync_file")]
    struct SyncFd: 8 {
        flags: u32,
        fd: i32,
    }
}

/// The argument of one request.
///
/// The program's structure may be of another version than ours: fields that it lacks read as zero,
/// and fields that it has beyond ours are left alone.
pub(crate) struct Arg {
    request: Request,
    place: *mut c_void,
}

impl Arg {
    pub(crate) fn new(request: Request, place: *mut c_void) -> Self {
        Self { request, place }
    }

    /// Copies the argument in, runs `body` on it, and copies it out again, even if `body`
    /// failed.
    ///
    /// # Safety
    ///
    /// The place is null, or has as many bytes as the request number encodes.
    pub(crate) unsafe fn with<T: Uapi>(
        &self,
        body: impl FnOnce(&mut T) -> Result<()>,
    ) -> Result<()> {
        if self.place.is_null() {
            return Err(libc::EFAULT);
        }
        let len = self.request.size().min(size_of::<T>());
        // SAFETY: all zeros is a valid bit pattern.
        let mut value: T = unsafe { std::mem::zeroed() };
        if self.request.writes() {
            // SAFETY: the caller promises that many bytes; the value has at least as many.
            unsafe { ptr::copy(self.place.cast::<u8>(), (&raw mut value).cast(), len) };
        }
        let result = body(&mut value);
        if self.request.reads() {
            // SAFETY: as above.
            unsafe { ptr::copy((&raw const value).cast(), self.place.cast::<u8>(), len) };
        }
        result
    }
}

/// A word in the first four of eight bytes, where a C union keeps it in native byte order.
pub(crate) fn first_half(word: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&word.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_structure_is_extended_with_zeros_and_stays_short() {
        // _IOWR('d', 0x0c, 8 bytes)
        let request = Request::new(0xc008_640c);
        assert_eq!((request.nr(), request.letter(), request.size()), (0x0c, b'd', 8));
        let mut place = [5u64, 77];
        let arg = Arg::new(request, place.as_mut_ptr().cast());
        let body = |cap: &mut GetCap| {
            assert_eq!((cap.capability, cap.value), (5, 0));
            (cap.capability, cap.value) = (6, 3);
            Ok(())
        };
        // SAFETY: the place has 16 bytes, of which the request has 8.
        unsafe { arg.with(body) }.unwrap();
        assert_eq!(place, [6, 77]);
    }
}

//! The ioctls of amdgpu that make and map buffers.

use gpu::{Domain, Domains, Place};

use crate::Result;
use crate::args::{Arg, first_half, uapi};
use crate::file::File;
use crate::refusal::unknown;
use crate::state::State;

uapi! {
    /// A union: the handle is returned in the first four bytes.
    #[doc(alias = "drm_amdgpu_gem_create")]
    struct Create: 32 {
        size_or_handle: u64,
        alignment: u64,
        domains: u64,
        flags: u64,
    }
    /// A union: the handle goes in, the offset comes out.
    #[doc(alias = "drm_amdgpu_gem_mmap")]
    struct Map: 8 {
        handle_or_offset: u64,
    }
}

#[doc(alias = "AMDGPU_GEM_DOMAIN_CPU")]
const CPU: u64 = 0x1;
#[doc(alias = "AMDGPU_GEM_DOMAIN_GTT")]
const GTT: u64 = 0x2;
#[doc(alias = "AMDGPU_GEM_DOMAIN_VRAM")]
const VRAM: u64 = 0x4;

#[doc(alias = "AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED")]
const CPU_ACCESS_REQUIRED: u64 = 1 << 0;
#[doc(alias = "AMDGPU_GEM_CREATE_NO_CPU_ACCESS")]
const NO_CPU_ACCESS: u64 = 1 << 1;
/// The flags that programs may use: bits 0 to 3, 5 to 11.
const FLAGS: u64 = 0xfef;

/// # Safety
///
/// The argument points to what the request needs.
pub(crate) unsafe fn ioctl(state: &State, file: &File, nr: u8, arg: &Arg) -> Result<()> {
    match nr {
        // SAFETY: the caller's promise.
        0x00 => unsafe { arg.with(|create| make(state, file, create)) },
        // SAFETY: the caller's promise.
        0x01 => unsafe { arg.with(|map| find(file, map)) },
        nr => Err(unknown(nr)),
    }
}

fn make(state: &State, file: &File, create: &mut Create) -> Result<()> {
    let allowed = (create.domains & (CPU | GTT) != 0, create.domains & VRAM != 0);
    let both = create.flags & CPU_ACCESS_REQUIRED != 0 && create.flags & NO_CPU_ACCESS != 0;
    if create.domains & !(CPU | GTT | VRAM) != 0 || create.flags & !FLAGS != 0 || both {
        return Err(libc::EINVAL);
    }
    let place = match allowed {
        (false, false) => return Err(libc::EINVAL),
        (true, false) => Place::GTT,
        // A buffer placed in VRAM may be evicted from it at any time.
        (_, true) => Place {
            preferred: Domain::Vram,
            allowed: Domains::all(),
            visible: create.flags & CPU_ACCESS_REQUIRED != 0,
            align: 0,
        },
    };
    let place = Place { align: create.alignment, ..place };
    let cpu_access = create.flags & NO_CPU_ACCESS == 0;
    let (handle, _) = file.create(state, create.size_or_handle, place, cpu_access)?;
    create.size_or_handle = first_half(handle);
    Ok(())
}

fn find(file: &File, map: &mut Map) -> Result<()> {
    let bytes = map.handle_or_offset.to_ne_bytes();
    let handle = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let object = file.object(handle)?;
    if !object.cpu_access {
        return Err(libc::EPERM);
    }
    map.handle_or_offset = object.offset;
    Ok(())
}

//! The ioctls of i915 and xe that make and map buffers.

use gpu::{Domain, Domains, Place};

use crate::args::{Arg, uapi};
use crate::file::File;
use crate::refusal::unknown;
use crate::state::State;
use crate::{Result, pointer};

uapi! {
    #[doc(alias = "drm_i915_gem_create")]
    struct Create: 16 {
        size: u64,
        handle: u32,
        pad: u32,
    }
    #[doc(alias = "drm_i915_gem_create_ext")]
    struct CreateExt: 24 {
        size: u64,
        handle: u32,
        flags: u32,
        extensions: u64,
    }
    #[doc(alias = "i915_user_extension")]
    struct Extension: 32 {
        next: u64,
        name: u32,
        flags: u32,
        reserved: [u32; 4],
    }
    #[doc(alias = "drm_i915_gem_create_ext_memory_regions")]
    struct Regions: 48 {
        base: Extension,
        pad: u32,
        count: u32,
        regions: u64,
    }
    #[doc(alias = "drm_i915_gem_memory_class_instance")]
    struct Region: 4 {
        class: u16,
        instance: u16,
    }
    /// Its first 16 bytes are `drm_i915_gem_mmap_gtt`, which has the same number.
    #[doc(alias = "drm_i915_gem_mmap_offset")]
    struct MapOffset: 32 {
        handle: u32,
        pad: u32,
        offset: u64,
        flags: u64,
        extensions: u64,
    }
    #[doc(alias = "drm_xe_gem_create")]
    struct XeCreate: 56 {
        extensions: u64,
        size: u64,
        placement: u32,
        flags: u32,
        vm: u32,
        handle: u32,
        caching: u16,
        pad: [u16; 3],
        reserved: [u64; 2],
    }
    #[doc(alias = "drm_xe_gem_mmap_offset")]
    struct XeMapOffset: 40 {
        extensions: u64,
        handle: u32,
        flags: u32,
        offset: u64,
        reserved: [u64; 2],
    }
}

#[doc(alias = "I915_GEM_CREATE_EXT_FLAG_NEEDS_CPU_ACCESS")]
const NEEDS_CPU_ACCESS: u32 = 1;
#[doc(alias = "I915_GEM_CREATE_EXT_MEMORY_REGIONS")]
const MEMORY_REGIONS: u32 = 0;
#[doc(alias = "I915_MMAP_OFFSET_FIXED")]
const LAST_MMAP_MODE: u64 = 4;
#[doc(alias = "DRM_XE_GEM_CREATE_FLAG_NEEDS_VISIBLE_VRAM")]
const XE_NEEDS_VISIBLE: u32 = 1 << 2;
/// `DRM_XE_GEM_CPU_CACHING_WB` and `_WC`.
const XE_WRITE_BACK: u16 = 1;
const XE_WRITE_COMBINING: u16 = 2;

/// A chain with more extensions than this is taken for a loop.
const MOST_EXTENSIONS: usize = 512;

/// # Safety
///
/// The argument points to what the request needs.
pub(crate) unsafe fn i915(state: &State, file: &File, nr: u8, arg: &Arg) -> Result<()> {
    match nr {
        // GEM_CREATE: in system memory, even on a card that has memory of its own.
        // SAFETY: the caller's promise.
        0x1b => unsafe {
            arg.with(|create: &mut Create| {
                (create.handle, create.size) = file.create(state, create.size, Place::GTT, true)?;
                Ok(())
            })
        },
        // GEM_MMAP: discrete cards have none.
        0x1e => Err(libc::EOPNOTSUPP),
        // SAFETY: the caller's promise.
        0x24 => unsafe {
            arg.with(|map: &mut MapOffset| {
                if map.flags > LAST_MMAP_MODE || map.extensions != 0 {
                    return Err(libc::EINVAL);
                }
                map.offset = file.object(map.handle)?.offset;
                Ok(())
            })
        },
        // SAFETY: the caller's promise.
        0x3c => unsafe {
            arg.with(|create: &mut CreateExt| {
                if create.flags & !NEEDS_CPU_ACCESS != 0 {
                    return Err(libc::EINVAL);
                }
                let place = placement(create)?;
                (create.handle, create.size) = file.create(state, create.size, place, true)?;
                Ok(())
            })
        },
        nr => Err(unknown(nr)),
    }
}

/// The placements that the chain of extensions allows for a buffer.
fn placement(create: &CreateExt) -> Result<Place> {
    let mut place = None;
    let mut next = create.extensions;
    for _ in 0..MOST_EXTENSIONS {
        if next == 0 {
            break;
        }
        let extension = pointer::<Extension>(next)?;
        // SAFETY: contract: the chain consists of such structures.
        let base = unsafe { extension.read_unaligned() };
        if base.name != MEMORY_REGIONS || base.flags != 0 || base.reserved != [0; 4] {
            return Err(libc::EINVAL);
        }
        // SAFETY: contract: an extension of this name is such a structure.
        let regions = unsafe { extension.cast::<Regions>().read_unaligned() };
        if place.replace(regions_of(&regions)?).is_some() {
            return Err(libc::EINVAL);
        }
        next = regions.base.next;
    }
    if next != 0 {
        return Err(libc::E2BIG);
    }
    let mut place = place.unwrap_or(Place::GTT);
    if create.flags & NEEDS_CPU_ACCESS != 0 {
        if place.allowed != Domains::all() {
            return Err(libc::EINVAL);
        }
        place.visible = true;
    }
    Ok(place)
}

fn regions_of(regions: &Regions) -> Result<Place> {
    // There are two regions.
    if regions.pad != 0 || !(1..=2).contains(&regions.count) {
        return Err(libc::EINVAL);
    }
    let list = pointer::<Region>(regions.regions)?;
    let mut place: Option<Place> = None;
    for n in 0..regions.count as usize {
        let region = list.wrapping_add(n);
        // SAFETY: contract: the list has as many regions as it says.
        let region = unsafe { region.read_unaligned() };
        let domain = match (region.class, region.instance) {
            (0, 0) => Domain::Gtt,
            (1, 0) => Domain::Vram,
            _ => return Err(libc::EINVAL),
        };
        let place = place.get_or_insert(Place {
            preferred: domain,
            allowed: Domains::empty(),
            visible: false,
            align: 0,
        });
        if place.allowed.contains(domain.only()) {
            return Err(libc::EINVAL);
        }
        place.allowed |= domain.only();
    }
    place.ok_or(libc::EINVAL)
}

/// # Safety
///
/// The argument points to what the request needs.
pub(crate) unsafe fn xe(state: &State, file: &File, nr: u8, arg: &Arg) -> Result<()> {
    match nr {
        // SAFETY: the caller's promise.
        0x01 => unsafe { arg.with(|create| xe_create(state, file, create)) },
        // SAFETY: the caller's promise.
        0x02 => unsafe {
            arg.with(|map: &mut XeMapOffset| {
                if map.extensions != 0 || map.flags != 0 || map.reserved != [0; 2] {
                    return Err(libc::EINVAL);
                }
                map.offset = file.object(map.handle)?.offset;
                Ok(())
            })
        },
        nr => Err(unknown(nr)),
    }
}

fn xe_create(state: &State, file: &File, create: &mut XeCreate) -> Result<()> {
    let place = match create.placement {
        1 => Place::GTT,
        2 => Place::ONLY_VRAM,
        3 => Place::VRAM,
        _ => return Err(libc::EINVAL),
    };
    let in_vram = create.placement & 2 != 0;
    let visible = create.flags & XE_NEEDS_VISIBLE != 0;
    let caching = match create.caching {
        XE_WRITE_BACK => !in_vram,
        XE_WRITE_COMBINING => true,
        _ => false,
    };
    let whole = create.size != 0 && crate::pages(create.size) == Some(create.size);
    let zero = create.extensions == 0 && create.pad == [0; 3] && create.reserved == [0; 2];
    if !caching || !whole || !zero || create.flags & !7 != 0 || visible && !in_vram {
        return Err(libc::EINVAL);
    }
    if create.vm != 0 {
        return Err(libc::ENOENT);
    }
    let place = Place { visible, ..place };
    (create.handle, _) = file.create(state, create.size, place, true)?;
    Ok(())
}

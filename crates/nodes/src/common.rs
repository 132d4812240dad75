//! The ioctls that every DRM driver has.

use std::ffi::{c_int, c_ulong, c_void};
use std::ptr;

use gpu::{Place, Preset};

use crate::args::{Arg, CreateDumb, GemClose, GetCap, MapDumb, Prime, Request, Version};
use crate::drm::{amdgpu, intel, prime};
use crate::file::{Behind, File, Kind};
use crate::habana::context::Context;
use crate::refusal::unknown;
use crate::state::State;
use crate::{Result, habana, pages, pointer, vfio};

/// `DRM_IOCTL_BASE`.
const LETTER: u8 = b'd';

/// The driver's own requests: `DRM_COMMAND_BASE` to `DRM_COMMAND_END`.
const DRIVER: std::ops::Range<u8> = 0x40..0xa0;

/// `AMDGPU_GEM_DOMAIN_VRAM` and the like want rows of this many bytes.
const PITCH: u32 = 256;

/// An ioctl on an open node.
///
/// # Safety
///
/// `place` points to what the request needs.
pub(crate) unsafe fn ioctl(
    state: &State,
    file: &File,
    request: c_ulong,
    place: *mut c_void,
) -> Result<c_int> {
    let request = Request::new(request);
    match &file.behind {
        // SAFETY: the caller's promise.
        Behind::Vfio(device) => return unsafe { vfio::ioctl(state, file, device, request, place) },
        // SAFETY: the caller's promise.
        Behind::Iommu(iommu) => return unsafe { iommu.ioctl(request, place) }.map(|()| 0),
        _ => {}
    }
    if request.letter() != LETTER {
        return Err(libc::ENOTTY);
    }
    let arg = Arg::new(request, place);
    let nr = request.nr();
    let done = match &file.behind {
        // SAFETY: the caller's promise.
        Behind::Drm => unsafe { of_drm(state, file, nr, &arg) },
        // SAFETY: the caller's promise.
        Behind::Accel(context) => unsafe { of_accel(file, context, nr, &arg) },
        // SAFETY: the caller's promise.
        Behind::AccelControl => unsafe { habana::control(file, nr, &arg) },
        Behind::Vfio(_) | Behind::Iommu(_) => Err(libc::ENOTTY),
    };
    done.map(|()| 0)
}

/// # Safety
///
/// The argument is what the request needs.
unsafe fn of_drm(state: &State, file: &File, nr: u8, arg: &Arg) -> Result<()> {
    // Rendering needs none of these.
    if matches!(nr, 0x01 | 0x0d | 0xb2..=0xb4) && file.kind != Kind::Card {
        return Err(libc::EACCES);
    }
    // SAFETY, for all below: the caller promises that the place has what the request needs, and
    // `with` copies no more.
    match nr {
        // SAFETY: see above.
        0x00 => unsafe { arg.with(|version| fill_version(file, version)) },
        // SAFETY: see above.
        0x09 => unsafe { arg.with(|close: &mut GemClose| file.close(close.handle)) },
        // SAFETY: see above.
        0x0c => unsafe { arg.with(get_cap) },
        // SAFETY: see above.
        0x2d => unsafe { arg.with(|handle: &mut Prime| prime::to_fd(file, handle)) },
        // SAFETY: see above.
        0x2e => unsafe { arg.with(|handle: &mut Prime| prime::to_handle(state, file, handle)) },
        // SAFETY: see above.
        0xb2 => unsafe { arg.with(|dumb| create_dumb(state, file, dumb)) },
        // SAFETY: see above.
        0xb3 => unsafe { arg.with(|map| map_dumb(file, map)) },
        // SAFETY: see above.
        0xb4 => unsafe { arg.with(|dumb: &mut GemClose| file.close(dumb.handle)) },
        nr if DRIVER.contains(&nr) => {
            let nr = nr - DRIVER.start;
            match file.node.driver() {
                // SAFETY: see above.
                Preset::Amdgpu => unsafe { amdgpu::ioctl(state, file, nr, arg) },
                // SAFETY: see above.
                Preset::I915 => unsafe { intel::i915(state, file, nr, arg) },
                // SAFETY: see above.
                Preset::Xe => unsafe { intel::xe(state, file, nr, arg) },
                _ => Err(unknown(nr)),
            }
        }
        nr => Err(unknown(nr)),
    }
}

/// An accelerator has no GEM objects: its driver has an interface of its own.
///
/// # Safety
///
/// The argument is what the request needs.
unsafe fn of_accel(file: &File, context: &Context, nr: u8, arg: &Arg) -> Result<()> {
    match nr {
        // SAFETY: the caller's promise.
        0x00 => unsafe { arg.with(|version| fill_version(file, version)) },
        // GEM_CLOSE, PRIME_HANDLE_TO_FD, PRIME_FD_TO_HANDLE
        0x09 | 0x2d | 0x2e => Err(libc::EOPNOTSUPP),
        // SAFETY: the caller's promise.
        nr if DRIVER.contains(&nr) => unsafe {
            habana::ioctl(file, context, nr - DRIVER.start, arg)
        },
        nr => Err(unknown(nr)),
    }
}

fn fill_version(file: &File, version: &mut Version) -> Result<()> {
    let driver = file.node.driver();
    (version.major, version.minor, version.patch) = match driver {
        Preset::Amdgpu => (3, 61, 0),
        Preset::I915 => (1, 6, 0),
        Preset::Habanalabs => (1, 0, 0),
        _ => (1, 1, 0),
    };
    let describe = format!("peerdma software GPU ({})", driver.name());
    let fields = [
        (version.name, &mut version.name_len, driver.name()),
        (version.date, &mut version.date_len, "0"),
        (version.desc, &mut version.desc_len, &describe),
    ];
    for (place, len, text) in fields {
        let room = usize::try_from(*len).unwrap_or(usize::MAX).min(text.len());
        if room > 0 && place != 0 {
            let place = pointer::<u8>(place)?;
            // SAFETY: contract: the program's buffer has as many bytes as it said, and this copies
            // no more.
            unsafe { ptr::copy(text.as_ptr(), place, room) };
        }
        *len = text.len() as u64;
    }
    Ok(())
}

fn get_cap(cap: &mut GetCap) -> Result<()> {
    cap.value = match cap.capability {
        // DRM_CAP_DUMB_BUFFER, DRM_CAP_TIMESTAMP_MONOTONIC
        0x1 | 0x6 => 1,
        // DRM_CAP_PRIME: import and export
        0x5 => 3,
        // DRM_CAP_DUMB_PREFERRED_DEPTH
        0x3 => 24,
        // DRM_CAP_CURSOR_WIDTH and _HEIGHT
        0x8 | 0x9 => 64,
        // capabilities of displays, and sync objects
        0x2 | 0x4 | 0x7 | 0x10..=0x14 => 0,
        _ => return Err(libc::EINVAL),
    };
    Ok(())
}

fn create_dumb(state: &State, file: &File, dumb: &mut CreateDumb) -> Result<()> {
    (dumb.handle, dumb.pitch, dumb.size) = (0, 0, 0);
    if dumb.width == 0 || dumb.height == 0 || dumb.bpp == 0 || dumb.flags != 0 {
        return Err(libc::EINVAL);
    }
    let row = dumb.width.checked_mul(dumb.bpp.div_ceil(8));
    let pitch = row.and_then(|row| row.checked_next_multiple_of(PITCH)).ok_or(libc::EINVAL)?;
    let size = pages(u64::from(pitch) * u64::from(dumb.height)).ok_or(libc::EINVAL)?;
    let (handle, size) = file.create(state, size, Place::VISIBLE_VRAM, true)?;
    (dumb.handle, dumb.pitch, dumb.size) = (handle, pitch, size);
    Ok(())
}

fn map_dumb(file: &File, map: &mut MapDumb) -> Result<()> {
    map.offset = file.object(map.handle)?.offset;
    Ok(())
}

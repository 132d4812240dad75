//! A Level Zero program, which measures copies by an immediate list.

#![allow(unsafe_code, reason = "the functions are C's")]

use std::ffi::{c_int, c_void};

use super::{LARGE, find, hear, large, say};
use crate::Outcome;

/// A structure that begins with its type, with nothing else set.
type Desc = [u64; 8];

const CONTEXT_DESC: u64 = 0xd;
const QUEUE_DESC: u64 = 0xe;
const DEVICE_MEM_DESC: u64 = 0x15;

type Handle = *mut c_void;
type List = unsafe extern "C" fn(Handle, *mut u32, *mut Handle) -> c_int;
type Create = unsafe extern "C" fn(Handle, Handle, *const Desc, *mut Handle) -> c_int;
type Alloc =
    unsafe extern "C" fn(Handle, *const Desc, usize, usize, Handle, *mut *mut c_void) -> c_int;
type Copy = unsafe extern "C" fn(
    Handle,
    *mut c_void,
    *const c_void,
    usize,
    Handle,
    u32,
    *const Handle,
) -> c_int;

/// Answers `memcpy`, `htod`, `dtoh` and `dtod` (MiB/s).
pub(super) fn run() -> Outcome<()> {
    // SAFETY: the name is terminated; the code of the library that loading runs has no
    // requirements.
    let library = unsafe { libc::dlopen(c"libze_loader.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err("there is no libze_loader.so.1".into());
    }
    let init: unsafe extern "C" fn(u32) -> c_int = find(library, c"zeInit")?;
    let drivers: unsafe extern "C" fn(*mut u32, *mut Handle) -> c_int =
        find(library, c"zeDriverGet")?;
    let devices: List = find(library, c"zeDeviceGet")?;
    let contexts: unsafe extern "C" fn(Handle, *const Desc, *mut Handle) -> c_int =
        find(library, c"zeContextCreate")?;
    let lists: Create = find(library, c"zeCommandListCreateImmediate")?;
    let alloc: Alloc = find(library, c"zeMemAllocDevice")?;
    let copy: Copy = find(library, c"zeCommandListAppendMemoryCopy")?;
    let none = std::ptr::null_mut();
    let [mut driver, mut device, mut context, mut list] = [none; 4];
    let desc = |kind| [kind, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: it takes flags, of which there are none.
    done(unsafe { init(0) })?;
    let mut count = 1;
    // SAFETY: a place for one handle.
    done(unsafe { drivers(&mut count, &mut driver) })?;
    // SAFETY: as above.
    done(unsafe { devices(driver, &mut count, &mut device) })?;
    // SAFETY: a structure of this type, longer than necessary.
    done(unsafe { contexts(driver, &desc(CONTEXT_DESC), &mut context) })?;
    let mut queue = desc(QUEUE_DESC);
    // The mode, behind ordinal, index and flags: synchronous.
    queue[3] = 1 << 32;
    // SAFETY: as above.
    done(unsafe { lists(context, device, &queue, &mut list) })?;
    let mut memory = [none; 2];
    for one in &mut memory {
        // SAFETY: a place for the result.
        done(unsafe { alloc(context, &desc(DEVICE_MEM_DESC), LARGE, 0, device, one) })?;
    }
    let [a, b] = memory;
    let (from, mut to) = (vec![1_u8; LARGE], vec![2_u8; LARGE]);
    let copied = |dst: *mut c_void, src: *const c_void| {
        // SAFETY: both are that long.
        done(unsafe { copy(list, dst, src, LARGE, none, 0, std::ptr::null()) })
    };
    say("")?;
    while let Some(words) = hear()? {
        let figure = match words.first().map_or("", String::as_str) {
            "memcpy" => large(|| {
                to.copy_from_slice(&from);
                std::hint::black_box(&mut to);
                Ok(())
            })?,
            "htod" => large(|| copied(a, from.as_ptr().cast()))?,
            "dtoh" => large(|| copied(to.as_mut_ptr().cast(), a))?,
            "dtod" => large(|| copied(b, a))?,
            other => return Err(format!("there is no measurement {other:?}").into()),
        };
        say(&figure.to_string())?;
    }
    Ok(())
}

fn done(result: c_int) -> Outcome<()> {
    if result == 0 { Ok(()) } else { Err(format!("Level Zero answers {result:#x}").into()) }
}

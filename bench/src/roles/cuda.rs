//! A CUDA program: it finds the driver by `dlopen` and `dlsym`, as most programs do, and measures
//! single calls.

#![allow(unsafe_code, reason = "the functions are C's")]

use std::ffi::{c_int, c_void};
use std::time::Instant;

use super::{LARGE, find, hear, large, say};
use crate::Outcome;

type Alloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type Free = unsafe extern "C" fn(u64) -> c_int;
type ToDevice = unsafe extern "C" fn(u64, *const c_void, usize) -> c_int;
type ToHost = unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int;
type Between = unsafe extern "C" fn(u64, u64, usize) -> c_int;
type Attributes = unsafe extern "C" fn(u32, *const c_int, *const *mut c_void, u64) -> c_int;

/// The functions that are measured.
struct Driver {
    alloc: Alloc,
    free: Free,
    to_device: ToDevice,
    to_host: ToHost,
    between: Between,
    attributes: Attributes,
}

/// Answers `attributes` (ns), `alloc` (us), `memcpy`, `htod`, `dtoh` and `dtod` (MiB/s); first it
/// reports how long the driver took to start (ms).
pub(super) fn run() -> Outcome<()> {
    let start = Instant::now();
    let driver = Driver::find()?;
    let mut memory = [0_u64; 2];
    for one in &mut memory {
        // SAFETY: a place for the result.
        done(unsafe { (driver.alloc)(one, LARGE) })?;
    }
    say(&format!("{}", start.elapsed().as_secs_f64() * 1e3))?;
    let [a, b] = memory;
    let (from, mut to) = (vec![1_u8; LARGE], vec![2_u8; LARGE]);
    while let Some(words) = hear()? {
        let figure = match words.first().map_or("", String::as_str) {
            "attributes" => driver.time_attributes(from.as_ptr().addr() as u64)?,
            "alloc" => driver.time_alloc()?,
            "memcpy" => large(|| {
                to.copy_from_slice(&from);
                std::hint::black_box(&mut to);
                Ok(())
            })?,
            "htod" => large(|| {
                // SAFETY: both are that long.
                done(unsafe { (driver.to_device)(a, from.as_ptr().cast(), LARGE) })
            })?,
            "dtoh" => large(|| {
                // SAFETY: both are that long.
                done(unsafe { (driver.to_host)(to.as_mut_ptr().cast(), a, LARGE) })
            })?,
            "dtod" => large(|| {
                // SAFETY: both are that long.
                done(unsafe { (driver.between)(b, a, LARGE) })
            })?,
            other => return Err(format!("there is no measurement {other:?}").into()),
        };
        say(&figure.to_string())?;
    }
    Ok(())
}

impl Driver {
    /// Loads the driver, and makes a context.
    fn find() -> Outcome<Self> {
        // SAFETY: the name is terminated; loading runs no code of the library.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err("there is no libcuda.so.1".into());
        }
        let init: unsafe extern "C" fn(u32) -> c_int = find(library, c"cuInit")?;
        let create: unsafe extern "C" fn(*mut *mut c_void, u32, c_int) -> c_int =
            find(library, c"cuCtxCreate_v2")?;
        // SAFETY: it takes flags, of which there are none.
        done(unsafe { init(0) })?;
        let mut context = std::ptr::null_mut();
        // SAFETY: a place for the result.
        done(unsafe { create(&mut context, 0, 0) })?;
        Ok(Self {
            alloc: find(library, c"cuMemAlloc_v2")?,
            free: find(library, c"cuMemFree_v2")?,
            to_device: find(library, c"cuMemcpyHtoD_v2")?,
            to_host: find(library, c"cuMemcpyDtoH_v2")?,
            between: find(library, c"cuMemcpyDtoD_v2")?,
            attributes: find(library, c"cuPointerGetAttributes")?,
        })
    }

    /// The attributes that UCX queries for each buffer of the program: type, managed, GPU, context.
    fn time_attributes(&self, host: u64) -> Outcome<f64> {
        const TIMES: u32 = 200_000;
        let which: [c_int; 4] = [2, 8, 9, 1];
        let mut values = [0_u64; 4];
        let places = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
        let start = Instant::now();
        for _ in 0..TIMES {
            // SAFETY: there are as many places as attributes, each wide enough.
            done(unsafe { (self.attributes)(4, which.as_ptr(), places.as_ptr(), host) })?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES))
    }

    /// Allocating and freeing 1 MiB.
    fn time_alloc(&self) -> Outcome<f64> {
        const TIMES: u32 = 2_000;
        let start = Instant::now();
        for _ in 0..TIMES {
            let mut at = 0;
            // SAFETY: a place for the result.
            done(unsafe { (self.alloc)(&mut at, 1 << 20) })?;
            // SAFETY: it was allocated just now.
            done(unsafe { (self.free)(at) })?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES))
    }
}

fn done(result: c_int) -> Outcome<()> {
    if result == 0 { Ok(()) } else { Err(format!("CUDA answers {result}").into()) }
}

//! Initialisation, versions, names of errors, and the look-up of functions.

use std::ffi::{c_char, c_int, c_void};

use crate::begin;
use crate::boundary::{LOG, calls};
use crate::c::{In, Out, Text};
use crate::exported;
use crate::names::{self, Found};
use crate::process;
use crate::status::{self, Refusal, Result, Status, invalid};

/// The version of CUDA that the driver reports unless the configuration sets another.
const VERSION: u32 = 13030;

/// Flags of `cuGetProcAddress`: the default stream of the program is the per-thread one.
const FLAG_PER_THREAD: u64 = 2;
const FLAGS: u64 = 3;

/// The result of a look-up: found, not found, too new.
const QUERY_FOUND: c_int = 0;
const QUERY_NOT_FOUND: c_int = 1;
const QUERY_TOO_NEW: c_int = 2;

/// The version of CUDA that the driver reports.
pub(crate) fn version() -> u32 {
    let configured = crate::machine::devices().iter().find_map(|device| device.config.cuda_version);
    configured.unwrap_or(VERSION)
}

fn look_up(name: Text, version: c_int, flags: u64) -> Result<(*const c_void, c_int)> {
    let name = name.get()?.to_str().map_err(|_| invalid("a name that is not UTF-8"))?;
    let version = u32::try_from(version).map_err(|_| invalid("a negative version"))?;
    let own = self::version();
    if version > own || flags & !FLAGS != 0 {
        return Err(invalid(format!(
            "{name:?} of version {version}, flags {flags}: this is {own}"
        )));
    }
    let symbol = match names::find(name, version, flags & FLAG_PER_THREAD != 0) {
        Found::Form(symbol) => symbol,
        Found::TooNew => return Ok((std::ptr::null(), QUERY_TOO_NEW)),
        Found::None => {
            tracing::debug!(target: LOG, "cuGetProcAddress: there is no function {name:?}");
            return Ok((std::ptr::null(), QUERY_NOT_FOUND));
        }
    };
    // Programs and their hooks get the library's function, not the one behind it.
    Ok((exported::driver_function(symbol).unwrap_or(std::ptr::null()), QUERY_FOUND))
}

calls! { CALLS:
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(invalid(format!("flags {flags}: must be 0")));
        }
        begin::init().map(|_| ())
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.put(self::version().cast_signed())
    }

    fn cuGetErrorName(error: c_int, text: Out<*const c_char>) {
        put_text(error, status::name(error), text)
    }

    fn cuGetErrorString(error: c_int, text: Out<*const c_char>) {
        put_text(error, status::text(error), text)
    }

    fn cuGetProcAddress_v2(
        name: Text,
        function: Out<*const c_void>,
        version: c_int,
        flags: u64,
        answer: Out<c_int>,
    ) {
        function.check()?;
        let (found, how) = look_up(name, version, flags)?;
        function.put_if(found);
        answer.put_if(how);
        Ok(())
    }

    // Programs built for CUDA 12 pass a fifth argument. It must not be written, since programs
    // built for CUDA 11 do not pass it.
    fn cuGetProcAddress(name: Text, function: Out<*const c_void>, version: c_int, flags: u64) {
        function.check()?;
        let (found, how) = look_up(name, version, flags)?;
        function.put_if(found);
        if how == QUERY_FOUND {
            Ok(())
        } else {
            Err(Refusal::new(Status::NotFound, "there is no function of that name and version"))
        }
    }

    // The tables by which the vendor's runtime reaches internals of the driver. Without any of them
    // it refuses to start; with only some of them it would crash.
    fn cuGetExportTable(table: Out<*const c_void>, uuid: In<[u8; 16]>) {
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| tracing::warn!(
            target: LOG,
            "the program was built with NVIDIA's own runtime (static cudart), which needs NVIDIA's own driver and refuses \
             this one; build it with -cudart shared (docs/CUDA.md)"
        ));
        table.put_if(std::ptr::null());
        let uuid = uuid.get()?;
        Err(Refusal::new(Status::NotFound, format!("no table {uuid:02x?}")))
    }

    fn cuProfilerStart() { process::get().map(|_| ()) }

    fn cuProfilerStop() { process::get().map(|_| ()) }
}

fn put_text(
    error: c_int,
    found: Option<&'static std::ffi::CStr>,
    text: Out<*const c_char>,
) -> Result<()> {
    text.check()?;
    text.put_if(found.map_or(std::ptr::null(), std::ffi::CStr::as_ptr));
    found.map(|_| ()).ok_or_else(|| invalid(format!("{error} is not an error code")))
}

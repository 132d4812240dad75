//! Versions, and the look-up of the driver's functions.

use std::ffi::{c_int, c_void};

use super::call::{Failure, INSUFFICIENT_DRIVER, Library, call, done, initialized};
use crate::boundary::{Function, calls};
use crate::c::{In, Out, Text};
use crate::driver;
use crate::status::{Status, invalid};

/// The version that each library reports.
const VERSION_12: u32 = 12090;
const VERSION_13: u32 = 13050;

/// Functions that work with a driver of any version.
pub(super) const NEEDS_NO_DRIVER: &[&str] = &[
    "cudaGetLastError",
    "cudaPeekAtLastError",
    "cudaGetErrorName",
    "cudaGetErrorString",
    "cudaRuntimeGetVersion",
    "cudaDriverGetVersion",
    "__cudaRegisterFatBinary",
    "__cudaRegisterFatBinaryEnd",
    "__cudaUnregisterFatBinary",
    "__cudaRegisterFunction",
    "__cudaRegisterVar",
    "__cudaRegisterManagedVar",
    "__cudaRegisterHostVar",
    "__cudaRegisterUnifiedTable",
    "__cudaInitModule",
];

/// Whether the driver, as it is configured, is older than the library.
pub(super) fn is_refused(library: Library) -> bool {
    let oldest = match library {
        Library::Twelve => 12000,
        Library::Thirteen => 13000,
    };
    driver::init::version() < oldest
}

/// The function behind every name in that case.
pub(super) const REFUSAL: Function = Function(insufficient as *const ());

extern "C" fn insufficient() -> c_int {
    call("libcudart", || {
        let what = format!("cuda_version = {} in the configuration", driver::init::version());
        Err(Failure::new(INSUFFICIENT_DRIVER, what))
    })
}

fn entry_point(
    symbol: Text,
    function: Out<*const c_void>,
    version: u32,
    flags: u64,
    answer: Out<c_int>,
) -> super::call::Result<()> {
    // A library may be newer than the driver, as long as both have the same major version.
    let version = version.min(driver::init::version());
    let mut how = 0;
    let found = driver::init::cuGetProcAddress_v2(
        symbol,
        function,
        // CAST: not greater than the driver's version.
        version as c_int,
        flags,
        Out::to(&mut how),
    );
    done(found)?;
    answer.put_if(how);
    // A program that does not ask for the query result gets an error code.
    if how != 0 && answer.is_null() {
        return Err(Failure::new(Status::NotFound.number(), "the driver has no such function"));
    }
    Ok(())
}

calls! { CALLS by call:
    fn cudaDriverGetVersion(version: Out<c_int>) {
        done(driver::init::cuDriverGetVersion(version))
    }

    fn cudaProfilerStart() { Ok(()) }

    fn cudaProfilerStop() { Ok(()) }

    fn cudaGetExportTable(table: Out<*const c_void>, uuid: In<[u8; 16]>) {
        table.put_if(std::ptr::null());
        let uuid = uuid.get()?;
        Err(Failure::new(Status::NotFound.number(), format!("no table {uuid:02x?}")))
    }
}

calls! { QUERIES by initialized:
    fn cudaGetDriverEntryPointByVersion(
        symbol: Text,
        function: Out<*const c_void>,
        version: u32,
        flags: u64,
        answer: Out<c_int>,
    ) {
        if version > driver::init::version() {
            return Err(invalid(format!("version {version}: the driver is older")).into());
        }
        entry_point(symbol, function, version, flags, answer)
    }
}

calls! { ONLY_12 by call:
    fn cudaRuntimeGetVersion(version: Out<u32>) { Ok(version.put(VERSION_12)?) }

    fn cudaGetDriverEntryPoint(
        symbol: Text,
        function: Out<*const c_void>,
        flags: u64,
        answer: Out<c_int>,
    ) {
        entry_point(symbol, function, VERSION_12, flags, answer)
    }
}

mod thirteen {
    use crate::runtime::version::{Out, Text, VERSION_13, call, calls, entry_point};
    use std::ffi::{c_int, c_void};

    calls! { ONLY_13 by call:
        fn cudaRuntimeGetVersion(version: Out<u32>) { Ok(version.put(VERSION_13)?) }

        fn cudaGetDriverEntryPoint(
            symbol: Text,
            function: Out<*const c_void>,
            flags: u64,
            answer: Out<c_int>,
        ) {
            entry_point(symbol, function, VERSION_13, flags, answer)
        }
    }
}
pub(super) use thirteen::ONLY_13;

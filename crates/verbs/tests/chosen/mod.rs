//! Which provider the tests run on: `PEERDMA_PROVIDER` says it.
#![allow(dead_code, reason = "each test program uses its part")]

use verbs::soft::{self, NicConfig};
use verbs::{Context, Device, Kind, Xrcd};

fn provider() -> Option<std::ffi::OsString> {
    std::env::var_os("PEERDMA_PROVIDER")
}

/// Whether this runs on a NIC of a library.
pub(crate) fn is_library() -> bool {
    provider().is_some()
}

/// Whether this runs on the kernel's `rdma_rxe`, which differs in places that each test names.
pub(crate) fn is_rxe() -> bool {
    provider().is_some_and(|provider| provider == "system")
}

/// The NIC of a library, or a software one of this test's own.
pub(crate) fn device_for(test: &str) -> Device {
    if is_library() {
        return verbs::devices().unwrap().remove(0);
    }
    let name = format!("{test}-{}", std::process::id());
    soft::device(NicConfig { name, ..NicConfig::default() }).unwrap()
}

/// Opens a device once more, as another process would.
pub(crate) fn another(device: &Device) -> Context {
    if device.is_soft() { soft::open_another(device) } else { device.open() }.unwrap()
}

/// A domain of XRC, where the provider has them: rxe has no XRC.
pub(crate) fn xrc_domain(context: &Context) -> Option<Xrcd> {
    let opened = context.open_xrcd();
    if is_rxe() {
        assert_eq!(opened.unwrap_err().kind(), Kind::NotSupported);
        return None;
    }
    Some(opened.unwrap())
}

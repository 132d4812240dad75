//! Importing a buffer of another process.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::Address;
use super::dial::ImportRefused;
use super::link::Link;
use super::message::{Reply, Request};
use super::proxy::Proxy;
use crate::gate::GateSlot;
use crate::shared::Shared;
use crate::window::BusWindow;

/// The buffer at `address`, whose file is `file` and `size` bytes long.
pub(crate) fn import(
    address: Address,
    file: (u64, u64),
    size: u64,
) -> Result<Arc<Proxy>, ImportRefused> {
    let refused = |what: String| ImportRefused::NoExporter(what);
    let link = Link::to(address.token)?;
    let buf = address.id;
    let (dev, ino) = file;
    let asked = link.call(&Request::Import { buf, dev, ino }, Some(Request::Release { buf }));
    let (reply, fds) = asked.map_err(|error| refused(error.to_string()))?;
    let Reply::Imported(facts) = reply else {
        return Err(refused(link.lied("it answers an import strangely").to_string()));
    };
    if facts.size != size || facts.has_gate != (fds.len() == 1) || fds.len() > 1 {
        return Err(refused(link.lied("what it reports about a buffer is not true").to_string()));
    }
    // From here on, dropping the proxy gives the import back.
    let proxy = Proxy::new(link, buf, facts);
    let slot = match fds.first() {
        None => None,
        Some(gate) => {
            Some(GateSlot::claim(gate.as_fd()).map_err(|error| refused(error.to_string()))?)
        }
    };
    let window = BusWindow::of_process().map_err(|error| ImportRefused::System {
        call: "reserving bus addresses",
        errno: Errno::from_io_error(&error).unwrap_or(Errno::NOMEM),
    })?;
    Ok(Arc::new(proxy.with(slot, window)))
}

/// The buffer of the proxy is now on the list of this process.
pub(crate) fn registered(proxy: &Arc<Proxy>, shared: &Arc<Shared>) {
    proxy.link().register(proxy.buf(), shared, proxy);
}

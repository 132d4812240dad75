//! What happens to the port when its netdev changes.

use iba::EventType;
use link::netdev::Netdev;

use super::core::Core;
use crate::nic::port_on;
use crate::port::Port;

/// Follows the netdev, and tells the program what changed. It stays the one that the NIC was opened
/// on: another that has the default route by now is another NIC's. One that was taken away is down.
pub(super) fn refresh(core: &mut Core) {
    let Ok(all) = Netdev::all() else { return };
    let port = match all.into_iter().find(|netdev| netdev.index == core.nic.port.ifindex) {
        Some(netdev) => port_on(netdev),
        None => Port { active: false, ..core.nic.port.clone() },
    };
    let was_active = core.nic.port.active;
    let gids_changed = core.nic.port.gids != port.gids;
    core.nic.port = port;
    if core.nic.port.active != was_active {
        core.raise_port(if was_active { EventType::PortErr } else { EventType::PortActive });
    }
    if gids_changed {
        core.raise_port(EventType::GidChange);
    }
}

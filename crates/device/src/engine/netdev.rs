//! Updates the port when its netdev changes.

use iba::EventType;
use link::netdev::Netdev;

use super::common::Common;
use crate::nic::port_on;
use crate::port::Port;

/// Follows the netdev, and reports changes to the program. It stays the netdev that the NIC was
/// opened on: one that has the default route now belongs to another NIC. A netdev that was removed
/// is down.
pub(super) fn refresh(common: &mut Common) {
    let Ok(all) = Netdev::all() else { return };
    let port = match all.into_iter().find(|netdev| netdev.index == common.nic.port.ifindex) {
        Some(netdev) => port_on(netdev),
        None => Port { active: false, ..common.nic.port.clone() },
    };
    let was_active = common.nic.port.active;
    let gids_changed = common.nic.port.gids != port.gids;
    common.nic.port = port;
    if common.nic.port.active != was_active {
        common.raise_port(if was_active { EventType::PortErr } else { EventType::PortActive });
    }
    if gids_changed {
        common.raise_port(EventType::GidChange);
    }
}

//! The topology for programs; docs/TOPO.md explains each key.

use pci::{Device, DeviceKind, Link, MapType, Memory, PeerToPeer, Topology};
use serde_json::{Value, json};

pub(super) fn of(topology: &Topology) -> Value {
    let devices = topology.devices();
    let pairs = || devices.iter().flat_map(|one| devices.iter().map(move |other| (one, other)));
    let links = pairs().map(|(one, other)| {
        json!({
            "from": one.label,
            "to": other.label,
            "link": topology.link(one, other).letters(),
        })
    });
    let others = pairs().filter(|(provider, client)| provider.bdf != client.bdf);
    let peers = others.map(|(provider, client)| {
        peers(provider, client, &topology.peer_to_peer(provider, client))
    });
    let legend: serde_json::Map<_, _> = Link::ALL
        .map(|link| (link.letters().to_owned(), link.legend().into()))
        .into_iter()
        .collect();
    json!({
        "legend": legend,
        "devices": devices.iter().map(device).collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
        "peer_to_peer": peers.collect::<Vec<_>>(),
        "remarks": topology.remarks(),
    })
}

fn device(device: &Device) -> Value {
    let (reachable, of, resizable_to) = match device.memory {
        Memory::Reachable { size, of, resizable_to } => (size, of, resizable_to),
        _ => (Some(0), None, None),
    };
    let kind = match device.kind {
        DeviceKind::Gpu => "gpu",
        DeviceKind::Nic => "nic",
        DeviceKind::Nvme => "nvme",
        _ => "other",
    };
    json!({
        "label": device.label,
        "kind": kind,
        "bdf": device.bdf.to_string(),
        "ids": device.ids.to_string(),
        "names": device.names,
        "driver": device.driver,
        "numa_node": device.numa,
        "cpus": device.cpus,
        "memory": {
            "reachable": reachable,
            "of": of,
            "resizable_to": resizable_to,
            "text": device.memory.to_string(),
        },
    })
}

fn peers(provider: &Device, client: &Device, peers: &PeerToPeer) -> Value {
    let map_type = match peers.map_type() {
        MapType::BusAddr => "bus_address",
        MapType::ThruHostBridge => "through_host_bridge",
        MapType::None | MapType::NotSupported => "not_supported",
    };
    let redirected_by: Vec<_> = peers.redirected_by().iter().map(ToString::to_string).collect();
    json!({
        "provider": provider.label,
        "client": client.label,
        "possible": peers.refusal.is_none(),
        "map_type": map_type,
        "distance": peers.path.distance,
        "redirected_by": redirected_by,
        "why": peers.refusal.as_ref().map(ToString::to_string),
        "path": peers.path.to_string(),
    })
}

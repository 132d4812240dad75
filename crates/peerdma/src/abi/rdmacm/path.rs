//! The way to a peer, as programs read it.

use device::rdma_cm::Path;
use iba::Av;

use crate::abi::types::device::Gid;
use crate::abi::types::rdma::SaPathRec;

/// A path as a subnet manager would describe it.
pub(super) fn record(path: &Path) -> SaPathRec {
    // "Exactly", and the rate of `iboe_get_rate` for a netdev that does not tell its speed: 10
    // Gbit/s.
    const EXACTLY: u8 = 2;
    const RATE: u8 = 3;
    SaPathRec {
        dgid: Gid { raw: path.dgid.0 },
        sgid: Gid { raw: path.sgid.0 },
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: path.flow_label.to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: 0xffff_u16.to_be(),
        sl: path.traffic_class >> 5,
        mtu_selector: EXACTLY,
        mtu: path.mtu as u8,
        rate_selector: EXACTLY,
        rate: RATE,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_life_time,
        preference: 0,
    }
}

/// The address vector of a way.
pub(super) fn vector(path: &Path) -> Av {
    Av {
        dgid: path.dgid,
        sgid_index: path.sgid_index,
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        port_num: 1,
        is_global: true,
        ..Av::default()
    }
}

//! Paths as programs set and read them (`RDMA_ROUTE`).

use crate::abi::rdmacm::{Answer, Failure};
use crate::abi::types::rdma::{PathData, PathRecord, SaPathRec};

/// The path of a route that a program sets.
///
/// # Errors
/// EINVAL if it is not exactly one path.
pub(super) fn route_of(bytes: &[u8]) -> Answer<PathData> {
    if bytes.len() != size_of::<PathData>() {
        let (length, size) = (bytes.len(), size_of::<PathData>());
        return Err(Failure::new(
            libc::EINVAL,
            format!("RDMA_ROUTE: {length} bytes; one path of {size} is expected"),
        ));
    }
    // SAFETY: there are as many bytes, and the structure is made of integers.
    Ok(unsafe { bytes.as_ptr().cast::<PathData>().read_unaligned() })
}

/// A path as it goes over the wire.
pub(super) fn path_data(path: &SaPathRec) -> PathData {
    /// "Exactly", of sizes and rates.
    const EXACTLY: u8 = 2 << 6;
    let flow = u32::from_be(path.flow_label) << 8 | u32::from(path.hop_limit);
    PathData {
        flags: path.preference.into(),
        reserved: 0,
        path: PathRecord {
            service_id: 0,
            dgid: path.dgid,
            sgid: path.sgid,
            dlid: path.dlid,
            slid: path.slid,
            flowlabel_hoplimit: flow.to_be(),
            tclass: path.traffic_class,
            reversible_numpath: (path.reversible as u8) << 7 | 1,
            pkey: path.pkey,
            qosclass_sl: u16::from(path.sl).to_be(),
            mtu: path.mtu | EXACTLY,
            rate: path.rate | EXACTLY,
            packetlifetime: path.packet_life_time | EXACTLY,
            preference: 0,
            reserved: [0; 6],
        },
    }
}

//! The fast path over a wire.

use iba::{Av, Gid, Qpn};
use transport::env::{LocalError, Source, TransmitError};
use transport::{AckWay, FastPacket};
use zerocopy::IntoBytes;

use super::super::common::Common;
use super::super::env::QpEnv;
use crate::carrier::About;
use crate::carrier::fast_path::{headers, read_datagram};
use crate::ids::QpId;
use crate::payload::{InPayload, fill};
use crate::qp::QpTable;

/// Gives a datagram with a valid ICRC to its QP, if it can take the fast path. If not, nothing has
/// happened.
///
/// Observers do not see it: the caller makes sure that there are none, and that the datagram was
/// neither marked nor forwarded.
#[inline]
pub(in super::super) fn deliver_fast(
    common: &mut Common,
    qps: &mut QpTable,
    about: &About,
    datagram: &[u8],
) -> Option<QpId> {
    let (packet, dest, payload) = read_datagram(datagram)?;
    let entry = qps.by_number(dest)?;
    let context = &mut entry.context;
    let is_from_peer = context.route.is_udp() && context.av.dgid == Gid::from(about.src.ip());
    if !is_from_peer || about.dst.ip().is_multicast() {
        return None;
    }
    let (id, now, length) = (context.id, common.now, payload.len() as u32);
    let env = &mut QpEnv::new(common, context);
    let is_taken = entry.qp.handle_fast(
        env,
        now,
        packet,
        (&InPayload::Bytes(payload), length),
        AckWay::Together,
    );
    is_taken.then_some(id)
}

impl QpEnv<'_, '_> {
    /// Puts a packet to the peer into the next train.
    #[inline]
    pub(in super::super) fn send_datagram(
        &mut self,
        packet: FastPacket,
        dest: Qpn,
        source: Source<'_>,
        length: u32,
    ) -> Result<(), TransmitError> {
        let pd = self.context.pd;
        let (words, size) = headers(packet, dest, length);
        let traffic_class = self.traffic_class_of_any(self.context.av.traffic_class);
        let av = Av { traffic_class, port_num: self.context.port, ..self.context.av };
        let Common { out, memory, nic, .. } = &mut *self.common;
        let (mrs, port) = (&memory.mrs, &nic.port);
        // The full path tries again, and counts the packet as dropped.
        let no_gid = TransmitError::Memory(LocalError::Fault);
        let sgid = port.gids.get(usize::from(av.sgid_index)).ok_or(no_gid)?;
        let headers = &words.as_bytes()[..size];
        out.udp
            .push_fast(*sgid, &av, dest, headers, length, |room| fill(mrs, pd, source, room, None))
    }
}

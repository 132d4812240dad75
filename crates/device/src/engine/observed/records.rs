//! Records packets, at every point where they leave or arrive.

use iba::{Av, Qpn};
use pcap::Direction;
use transport::env::{Source, To};
use umem::Foreign;
use wire::Headers;
use wire::grh::Grh;

use crate::carrier::About;
use crate::engine::common::Common;
use crate::engine::env::QpEnv;
use crate::observe::tap::{Ends, Note};
use crate::qp::QpTable;

impl Common {
    fn ends(&self, av: &Av) -> Ends {
        Ends {
            src: self.nic.port.sgid(av.sgid_index),
            dst: av.dgid,
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit_on_wire(),
        }
    }

    /// Records a record that came out of a ring.
    #[cold]
    pub(crate) fn record_from_ring(
        &mut self,
        qps: &mut QpTable,
        headers: &Headers,
        payload: Foreign<'_>,
        grh: Option<&[u8; 40]>,
    ) {
        let entry = qps.by_number(headers.bth.dest_qp);
        let mut ends = self.ends(&entry.as_ref().map(|entry| entry.context.av).unwrap_or_default());
        std::mem::swap(&mut ends.src, &mut ends.dst);
        if let Some(grh) = grh.map(Grh::parse) {
            (ends.src, ends.dst) = (grh.sgid(), grh.dgid());
        }
        let mtu = entry.map_or(self.nic.port.active_mtu(), |entry| entry.context.path_mtu);
        let (now, note) = (self.now, self.note_in(headers));
        let Some(tap) = self.tap() else { return };
        let mut bytes = tap.payload(payload.len());
        // A capture shows zeros for bytes that cannot be read.
        if payload.copy_to(&mut bytes).is_err() {
            bytes.fill(0);
        }
        tap.memory(now, Direction::Inbound, (ends, mtu), headers, bytes, note);
    }

    /// Records a datagram of QP 1 that went to a process of this host, or stays here.
    #[cold]
    pub(crate) fn record_mad(&mut self, av: &Av, headers: &Headers, mad: &[u8]) {
        let (now, ends, mtu) = (self.now, self.ends(av), self.nic.port.active_mtu());
        let Some(tap) = self.tap() else { return };
        let mut bytes = tap.payload(mad.len());
        bytes.copy_from_slice(mad);
        let note = Note { qpn: Some(Qpn::GSI), ..Note::default() };
        tap.memory(now, Direction::Outbound, (ends, mtu), headers, bytes, note);
    }

    /// Records a received datagram, valid or not.
    #[cold]
    pub(crate) fn record_datagram(&mut self, about: &About, id: u16, bytes: &[u8]) {
        let About { src, dst, traffic_class, hop_limit } = *about;
        let ends = Ends { src: src.ip().into(), dst: dst.ip().into(), traffic_class, hop_limit };
        let note = Headers::parse_prefix(bytes)
            .map_or_else(|_| Note::default(), |(headers, _)| self.note_in(&headers));
        let now = self.now;
        if let Some(tap) = self.tap() {
            tap.received(now, &ends, src.port(), id, bytes, note);
        }
    }

    /// What an incoming packet tells about us.
    fn note_in(&self, headers: &Headers) -> Note {
        let named =
            headers.reth().map(|reth| reth.rkey).or(headers.atomic_eth().map(|eth| eth.rkey));
        let region = named.map(|rkey| (rkey.0, self.memory.mrs.kind_of(rkey.0)));
        Note { qpn: Some(headers.bth.dest_qp), wr_id: None, region }
    }
}

impl QpEnv<'_, '_> {
    /// A packet of this QP was sent, or stands in line for the socket.
    #[cold]
    pub(super) fn record_sent(&mut self, to: To<'_>, headers: &Headers, source: &Source<'_>) {
        let route = self.route_of(to, headers.bth.dest_qp);
        let key = match source {
            Source::Sges { sges, .. } => sges.first().map(|sge| sge.lkey.0),
            Source::Remote { rkey, .. } => Some(rkey.0),
            Source::Empty | Source::Bytes(_) => None,
        };
        let wr_id = headers.bth.opcode.is_request().then_some(self.context.wr_id);
        let region = key.map(|key| (key, self.common.memory.mrs.kind_of(key)));
        let note = Note { qpn: Some(self.context.qpn), wr_id, region };
        let now = self.common.now;
        if route.is_udp() {
            if let Some(tap) = self.common.tap() {
                tap.queued(headers, note);
            }
            return;
        }
        let av = match to {
            To::Peer => &self.context.av,
            To::Av(av) => av,
        };
        let (ends, mtu) = (self.common.ends(av), self.context.path_mtu);
        let length = source.len() as usize;
        let Some(mut bytes) = self.common.tap().map(|tap| tap.payload(length)) else { return };
        self.gather(source, &mut bytes);
        if let Some(tap) = self.common.tap()
            && !route.is_none()
        {
            tap.memory(now, Direction::Outbound, (ends, mtu), headers, bytes, note);
        }
    }
}

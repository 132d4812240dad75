//! QP 1: management datagrams in and out, over every carrier.
//!
//! All processes of a host share its address, so a datagram for QP 1 must find its process: a
//! request through the service that it names, all others through the communication id, whose high
//! bits are a VF. Between processes of one host the sender does that; a datagram from another host
//! reaches some process, which forwards it as it forwards other packets.

use ::cm::{PortSpace, Route as CmRoute, Transmit};
use iba::{Av, Qpn};
use transport::env::Rx;
use wire::cm::{CmaHeader, CommId, Mad, Message};
use wire::grh::Grh;
use wire::mad::{GSI_QKEY, LEN};
use wire::{Deth, Headers, Opcode, Operation, Position, Service};

use super::service::{MAX_UNSENT, Target};
use crate::carrier::About;
use crate::carrier::shm::record::Record;
use crate::carrier::shm::{Forwarded, PushError};
use crate::engine::Engine;
use crate::engine::common::Common;
use crate::mad::Arrived;
use crate::payload::InPayload;

/// The most datagrams for QP 1 that wait to be processed.
const MAX_ARRIVED: usize = 2048;
impl Common {
    /// Takes a packet for QP 1. If it came from the socket, `whole` is the datagram.
    pub(crate) fn arrive_at_gsi(
        &mut self,
        rx: &Rx<'_, InPayload<'_>>,
        via: Option<u16>,
        whole: Option<(&About, &[u8])>,
    ) {
        let opcode = Opcode::new(Service::Ud, Operation::Send, Position::Only);
        let is_ours = Some(rx.headers.bth.opcode) == opcode
            && rx
                .headers
                .deth()
                .is_some_and(|deth| deth.qkey == GSI_QKEY && deth.src_qp == Qpn::GSI)
            && rx.payload.len() as usize == LEN;
        let mut mad = Box::new([0; LEN]);
        let grh = rx.grh.map(Grh::parse).filter(|grh| self.nic.port.gids.contains(&grh.dgid()));
        let (true, Some(grh)) = (is_ours && rx.payload.read(&mut mad[..]), grh) else {
            self.counters.first.rx_malformed_packets += 1;
            tracing::debug!(target: "peerdma::drop", ?via, "not a management datagram, but for QP 1");
            return;
        };
        let is_down = self.is_port_down();
        if self.waiting.gsi.len() >= MAX_ARRIVED || is_down {
            self.counters.first.dropped_packets += 1;
            tracing::debug!(target: "peerdma::drop", ?via, is_down, "no room at QP 1, or no port");
            return;
        }
        let from = ::cm::Peer { local: grh.dgid(), remote: grh.sgid(), via };
        let whole = whole.map(|(about, bytes)| (*about, bytes.to_vec()));
        self.waiting.gsi.push_back(Arrived { from, mad, whole });
    }
}

/// How a message finds its process, and its sender's id of the connection.
pub(super) fn route_of(mad: &[u8; LEN]) -> Option<(CmRoute, Option<CommId>)> {
    let service = |service: u64, private_data: &[u8]| {
        let header = private_data.first_chunk().and_then(|raw| CmaHeader::parse(raw).ok());
        let is_port = PortSpace::of_service(service).is_some();
        CmRoute::Service(service, header.filter(|_| is_port).map(|header| header.dst))
    };
    let comm = |id: CommId| if id == 0 { CmRoute::Unknown } else { CmRoute::Comm(id) };
    Some(match Mad::parse(&mad[..]).ok()?.message {
        Message::Req(m) => (service(m.service_id, &m.private_data), Some(m.local_comm_id)),
        Message::SidrReq(m) => (service(m.service_id, &m.private_data), Some(m.request_id)),
        Message::SidrRep(m) => (comm(m.request_id), None),
        Message::Mra(m) => (comm(m.remote_comm_id), Some(m.local_comm_id)),
        Message::Rej(m) => (comm(m.remote_comm_id), Some(m.local_comm_id)),
        Message::Rep(m) => (comm(m.remote_comm_id), Some(m.local_comm_id)),
        Message::Rtu(m) => (comm(m.remote_comm_id), Some(m.local_comm_id)),
        Message::Dreq(m) => (comm(m.remote_comm_id), Some(m.local_comm_id)),
        Message::Drep(m) => (comm(m.remote_comm_id), Some(m.local_comm_id)),
        Message::Lap(m) => (comm(m.remote_comm_id), Some(m.local_comm_id)),
        Message::Apr(m) => (comm(m.remote_comm_id), Some(m.local_comm_id)),
    })
}

impl Engine {
    /// Handles the datagrams that arrived for QP 1.
    pub(super) fn handle_arrived(&mut self) {
        // Those that wait for an answer go back to the end: each is processed once.
        for _ in 0..self.common.waiting.gsi.len() {
            let Some(arrived) = self.common.waiting.gsi.pop_front() else { break };
            let Some(arrived) = self.pass_on(arrived) else { continue };
            let Some(arrived) = self.wait_for_listener(arrived) else { continue };
            self.take_mad(arrived);
        }
    }

    /// Handles a datagram of ours, without asking a fault plan.
    pub(crate) fn handle_mad(&mut self, arrived: Arrived) {
        let (now, from) = (self.common.now, arrived.from);
        let handled = self.cm.cm.handle(now, from, &arrived.mad[..]);
        if let Err(ignored) = handled
            && !self.save_ignored(arrived, ignored)
        {
            self.common.counters.first.cm_ignored += 1;
            tracing::debug!(target: "peerdma::cm", ?from, "ignored: {ignored}");
        }
    }

    /// Forwards a datagram from the wire to its process. Returns it if it is ours.
    pub(super) fn pass_on(&mut self, arrived: Arrived) -> Option<Arrived> {
        let Some((about, bytes)) = &arrived.whole else { return Some(arrived) };
        let vf = self.common.nic.vf;
        let Some((route, id)) = route_of(&arrived.mad) else { return Some(arrived) };
        match self.cm.target(vf, arrived.from.remote, route, id) {
            Target::Vf(target) if target != vf => {
                let forwarded = self.common.out.shm.forward(self.common.now, target, about, bytes);
                match forwarded {
                    Forwarded::Yes => self.common.counters.first.forwarded_packets += 1,
                    Forwarded::NoRoom => self.common.counters.first.dropped_packets += 1,
                    // A connection of a process that died: we answer a peer's disconnect in its
                    // place.
                    Forwarded::NoSuchProcess => return Some(arrived),
                }
                None
            }
            Target::Vf(_) | Target::Nobody => Some(arrived),
            Target::Asked => {
                if self.cm.mads.waiting.len() >= MAX_UNSENT {
                    // The oldest waits for a process that does not answer.
                    self.cm.mads.waiting.pop_front();
                    self.common.counters.first.dropped_packets += 1;
                }
                self.cm.mads.waiting.push_back(arrived);
                None
            }
        }
    }

    /// Sends the messages of the communication manager, and those that waited.
    pub(super) fn send_mads(&mut self) -> bool {
        let mut moved = false;
        for _ in 0..self.cm.mads.unsent.len() {
            let Some(transmit) = self.cm.mads.unsent.pop_front() else { break };
            moved |= self.send_mad(transmit);
        }
        while let Some(transmit) = self.cm.cm.poll_transmit() {
            moved |= self.emit_mad(transmit);
        }
        moved
    }

    /// Sends one datagram. Returns false if it must wait.
    pub(crate) fn send_mad(&mut self, mut transmit: Transmit) -> bool {
        let peer = transmit.peer;
        let own = self.common.nic.vf;
        if self.common.is_port_down() {
            self.common.counters.first.injected_faults += 1;
            return true;
        }
        if !self.common.nic.port.gids.contains(&peer.remote) || self.common.nic.config.force_udp {
            return self.send_to_wire(transmit);
        }
        let target = match peer.via {
            Some(vf) => Target::Vf(vf),
            None => self.cm.target(own, peer.local, transmit.route, transmit.conn),
        };
        let vf = match target {
            Target::Vf(vf) => vf,
            // We answer for the host, if an answer is due.
            Target::Nobody => own,
            Target::Asked => {
                self.cm.keep_unsent(transmit);
                return false;
            }
        };
        if vf != own {
            match self.send_to_process(vf, &transmit) {
                Ok(()) => {
                    if let Some(conn) = transmit.conn {
                        self.cm.cm.set_via(conn, vf);
                    }
                    return true;
                }
                Err(PushError::Full) => {
                    self.cm.keep_unsent(transmit);
                    return false;
                }
                // The process is gone. We refuse a request in its place, and answer nothing else.
                Err(_) if matches!(transmit.route, CmRoute::Service(..)) => {
                    if let Some(conn) = transmit.conn {
                        self.cm.cm.forget_via(conn);
                    }
                }
                Err(_) => return true,
            }
        }
        // An answer to one of our own, or a request for a listener of ours. A request that is
        // refused because there is none was never sent.
        if !self.common.is_plain() && matches!(target, Target::Vf(_)) {
            let (av, headers) = (self.gsi_av(&transmit), gsi_headers(self.cm.next_psn()));
            self.common.record_mad(&av, &headers, &transmit.mad[..]);
        }
        transmit.peer.via = Some(own);
        let from = ::cm::Peer { local: peer.remote, remote: peer.local, via: Some(own) };
        if self.common.waiting.gsi.len() < MAX_ARRIVED {
            self.common.waiting.gsi.push_back(Arrived { from, mad: transmit.mad, whole: None });
        }
        true
    }

    fn send_to_process(&mut self, vf: u16, transmit: &Transmit) -> Result<(), PushError<()>> {
        let av = self.gsi_av(transmit);
        let headers = gsi_headers(self.cm.next_psn());
        let grh = self.common.grh(&av, &headers, LEN as u32);
        let record = Record {
            headers: &headers,
            length: LEN as u32,
            skipped: Default::default(),
            grh: Some(&grh),
            source: Qpn::GSI,
        };
        let pushed = self
            .common
            .out
            .shm
            .push(vf, &record, |room| room.copy_from(&transmit.mad[..]).map_err(|_| ()));
        if pushed.is_ok() && !self.common.is_plain() {
            self.common.record_mad(&av, &headers, &transmit.mad[..]);
        }
        pushed.map(|_| ())
    }

    fn send_to_wire(&mut self, transmit: Transmit) -> bool {
        let av = self.gsi_av(&transmit);
        let headers = gsi_headers(self.cm.next_psn());
        for _ in 0..2 {
            let fill = |room: &mut [u8]| {
                room.copy_from_slice(&transmit.mad[..]);
                Ok(())
            };
            let pushed =
                self.common.out.udp.push(transmit.peer.local, &av, &headers, LEN as u32, fill);
            if pushed.is_ok() {
                return true;
            }
            self.flush_udp();
        }
        self.cm.keep_unsent(transmit);
        false
    }

    fn gsi_av(&self, transmit: &Transmit) -> Av {
        let index = self.common.nic.port.gids.iter().position(|gid| *gid == transmit.peer.local);
        Av {
            dgid: transmit.peer.remote,
            sgid_index: index.unwrap_or(0) as u8,
            hop_limit: 64,
            port_num: 1,
            is_global: true,
            ..Av::default()
        }
    }
}

fn gsi_headers(psn: iba::Psn) -> Headers {
    let opcode = Opcode::new(Service::Ud, Operation::Send, Position::Only);
    let mut headers = Headers::new(opcode.expect("datagrams are sent"), Qpn::GSI, psn);
    headers.set_deth(Deth { qkey: GSI_QKEY, src_qp: Qpn::GSI });
    headers
}

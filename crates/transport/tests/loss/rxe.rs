//! A model of the Linux kernel's `rdma_rxe`: its rules for what is sent when, without its memory,
//! its keys and its time.
//!
//! The names are the kernel's (`drivers/infiniband/sw/rxe`): `comp_psn` is `qp->comp.psn`, the
//! first sequence number that is not acknowledged, and `req_psn` is `qp->req.psn`, the next to be
//! sent. All messages are of one length, so that a message follows from a sequence number; the
//! numbers do not wrap. The model has:
//!
//! * a window of 128 sequence numbers whatever is lost, with a READ counted when it is requested;
//! * an acknowledgement for the last packet of a message, and after 64 packets without one;
//! * go-back-N, with one NAK for a gap until the missing packet comes (`sent_psn_nak`), and one
//!   retry until something is acknowledged (`started_retry`); a gap in the responses to a READ is
//!   noticed when those to the next READ come;
//! * a timer that each response restarts.
//!
//! It lacks what only slows `rdma_rxe` down: processing takes no time, the timer is exact instead
//! of in ticks of the kernel's clock, and the 64 packets that a QP may have in queues of its own
//! host (`RXE_INFLIGHT_SKBS_PER_QP_HIGH`) do not bind.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;

use fabric_sim::{Line, Link, Rng};
use iba::Time;

/// `RXE_MAX_UNACKED_PSNS`.
const MAX_UNACKED_PSNS: u64 = 128;
/// `RXE_MAX_PKT_PER_ACK`.
const MAX_PKT_PER_ACK: u64 = 64;

/// What a QP must do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// READ, or WRITE.
    pub(crate) is_read: bool,
    pub(crate) messages: u64,
    /// Packets of each message, and the bytes of each packet.
    pub(crate) packets: u64,
    pub(crate) mtu: usize,
    /// Work requests in flight, and how many of them may be READs that the peer is working on.
    pub(crate) depth: u64,
    pub(crate) rd_atomic: u64,
    /// The local ACK timeout.
    pub(crate) timeout: Duration,
}

/// When all of it is done.
pub(crate) fn run(load: Load, link: Link, seed: u64) -> Time {
    let mut net = Net {
        now: Time::ZERO,
        link,
        rng: Rng::new(seed),
        burst: 0,
        lines: [Line::default(); 2],
        sent: 0,
        flying: BinaryHeap::new(),
        mtu: load.mtu,
    };
    let (mut requester, mut responder) = (Requester::new(load), Responder::default());
    requester.transmit(&mut net);
    while requester.done < load.messages {
        let arrival = net.flying.peek().map(|Reverse(next)| next.arrival);
        let next = arrival.into_iter().chain(requester.timer).min();
        net.now = next.expect("what is not acknowledged has a timer");
        if arrival != next {
            requester.time_out(&mut net);
        } else if let Some(Reverse(flying)) = net.flying.pop() {
            match flying.to {
                End::Requester => requester.receive(&mut net, flying.packet),
                End::Responder => responder.receive(&mut net, flying.packet),
            }
        }
    }
    net.now
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Requester,
    Responder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Packet {
    /// A part of a WRITE, and whether it asks for an acknowledgement.
    Write {
        psn: u64,
        ack_req: bool,
    },
    /// A READ of what responses up to, and without, `end` carry.
    ReadRequest {
        psn: u64,
        end: u64,
    },
    ReadResponse {
        psn: u64,
    },
    Ack {
        psn: u64,
    },
    /// `AETH_NAK_PSN_SEQ_ERROR`.
    Nak {
        psn: u64,
    },
}

/// Ordered by arrival, then by departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    arrival: Time,
    number: u64,
    to: End,
    packet: Packet,
}

/// The clock, and a line each way.
struct Net {
    now: Time,
    link: Link,
    rng: Rng,
    burst: u32,
    lines: [Line; 2],
    sent: u64,
    flying: BinaryHeap<Reverse<Flying>>,
    mtu: usize,
}

impl Net {
    fn send(&mut self, to: End, packet: Packet) {
        let carries = matches!(packet, Packet::Write { .. } | Packet::ReadResponse { .. });
        let payload = if carries { self.mtu } else { 0 };
        let mut left = self.now;
        if let Some(rate) = self.link.rate {
            let Some(time) = self.lines[to as usize].take(rate, self.now, payload) else { return };
            left = time;
        }
        for delay in self.link.carry(&mut self.rng, &mut self.burst) {
            self.sent += 1;
            let flying = Flying { arrival: left + delay, number: self.sent, to, packet };
            self.flying.push(Reverse(flying));
        }
    }
}

/// `rxe_req.c` and `rxe_comp.c`.
struct Requester {
    load: Load,
    /// Messages that completed: the next one is the head of the send queue.
    done: u64,
    req_psn: u64,
    comp_psn: u64,
    /// Packets since the last one that requested an acknowledgement.
    noack_pkts: u64,
    started_retry: bool,
    timer: Option<Time>,
}

impl Requester {
    fn new(load: Load) -> Self {
        Self {
            load,
            done: 0,
            req_psn: 0,
            comp_psn: 0,
            noack_pkts: 0,
            started_retry: false,
            timer: None,
        }
    }

    /// `rxe_requester`: sends what the window has room for.
    fn transmit(&mut self, net: &mut Net) {
        let Load { packets, messages, depth, rd_atomic, is_read, .. } = self.load;
        let under_way = if is_read { depth.min(rd_atomic) } else { depth };
        let end = messages.min(self.done + under_way) * packets;
        while self.req_psn < end && self.req_psn <= self.comp_psn + MAX_UNACKED_PSNS {
            let (psn, message_end) = (self.req_psn, (self.req_psn / packets + 1) * packets);
            if is_read {
                self.req_psn = message_end;
                net.send(End::Responder, Packet::ReadRequest { psn, end: message_end });
            } else {
                self.req_psn += 1;
                let ack_req = self.req_psn == message_end || self.noack_pkts > MAX_PKT_PER_ACK;
                self.noack_pkts = if ack_req { 0 } else { self.noack_pkts + 1 };
                net.send(End::Responder, Packet::Write { psn, ack_req });
            }
            self.timer.get_or_insert(net.now + self.load.timeout);
        }
    }

    /// `retransmit_timer`.
    fn time_out(&mut self, net: &mut Net) {
        self.timer = None;
        self.retry();
        self.finish(net);
    }

    /// `rxe_completer`.
    fn receive(&mut self, net: &mut Net, packet: Packet) {
        match packet {
            Packet::Ack { psn } | Packet::ReadResponse { psn } | Packet::Nak { psn } => {
                self.complete(packet, psn);
                self.finish(net);
            }
            Packet::Write { .. } | Packet::ReadRequest { .. } => unreachable!("a request"),
        }
    }

    /// Lets the requester continue, and restarts the timer if something is still unacknowledged.
    fn finish(&mut self, net: &mut Net) {
        self.transmit(net);
        if self.req_psn > self.comp_psn {
            self.timer = Some(net.now + self.load.timeout);
        }
    }

    fn complete(&mut self, packet: Packet, psn: u64) {
        let Load { packets, is_read, .. } = self.load;
        // An acknowledgement past the oldest message completes it; for a READ it shows that
        // responses are missing.
        while self.is_begun() && psn >= self.head_end() {
            if self.req_psn < self.head_end() {
                return;
            }
            if is_read {
                return self.retry_once();
            }
            self.comp_psn = self.comp_psn.max(self.head_end());
            self.done += 1;
            self.started_retry = false;
        }
        if !self.is_begun() {
            return;
        }
        let is_last = psn + 1 == self.head_end();
        if psn < self.comp_psn {
            // A repeated acknowledgement.
            self.done += u64::from(is_last);
            return;
        }
        if is_read && psn > self.comp_psn {
            return;
        }
        if matches!(packet, Packet::Nak { .. }) {
            self.comp_psn = psn;
            return self.retry_once();
        }
        self.started_retry = false;
        self.comp_psn = psn + 1;
        let is_pending = self.req_psn >= (self.done + 1) * packets;
        self.done += u64::from(is_last && is_pending);
    }

    /// The sequence number after the oldest message's last.
    fn head_end(&self) -> u64 {
        (self.done + 1) * self.load.packets
    }

    /// Whether a part of the oldest message was sent.
    fn is_begun(&self) -> bool {
        self.req_psn > self.done * self.load.packets
    }

    /// A NAK, or a gap in responses: one retry, until something is acknowledged.
    fn retry_once(&mut self) {
        if !self.started_retry {
            self.retry();
        }
    }

    /// `req_retry`.
    fn retry(&mut self) {
        if self.is_begun() && self.req_psn > self.comp_psn {
            self.req_psn = self.comp_psn;
            self.started_retry = true;
        }
    }
}

/// `rxe_resp.c`.
#[derive(Default)]
struct Responder {
    /// The sequence number that comes next.
    psn: u64,
    sent_psn_nak: bool,
}

impl Responder {
    fn receive(&mut self, net: &mut Net, packet: Packet) {
        let (Packet::Write { psn, .. } | Packet::ReadRequest { psn, .. }) = packet else {
            unreachable!("a response")
        };
        if psn > self.psn {
            if !core::mem::replace(&mut self.sent_psn_nak, true) {
                net.send(End::Requester, Packet::Nak { psn: self.psn });
            }
            return;
        }
        let is_duplicate = psn < self.psn;
        self.sent_psn_nak &= is_duplicate;
        match packet {
            Packet::ReadRequest { end, .. } => {
                self.psn = self.psn.max(end);
                (psn..end).for_each(|psn| net.send(End::Requester, Packet::ReadResponse { psn }));
            }
            Packet::Write { .. } if is_duplicate => {
                net.send(End::Requester, Packet::Ack { psn: self.psn - 1 });
            }
            Packet::Write { ack_req, .. } => {
                self.psn += 1;
                if ack_req {
                    net.send(End::Requester, Packet::Ack { psn });
                }
            }
            _ => {}
        }
    }
}

//! One QP, and a test that plays its peer.

use iba::{AttrMask, QpAttr, QpEvent, QpState, WcStatus};
use transport::env::Skipped;
use transport::{Completion, Early, Poll, Qp, RecvWr, Rx, SendWr, Side, Time};
use wire::Headers;

use crate::host::Host;
use crate::options::{Options, PEER, QPN, RQ_PSN};

/// One QP and its host. The test plays the peer and moves the clock.
#[derive(Debug)]
#[non_exhaustive]
pub struct Station {
    /// The QP.
    pub qp: Qp,
    /// What surrounds it.
    pub host: Host,
    /// The time, which only grows.
    pub now: Time,
    /// Sequence numbers that the peer skipped before its next packet.
    pub skipped: Skipped,
    /// The GRH of arriving datagrams.
    pub grh: Option<[u8; 40]>,
    /// A switch marks the peer's next packet.
    pub marked: bool,
    /// Whether an acknowledgement waits for a request to travel with ([`Qp::delay_ack`]), if the
    /// QP's policy allows that.
    pub acks_stay: bool,
    /// Packets that overtook a lost one, if a test lets the host keep them.
    pub early: Option<Early<Vec<u8>>>,
}

impl Station {
    /// A QP in RTS.
    #[track_caller]
    pub fn new(options: &Options) -> Self {
        Self::in_state(options, QpState::Rts)
    }

    /// A QP in `state`.
    #[track_caller]
    pub fn in_state(options: &Options, state: QpState) -> Self {
        let (mut qp, mut host) = (options.qp(QPN), options.host());
        if state != QpState::Reset {
            options.bring_to(&mut qp, &mut host, state, PEER, options.sq_psn, RQ_PSN);
        }
        Self {
            qp,
            host,
            now: Time::ZERO,
            skipped: Skipped::default(),
            grh: None,
            marked: false,
            acks_stay: false,
            early: None,
        }
    }

    /// Posts a send that must be accepted.
    #[track_caller]
    pub fn post(&mut self, wr: SendWr) {
        self.qp.post_send(wr).expect("the send queue takes it");
    }

    /// Posts a receive that must be accepted.
    #[track_caller]
    pub fn post_recv(&mut self, wr: RecvWr) {
        self.qp.post_recv(wr).expect("the receive queue takes it");
    }

    /// Moves the QP to another state, which must be possible.
    #[track_caller]
    pub fn to_state(&mut self, state: QpState) {
        let attr = QpAttr { state, ..QpAttr::default() };
        self.qp.modify(&mut self.host, &attr, AttrMask::STATE).expect("the transition is legal");
    }

    /// Moves the clock to `micros` and does what is due by then.
    #[track_caller]
    pub fn at(&mut self, micros: u64) {
        let to = Time::from_micros(micros);
        assert!(to >= self.now, "time runs backwards");
        self.poll();
        while let Some(due) = self.qp.poll_timeout().filter(|due| *due <= to) {
            self.now = self.now.max(due);
            self.qp.handle_timeout(&mut self.host, self.now);
            self.poll();
            take_turns(&mut self.early, &mut self.qp, &mut self.host, self.now);
            self.poll();
        }
        self.now = to;
        self.poll();
    }

    /// Lets the QP send what it can.
    pub fn poll(&mut self) {
        if !self.acks_stay {
            self.qp.release_ack();
        }
        while self.qp.poll_transmit(&mut self.host, self.now, 1) == Poll::More {}
    }

    /// The peer sends a packet.
    #[track_caller]
    pub fn send(&mut self, micros: u64, headers: Headers, payload: &[u8]) {
        self.send_joined(micros, headers, payload, 1);
    }

    /// The peer sends packets, the first of which has these headers, and the device gives them to
    /// the QP as one.
    #[track_caller]
    pub fn send_joined(&mut self, micros: u64, mut headers: Headers, payload: &[u8], packets: u32) {
        self.at(micros);
        headers.bth.dest_qp = QPN;
        headers.bth.pad = wire::bth::pad_for(payload.len());
        let payload = payload.to_vec();
        if let Some(early) =
            self.early.as_mut().filter(|_| self.qp.is_early(&headers, payload.len() as u32))
        {
            early.keep(&mut self.qp, headers, payload.len() as u32, payload.clone());
        }
        let rx = Rx {
            headers: &headers,
            payload: &payload,
            length: payload.len() as u32,
            skipped: core::mem::take(&mut self.skipped),
            grh: self.grh.as_ref(),
            packets,
            marked: core::mem::take(&mut self.marked),
        };
        self.qp.handle_packet(&mut self.host, self.now, &rx);
        take_turns(&mut self.early, &mut self.qp, &mut self.host, self.now);
        if self.acks_stay {
            self.qp.delay_ack(self.now);
        }
    }

    /// The QP must send exactly this packet next.
    #[track_caller]
    pub fn recv(&mut self, micros: u64, mut headers: Headers, payload: &[u8]) {
        self.at(micros);
        if headers.bth.dest_qp == iba::Qpn::default() {
            headers.bth.dest_qp = PEER;
        }
        headers.bth.pad = wire::bth::pad_for(payload.len());
        let Some(sent) = self.host.out.pop_front() else {
            panic!("at {micros} us: expected\n  {}\nbut nothing was sent", line(&headers, payload));
        };
        assert!(
            sent.headers == headers && sent.payload == payload,
            "at {micros} us: expected\n  {}\nbut it sent\n  {}",
            line(&headers, payload),
            line(&sent.headers, &sent.payload),
        );
    }

    /// The QP must send nothing more.
    #[track_caller]
    pub fn recv_nothing(&mut self, micros: u64) {
        self.at(micros);
        if let Some(sent) = self.host.out.pop_front() {
            panic!("at {micros} us: unexpected\n  {}", line(&sent.headers, &sent.payload));
        }
    }

    /// The next completion must be this send's.
    #[track_caller]
    pub fn sent(&mut self, wr_id: u64, status: WcStatus) -> Completion {
        self.completed(Side::Send, wr_id, status)
    }

    /// The next completion must be this receive's.
    #[track_caller]
    pub fn received(&mut self, wr_id: u64, status: WcStatus) -> Completion {
        self.completed(Side::Recv, wr_id, status)
    }

    /// Nothing more may have completed.
    #[track_caller]
    pub fn completed_nothing(&self) {
        assert!(self.host.completions.is_empty(), "unexpected {:?}", self.host.completions);
    }

    /// Takes the events so far.
    pub fn events(&mut self) -> Vec<QpEvent> {
        core::mem::take(&mut self.host.events)
    }

    #[track_caller]
    fn completed(&mut self, side: Side, wr_id: u64, status: WcStatus) -> Completion {
        assert!(!self.host.completions.is_empty(), "{side:?} {wr_id} did not complete");
        let next = self.host.completions.remove(0);
        assert_eq!((next.side, next.wr_id, next.status), (side, wr_id, status), "{next:?}");
        next
    }

    /// Writes to the memory of the host.
    #[track_caller]
    pub fn poke(&mut self, addr: u64, bytes: &[u8]) {
        self.host.memory.borrow_mut().bytes_mut(addr, bytes.len()).copy_from_slice(bytes);
    }

    /// Reads the memory of the host.
    #[track_caller]
    pub fn peek(&self, addr: u64, length: usize) -> Vec<u8> {
        self.host.memory.borrow_mut().bytes_mut(addr, length).to_vec()
    }
}

/// Gives a QP what was kept for it, as far as the turn of that has come.
pub(crate) fn take_turns(
    early: &mut Option<Early<Vec<u8>>>,
    qp: &mut Qp,
    host: &mut Host,
    now: Time,
) {
    let Some(early) = early else { return };
    while let Some(packet) = early.next(qp) {
        qp.handle_packet(host, now, &packet.rx(&packet.payload));
        early.put_back(qp, packet);
    }
}

/// A packet in one line, with the first bytes of its payload.
pub fn line(headers: &Headers, payload: &[u8]) -> String {
    let shown = &payload[..payload.len().min(16)];
    format!("{headers} + {} bytes {shown:02x?}", payload.len())
}

/// The peer sends a packet: `send!(station, 10, headers)` or
/// `send!(station, 10, headers, payload)`.
#[macro_export]
macro_rules! send {
    ($station:ident, $micros:expr, $headers:expr) => {
        $station.send($micros, $headers, &[])
    };
    ($station:ident, $micros:expr, $headers:expr, $payload:expr) => {
        $station.send($micros, $headers, $payload)
    };
}

/// The QP must send exactly this packet next: `recv!(station, 10, headers, payload)`.
#[macro_export]
macro_rules! recv {
    ($station:ident, $micros:expr, $headers:expr) => {
        $station.recv($micros, $headers, &[])
    };
    ($station:ident, $micros:expr, $headers:expr, $payload:expr) => {
        $station.recv($micros, $headers, $payload)
    };
}

/// The QP must send nothing more by then: `recv_nothing!(station, 10)`.
#[macro_export]
macro_rules! recv_nothing {
    ($station:ident, $micros:expr) => {
        $station.recv_nothing($micros)
    };
}

//! The test rig.

use std::net::IpAddr;
use std::time::Duration;

use cm::{
    Cm, Ece, Event, ListenAddr, Local, PathParam, Patience, Peer, PortSpace, RepParam, ReqParam,
    Route, Transmit,
};
use iba::{Gid, Guid, Mtu, PKey, Psn, QpType, Qpn, Time};
use wire::cm::{CmaHeader, CommId, Mad, Message};

pub(crate) const PORT: u16 = 7174;
pub(crate) const ADDRESSES: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];

/// A random number generator, good enough for a network.
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.roll() % 100 < percent
    }
}

/// What the network does, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    pub(crate) copies: u64,
    pub(crate) late: u64,
}

/// Two hosts.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) sides: [Cm; 2],
    pub(crate) now: Time,
    pub(crate) dice: Dice,
    pub(crate) faults: Faults,
    /// Messages in flight: arrival, receiver, sender, bytes.
    wire: Vec<(Time, usize, Peer, Box<[u8; 256]>)>,
    /// The messages sent, as `0 REQ`, for transcripts.
    pub(crate) log: Vec<String>,
    pub(crate) events: [Vec<Event>; 2],
}

pub(crate) fn local(side: usize) -> Local {
    Local {
        ca_guid: Guid(0x1000 + side as u64),
        ack_delay: 15,
        pkey: PKey::DEFAULT,
        prefix: (side as u32 + 1) << 22,
        index_bits: 22,
        start: 0x77 * (side as u32 + 1),
    }
}

pub(crate) fn ip(side: usize) -> IpAddr {
    ADDRESSES[side].into()
}

/// The path from one side to the other.
pub(crate) fn peer(side: usize) -> Peer {
    Peer { local: Gid::from(ip(side)), remote: Gid::from(ip(1 - side)), via: None }
}

pub(crate) fn req() -> ReqParam {
    let header = CmaHeader { port: 40000, src: ip(0), dst: ip(1) };
    let mut private_data = header.to_bytes().to_vec();
    private_data.extend(b"hello");
    ReqParam {
        peer: peer(0),
        service_id: PortSpace::Tcp.service_id(PORT),
        qp_type: QpType::Rc,
        qpn: Qpn::new(0x111),
        starting_psn: Psn::new(0xaaa),
        path: PathParam {
            mtu: Mtu::Mtu1024,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            packet_life_time: 16,
        },
        patience: Patience { response_timeout: 20, max_retries: 15 },
        responder_resources: 3,
        initiator_depth: 2,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: false,
        ece: Ece::default(),
        private_data,
    }
}

pub(crate) fn rep() -> RepParam {
    RepParam {
        qpn: Qpn::new(0x222),
        starting_psn: Psn::new(0xbbb),
        responder_resources: 2,
        initiator_depth: 3,
        rnr_retry_count: 5,
        private_data: b"welcome".to_vec(),
        ..RepParam::default()
    }
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self {
            sides: [Cm::new(local(0)), Cm::new(local(1))],
            now: Time::from_micros(1),
            dice: Dice(1),
            faults: Faults::default(),
            wire: Vec::new(),
            log: Vec::new(),
            events: Default::default(),
        }
    }

    pub(crate) fn with_listener(mut self) -> Self {
        let service = PortSpace::Tcp.service_id(PORT);
        self.sides[1].listen(service, u64::MAX, ListenAddr::Any, 128).expect("nobody listens yet");
        self
    }

    /// Takes the messages of both sides and sends them.
    pub(crate) fn collect(&mut self) {
        for side in 0..2 {
            while let Some(event) = self.sides[side].poll_event() {
                self.events[side].push(event);
            }
            while let Some(transmit) = self.sides[side].poll_transmit() {
                self.send(side, transmit);
            }
        }
    }

    fn send(&mut self, side: usize, transmit: Transmit) {
        let Transmit { peer, route, mad, .. } = transmit;
        assert_eq!(peer.remote, Gid::from(ip(1 - side)));
        let message = Mad::parse(&mad[..]).expect("what we send can be read").message;
        match (&message, route) {
            (Message::Req(_) | Message::SidrReq(_), Route::Service(_, dst)) => {
                assert_eq!(dst, Some(ip(1)), "the service's address is told");
            }
            (_, Route::Comm(id)) => {
                assert_eq!(id >> 22, 2 - side as u32, "{message:?} goes to the other side");
            }
            (Message::Rej(rej), Route::Unknown) => assert_eq!(rej.remote_comm_id, 0),
            other => panic!("{other:?} has no path"),
        }
        self.log.push(format!("{side} {}", message.name()));
        if self.dice.percent(self.faults.loss) {
            return;
        }
        let copies = 1 + usize::from(self.dice.percent(self.faults.copies));
        for _ in 0..copies {
            let mut at = self.now + Duration::from_micros(10);
            if self.dice.percent(self.faults.late) {
                at = at + Duration::from_micros(self.dice.roll() % 6_000_000);
            }
            let from = Peer { local: peer.remote, remote: peer.local, via: None };
            self.wire.push((at, 1 - side, from, mad.clone()));
        }
    }

    /// Delivers what arrives until `until`, in order of arrival, and fires timers. Stops at an
    /// event.
    pub(crate) fn step(&mut self, until: Time) -> bool {
        self.collect();
        let arrival = self.wire.iter().map(|(at, ..)| *at).min();
        let timer = self.sides.iter().filter_map(Cm::poll_timeout).min();
        let Some(next) = arrival.into_iter().chain(timer).min().filter(|at| *at <= until) else {
            self.now = self.now.max(until);
            return false;
        };
        self.now = self.now.max(next);
        while let Some(index) = self.wire.iter().position(|(at, ..)| *at <= self.now) {
            let (_, side, from, mad) = self.wire.remove(index);
            // Duplicates and late messages are ignored; the tests check the outcome.
            let _ = self.sides[side].handle(self.now, from, &mad[..]);
            self.collect();
        }
        for side in &mut self.sides {
            side.handle_timeout(self.now);
        }
        self.collect();
        true
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
    }

    /// Runs for a moment: long enough for messages, too short for timers.
    pub(crate) fn settle(&mut self) {
        self.run(Duration::from_millis(1));
    }

    /// Takes the events of a side.
    pub(crate) fn take(&mut self, side: usize) -> Vec<Event> {
        self.collect();
        std::mem::take(&mut self.events[side])
    }

    /// Takes the one event of a side.
    #[track_caller]
    pub(crate) fn one(&mut self, side: usize) -> Event {
        let mut events = self.take(side);
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    /// Takes the messages sent so far.
    pub(crate) fn said(&mut self) -> String {
        self.collect();
        std::mem::take(&mut self.log).join(", ")
    }

    /// An established connection: its ids at both sides.
    pub(crate) fn connected(&mut self) -> (CommId, CommId) {
        let active = self.sides[0].connect(self.now, &req()).expect("good parameters");
        self.settle();
        let Event::Req { conn: passive, .. } = self.one(1) else { panic!("a REQ") };
        self.sides[1].accept(self.now, passive, &rep()).expect("a REQ came");
        self.settle();
        assert!(matches!(self.one(0), Event::Rep { .. }));
        self.sides[0].ready(active, b"go").expect("a REP came");
        self.settle();
        assert!(matches!(self.one(1), Event::Rtu { rtu: Some(_), .. }));
        assert_eq!(self.said(), "0 REQ, 1 REP, 0 RTU");
        (active, passive)
    }
}

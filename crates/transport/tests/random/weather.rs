//! What the network does to a run, and who interferes with it.

use core::time::Duration;

use fabric_sim::build::{self, Build};
use fabric_sim::link::{Link, Rate, Rng};
use fabric_sim::net::Node;
use fabric_sim::options::BASE;
use fabric_sim::{Net, Options};
use iba::{AttrMask, Mtu, QpAttr, QpState, RnrTimer};
use wire::{NakCode, Opcode, Syndrome};

use crate::COUNTER;

/// What happens to a run besides the faults of its [`Link`].
#[derive(Debug)]
pub(crate) struct Weather {
    /// Ends fall silent, and are heard again later or never.
    partitions_happen: bool,
    /// Ports move to other addresses, and their senders learn of it later or never.
    ports_move: bool,
    /// An attacker that guesses sequence numbers sends answers and requests.
    pub(crate) is_forged: bool,
    /// How often an end fell silent.
    pub(crate) partitions: u64,
    /// How often a port moved.
    pub(crate) moves: u64,
    /// How many packets were forged.
    pub(crate) forged: u64,
}

/// Further away than any number that is in flight in a run, or can be while a packet travels.
pub(crate) const FAR: u32 = 4_000;

impl Weather {
    /// No trouble.
    pub(crate) const FINE: Self = Self {
        partitions_happen: false,
        ports_move: false,
        is_forged: false,
        partitions: 0,
        moves: 0,
        forged: 0,
    };

    /// Whether more than single packets was lost.
    pub(crate) fn was_cut(&self) -> bool {
        self.partitions + self.moves > 0
    }

    /// An end falls silent, or is heard again; or its port moves, or that becomes known.
    pub(crate) fn change(&mut self, rng: &mut Rng, net: &mut Net) {
        if self.ports_move && rng.chance(500) {
            self.move_port(rng, net);
        }
        if !self.partitions_happen {
            return;
        }
        if net.mute.pop().is_none() {
            net.mute.push(rng.below(2) as usize);
            self.partitions += 1;
        }
    }

    fn move_port(&mut self, rng: &mut Rng, net: &mut Net) {
        if !tell_addresses(net) {
            self.moves += 1;
            net.readdress(rng.below(2) as usize, 1 + self.moves as u32);
        }
    }

    /// The end of a run: most silent ends are heard again, and most ends learn where a moved peer
    /// is.
    pub(crate) fn settle(&self, rng: &mut Rng, net: &mut Net) {
        if rng.chance(700) {
            net.mute.clear();
        }
        if rng.chance(700) {
            tell_addresses(net);
        }
    }

    /// A packet from an attacker that cannot see the connection: its number is not in flight.
    pub(crate) fn forge(&mut self, rng: &mut Rng, net: &mut Net, to: usize) {
        if !self.is_forged {
            return;
        }
        self.forged += 1;
        let now = net.nodes[to].qp.query();
        let away = FAR + rng.below(1 << 22) as u32;
        // An answer to a request that was never sent, or was answered long ago; a request that was
        // carried out long ago.
        let answered = if rng.chance(500) { now.sq_psn.add(away) } else { now.sq_psn.sub(away) };
        let asked = now.rq_psn.sub(away);
        let (headers, payload) = match rng.below(8) {
            0 => (build::ack(answered, 0xff_ffff), 0),
            1 => (build::nak(answered, 0, Syndrome::Nak(NakCode::PsnSequence)), 0),
            2 => (build::nak(answered, 0, Syndrome::Nak(NakCode::RemoteAccess)), 0),
            3 => (build::nak(answered, 0, rnr(rng)), 0),
            4 => (
                build::packet(Opcode::RcReadResponseOnly, answered).with_aeth(Syndrome::ACK, 0),
                64,
            ),
            5 => (build::packet(Opcode::RcWriteOnly, asked).with_reth(BASE, 64), 64),
            6 => (build::packet(Opcode::RcFetchAdd, asked).atomic(COUNTER, 1, 0), 0),
            _ => (build::packet(Opcode::RcSendOnly, asked).ackreq(), 64),
        };
        net.forge(to, headers, vec![0xee; payload]);
    }
}

/// Tells each end where the other one is now. False if both knew.
fn tell_addresses(net: &mut Net) -> bool {
    let mut is_news = false;
    for node in 0..2 {
        let address = net.nodes[1 - node].address;
        if core::mem::replace(&mut net.nodes[node].peer_address, address) != address {
            learn_address(&mut net.nodes[node]);
            is_news = true;
        }
    }
    is_news
}

/// A connection can learn an address only in SQD (IBA 11.2.5.3), and one that has ended never.
fn learn_address(node: &mut Node) {
    let Node { qp, host, .. } = node;
    let before = qp.state();
    if !qp.qp_type().is_connected() || !matches!(before, QpState::Rts | QpState::Sqd) {
        return;
    }
    let state = |state| QpAttr { state, ..QpAttr::default() };
    if before == QpState::Rts {
        qp.modify(host, &state(QpState::Sqd), AttrMask::STATE).expect("RTS leads to SQD");
    }
    let mask = AttrMask::STATE | AttrMask::AV;
    qp.modify(host, &state(QpState::Sqd), mask).expect("SQD takes an address");
    if before == QpState::Rts {
        qp.modify(host, &state(QpState::Rts), AttrMask::STATE).expect("SQD leads to RTS");
    }
}

/// A path MTU; those of most networks are more frequent, as they need less work for more packets.
pub(crate) fn mtu(rng: &mut Rng) -> Mtu {
    let frequent = if rng.chance(750) { 3 } else { Mtu::ALL.len() as u64 };
    Mtu::ALL[rng.below(frequent) as usize]
}

fn rnr(rng: &mut Rng) -> Syndrome {
    let timer = RnrTimer::from_code(rng.below(32) as u8).expect("a five-bit code");
    Syndrome::RnrNak { timer }
}

/// A wire, with the faults of this run.
pub(crate) fn roll(rng: &mut Rng, options: &mut Options) -> Weather {
    let mut some = |most: u64| if rng.chance(400) { 1 + rng.below(most) as u32 } else { 0 };
    let (loss, corrupt, duplicate, reorder) = (some(80), some(60), some(80), some(80));
    let (jitter, burst) = (Duration::from_nanos(some(5_000).into()), 1 + some(3));
    options.ecn = rng.chance(500);
    options.link = Link { loss, corrupt, duplicate, reorder, jitter, burst, ..Link::GOOD };
    if rng.chance(200) {
        // 1 to 10 Gbit/s, with a queue so short that it overflows.
        let bytes = (1 + rng.below(10)) * 125_000_000;
        options.link.rate = Some(Rate { bytes, queue: 8_192 << rng.below(4), mark: Some(4_096) });
        // 1 ms: longer than the longest queue.
        options.timeout = 8;
    }
    Weather {
        partitions_happen: rng.chance(250),
        ports_move: rng.chance(150),
        is_forged: rng.chance(400),
        ..Weather::FINE
    }
}

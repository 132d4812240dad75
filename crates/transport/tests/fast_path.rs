//! The fast path of small messages, compared with the full one: the same happens on two networks,
//! and one of them lets random packets take the fast path. Whatever the program does, after each
//! step all packets and both ends are equal.

use std::time::Duration;

use fabric_sim::Options;
use fabric_sim::build;
use fabric_sim::link::{Link, Rate, Rng};
use fabric_sim::net::Net;
use fabric_sim::options::BASE;
use iba::{AttrMask, Psn, QpAttr, QpEvent, QpState, SendFlags, WrOpcode};
use transport::{AckPolicy, Data, FastPacket, RateLimit, SendWr};

const SEEDS: u64 = 150;
const STEPS: u64 = 150;
/// Bytes of memory that each SEND and each receive has.
const ROOM: u64 = 1024;
const RECEIVES: u64 = BASE + 0x8000;

/// Acknowledgements wait for any program, and some of them until they are due.
static PATIENT: AckPolicy = AckPolicy {
    max_delay: Duration::from_micros(20),
    answers_to_trust: 0,
    shortest_timeout: Duration::ZERO,
};

/// One step of a program.
#[derive(Clone, Debug)]
enum Step {
    Post(usize, SendWr),
    Receive(usize, u64, u32),
    /// A SEND that finds a receive, and one in return as soon as it arrived.
    Exchange(usize, SendWr),
    /// Stops a send queue, or resumes it.
    Drain(usize),
    /// The carrier takes at most this many packets at once, if a number is given.
    Room(usize, Option<usize>),
    /// A send queue gets a rate limit in kilobits a second, or none.
    Pace(usize, u32),
    /// Time passes without a packet.
    Wait,
    Go(u64),
}

/// What follows a packet that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polls {
    /// Its QP sends what it has to send.
    AtOnce,
    /// The same, but an acknowledgement may wait for the next step.
    AcksStay,
    /// Nothing: everything is sent at the next step.
    Later,
}

fn step(rng: &mut Rng, number: u64) -> Step {
    let node = rng.below(2) as usize;
    let at = number % 16 * ROOM;
    match rng.below(30) {
        // Mostly requests that the fast path is for.
        0..6 => {
            let length = [0, 1, 8, 64, 255, 256, 257, 1000][rng.below(8) as usize];
            let mut wr = build::send(number, BASE + at, length);
            if rng.chance(300) {
                let bytes = (0..length.min(64)).map(|byte| byte as u8 ^ number as u8).collect();
                wr.data = Data::Inline(bytes);
            }
            for (flag, chance) in
                [(SendFlags::SIGNALED, 500), (SendFlags::SOLICITED, 200), (SendFlags::FENCE, 100)]
            {
                wr.flags.set(flag, rng.chance(chance));
            }
            Step::Post(node, wr)
        }
        6 => match rng.below(4) {
            0 => Step::Post(node, build::read(number, BASE + at, 300, RECEIVES)),
            1 => Step::Post(node, build::write(number, BASE + at, 8, RECEIVES)),
            2 => Step::Post(node, build::wr(number, WrOpcode::SendWithImm, BASE + at, 8)),
            _ => Step::Post(node, build::fetch_add(number, BASE + at, BASE + 0x7000, number)),
        },
        7..13 => {
            // Rarely too short for the message.
            let length = if rng.chance(10) { 4 } else { ROOM };
            Step::Receive(node, RECEIVES + at, length as u32)
        }
        13 => Step::Drain(node),
        14 => Step::Room(node, rng.chance(500).then(|| rng.below(3) as usize)),
        15 => Step::Wait,
        16 if rng.chance(300) => Step::Pace(node, [0, 0, 100_000][rng.below(3) as usize]),
        17..24 => Step::Exchange(node, build::send(number, BASE + at, 8)),
        _ => Step::Go(rng.below(6)),
    }
}

fn run(net: &mut Net, step: Step, number: u64) {
    match step {
        Step::Post(node, wr) => {
            // In the error state and without room it is refused, on both networks alike.
            let _ = net.try_post(node, wr);
        }
        Step::Receive(node, addr, length) => {
            let _ = net.nodes[node].qp.post_recv(build::recv(number, addr, length));
        }
        Step::Exchange(node, wr) => {
            for node in [node, 1 - node] {
                run(
                    net,
                    Step::Receive(1 - node, RECEIVES + number % 16 * ROOM, ROOM as u32),
                    number,
                );
                run(net, Step::Post(node, wr.clone()), number);
                net.poll();
                net.drive_bounded(1);
            }
        }
        Step::Drain(node) => {
            let node = &mut net.nodes[node];
            let state = match node.qp.state() {
                QpState::Rts => QpState::Sqd,
                QpState::Sqd => QpState::Rts,
                _ => return,
            };
            let attr = QpAttr { state, ..QpAttr::default() };
            node.qp.modify(&mut node.host, &attr, AttrMask::STATE).expect("a transition");
        }
        Step::Room(node, room) => net.nodes[node].host.room = room,
        Step::Pace(node, kbps) => {
            let limit = RateLimit { kbps, ..RateLimit::default() };
            // Not every state allows it.
            let _ = net.nodes[node].qp.modify_rate_limit(limit);
        }
        Step::Wait => net.now = net.now + Duration::from_micros(3),
        Step::Go(steps) => {
            net.drive_bounded(steps);
        }
    }
}

/// Everything that must be the same.
fn state(net: &Net) -> Vec<String> {
    let node = |index: usize| {
        let node = &net.nodes[index];
        let mut counters: Vec<_> = node
            .host
            .counters
            .iter()
            .map(|(counter, count)| format!("{counter:?} {count}"))
            .collect();
        counters.sort();
        let host = &node.host;
        format!("{:?} {:?} {:?} {counters:?}", node.qp, host.completions, host.events)
    };
    vec![node(0), node(1), format!("{:?} {} {:?}", net.now, net.carried, net.digest)]
}

/// Lets the same happen on two networks. Returns how many packets of one took the fast path, sent
/// when they were posted, received, and sent from the queue, and whether it ended in error.
fn compare(seed: u64, rng: &mut Rng, options: Options, polls: Polls) -> ([u64; 3], bool) {
    let mut nets = [Net::pair(options.clone()), Net::pair(options)];
    nets[1].fast = Some(Rng::new(seed + 1));
    for node in &mut nets[1].nodes {
        node.host.takes_fast = true;
    }
    for net in &mut nets {
        net.digest = Some(0);
        net.is_prompt = polls != Polls::Later;
        if polls == Polls::AcksStay {
            net.set_ack_policy(&PATIENT);
        }
        for node in 0..2 {
            let bytes: Vec<u8> = (0..0x4000).map(|at| (at * 7 + at / 256 + node) as u8).collect();
            net.write_memory(node, BASE, &bytes);
        }
    }
    for number in 0..STEPS {
        let step = step(rng, number);
        for net in &mut nets {
            run(net, step.clone(), number);
            net.poll();
        }
        let [slow, fast] = [0, 1].map(|net| state(&nets[net]));
        for node in 0..2 {
            let [slow, fast] = [0, 1].map(|net| nets[net].read_memory(node, BASE, 0xf000));
            assert!(slow == fast, "seed {seed}, step {number}: {step:?}: memory of end {node}");
        }
        for (slow, fast) in slow.iter().zip(&fast) {
            assert_eq!(slow, fast, "seed {seed}, step {number}: {step:?}");
        }
    }
    let [posted, received] = nets[1].fasts;
    let sent: u64 = nets[1].nodes.iter().map(|node| node.host.sent_fast).sum();
    (
        [posted, received, sent - posted],
        nets[1].nodes.iter().any(|node| node.qp.state() == QpState::Err),
    )
}

/// Varies what differs from run to run on any carrier.
fn vary(rng: &mut Rng, mut options: Options) -> Options {
    options.sq_sig_all = rng.chance(300);
    options.timeout = 4;
    options.sq_psn = if rng.chance(500) { Psn::new(0xff_fff8) } else { options.sq_psn };
    options.only_receives = rng.chance(100);
    options
}

fn compare_all(options: impl Fn(&mut Rng) -> (Options, Polls)) {
    let (mut fasts, mut failed) = ([0; 3], 0);
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed + 1);
        let (options, polls) = options(&mut rng);
        let (fast, is_failed) = compare(seed, &mut rng, options, polls);
        fasts = [0, 1, 2].map(|way| fasts[way] + fast[way]);
        failed += u64::from(is_failed);
    }
    println!("{fasts:?} packets took the fast path; {failed} runs ended in error");
    assert!(fasts.iter().all(|count| *count > SEEDS), "{fasts:?}");
    assert!((SEEDS / 50..SEEDS).contains(&failed), "{failed} runs ended in error");
}

#[test]
fn both_paths_do_the_same() {
    compare_all(|rng| {
        let mut options = Options::rc().over_memory(1024);
        options.direct = rng.chance(300);
        let mut options = vary(rng, options);
        // Short enough that each message asks for its acknowledgement, or not.
        options.timeout = if rng.chance(300) { 4 } else { 14 };
        (options, Polls::AtOnce)
    });
}

#[test]
fn both_paths_do_the_same_over_a_wire() {
    compare_all(|rng| {
        let mut options = vary(rng, Options::rc());
        options.seed = rng.next();
        if rng.chance(700) {
            options.link = Link {
                loss: rng.below(60) as u32,
                corrupt: rng.below(20) as u32,
                duplicate: rng.below(60) as u32,
                reorder: rng.below(60) as u32,
                ..Link::GOOD
            };
        }
        options.ecn = rng.chance(500);
        // Two waiting packets are a queue that gets marked.
        options.link.rate =
            rng.chance(300).then_some(Rate { bytes: 1_000_000_000, queue: 4000, mark: Some(100) });
        (options, [Polls::AtOnce, Polls::AcksStay, Polls::Later][rng.below(3) as usize])
    });
}

#[test]
fn a_packet_takes_the_fast_path_only_if_its_headers_say_nothing_else() {
    let fast = FastPacket::Send { psn: Psn::new(7), se: true, ackreq: true };
    let dest = iba::Qpn::new(5);
    let headers = fast.headers(dest, 3);
    assert_eq!(FastPacket::of(&headers, 3), Some(fast));
    assert_eq!(FastPacket::of(&headers, 4), None, "the padding of another length");
    let mut other = headers;
    other.bth.fecn = true;
    assert_eq!(FastPacket::of(&other, 3), None, "a mark");
    let ack = FastPacket::Ack { psn: Psn::new(7), msn: iba::Msn::new(3) };
    let mut headers = ack.headers(dest, 0);
    assert_eq!(FastPacket::of(&headers, 0), Some(ack));
    headers.set_aeth(wire::Aeth {
        syndrome: wire::Syndrome::Ack { credits: 3 },
        ..headers.aeth().expect("an ACK")
    });
    assert_eq!(FastPacket::of(&headers, 0), None, "credits, which nobody of ours counts");
}

#[test]
fn a_qp_that_only_receives_takes_the_fast_path_behind_its_first_packet() {
    let mut options = Options::rc().over_memory(1024);
    options.only_receives = true;
    let mut net = Net::pair(options);
    net.fast = Some(Rng::new(1));
    for number in 0..100 {
        net.nodes[1].qp.post_recv(build::recv(number, RECEIVES, ROOM as u32)).expect("room");
        net.post(0, build::send(number, BASE, 8));
        net.poll();
        net.drive_bounded(1);
    }
    assert_eq!(net.nodes[1].qp.state(), QpState::Rtr);
    assert_eq!(net.nodes[1].host.events, [QpEvent::CommEst], "the first packet is an event, once");
    assert_eq!(net.nodes[1].host.completions.len(), 100);
    // Every second packet is a candidate.
    assert!(net.fasts[1] > 40, "{:?}", net.fasts);
}

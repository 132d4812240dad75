//! How much of a line a reliable connection keeps when packets are lost, compared with a model of
//! the kernel's `rdma_rxe` ([`rxe`]), in virtual time: the assertions here do not depend on the
//! machine.
//!
//! `cargo test -p peerdma-transport --test loss -- --nocapture` prints the curves.

mod rxe;

use core::time::Duration;

use fabric_sim::options::{BASE, KEY};
use fabric_sim::{Link, Net, Options, Rate, build};
use iba::{AckTimeout, Mtu, Time, WcStatus, WrOpcode};

/// Bytes of a long message and of a short one, and of all messages of a run.
const LONG: u32 = 64 << 10;
const SHORT: u32 = 4 << 10;
const BYTES: u64 = 200 * LONG as u64;
/// Work requests in flight, as for a program that keeps its queue full.
const DEPTH: u64 = 16;
/// The code for 1 ms: several round trips, yet short enough to matter.
const TIMEOUT: u8 = 8;
/// Each figure is the mean over these networks, as a single loss shows in the smaller shares.
const SEEDS: core::ops::RangeInclusive<u64> = 1..=10;

/// A line, and what is lost on it in thousandths.
#[derive(Clone, Copy, Debug)]
struct Line {
    bits: u64,
    delay: Duration,
    loss: u32,
    burst: u32,
    opcode: WrOpcode,
    mtu: Mtu,
    /// Bytes of a message.
    message: u32,
}

impl Line {
    fn new(gigabits: u64, micros: u64) -> Self {
        let delay = Duration::from_micros(micros);
        let bits = gigabits * 1_000_000_000;
        let (opcode, mtu, message) = (WrOpcode::RdmaWrite, Mtu::Mtu1024, LONG);
        Self { bits, delay, loss: 0, burst: 1, opcode, mtu, message }
    }

    /// The share of the line that is left for payload, from 0 to 1.
    #[track_caller]
    fn ours(self) -> f64 {
        self.share(Self::end)
    }

    /// The same with the model of `rdma_rxe` at both ends.
    fn rxes(self) -> f64 {
        self.share(Self::rxes_end)
    }

    #[track_caller]
    fn share(self, end: fn(Self, u64) -> Time) -> f64 {
        let bits = (BYTES * 8) as f64;
        let share = |seed| bits * 1e9 / end(self, seed).as_nanos() as f64 / self.bits as f64;
        SEEDS.map(share).sum::<f64>() / SEEDS.count() as f64
    }

    fn messages(self) -> u64 {
        BYTES / u64::from(self.message)
    }

    fn link(self) -> Link {
        let rate = Rate { bytes: self.bits / 8, queue: 1 << 20, mark: None };
        let Self { loss, burst, delay, .. } = self;
        Link { loss, burst, delay, rate: Some(rate), ..Link::GOOD }
    }

    fn rxes_end(self, seed: u64) -> Time {
        let load = rxe::Load {
            is_read: self.opcode == WrOpcode::RdmaRead,
            messages: self.messages(),
            packets: u64::from(self.message / self.mtu.bytes()),
            mtu: self.mtu.bytes() as usize,
            depth: DEPTH,
            rd_atomic: Options::rc().rd_atomic.into(),
            timeout: AckTimeout::from_code(TIMEOUT).and_then(AckTimeout::duration).expect("finite"),
        };
        rxe::run(load, self.link(), seed)
    }

    #[track_caller]
    fn end(self, seed: u64) -> Time {
        let mut options = Options::rc();
        options.seed = seed;
        options.mtu = self.mtu;
        options.retry_cnt = 7;
        options.timeout = TIMEOUT;
        options.memory = 2 * self.message as usize;
        options.link = self.link();
        let mut net = Net::pair(options);
        let (mut posted, mut done) = (0, 0);
        while done < self.messages() {
            while posted < self.messages() && posted - done < DEPTH {
                let mut wr = build::wr(posted, self.opcode, BASE, self.message);
                wr.rkey = iba::RKey(KEY);
                wr.remote_addr = BASE + u64::from(self.message);
                net.post(0, wr);
                posted += 1;
            }
            net.drive_bounded(1);
            for completion in net.take_completions(0) {
                assert_eq!(completion.status, WcStatus::Success, "{self:?}, seed {seed}");
                done += 1;
            }
        }
        net.now
    }
}

const OPCODES: [WrOpcode; 2] = [WrOpcode::RdmaWrite, WrOpcode::RdmaRead];

fn lines(opcode: WrOpcode) -> [Line; 4] {
    [Line::new(10, 5), Line::new(10, 20), Line::new(25, 20), Line::new(100, 5)]
        .map(|line| Line { opcode, ..line })
}

#[test]
fn half_is_left_at_one_lost_packet_in_a_thousand() {
    println!("share of the line that is payload: ours, and that of a model of rdma_rxe");
    println!("   lost        10G 5us        10G 20us       25G 20us       100G 5us");
    for opcode in OPCODES {
        let good = lines(opcode).map(Line::ours);
        println!("{opcode:?}");
        for (loss, burst) in [(0, 1), (1, 1), (1, 8), (3, 1), (10, 1), (30, 1)] {
            let lines = lines(opcode).map(|line| Line { loss, burst, ..line });
            let ours = lines.map(Line::ours);
            let words: Vec<_> = lines
                .iter()
                .zip(ours)
                .map(|(line, ours)| format!("{ours:.3} {:.3}", line.rxes()))
                .collect();
            println!("{:5.1} % x{burst}   {}", f64::from(loss) / 10.0, words.join("    "));
            for ((line, ours), good) in lines.into_iter().zip(ours).zip(good) {
                match loss {
                    0 => assert!(ours > 0.7, "{line:?}: {ours} without a loss"),
                    1 => assert!(ours >= 0.5 * good, "{line:?}: {ours} of {good} at 0.1 %"),
                    _ => {}
                }
            }
        }
    }
}

/// The share of the lossless throughput that must be left when one packet in a hundred is lost, on
/// each of the [`lines`]: about 110 packets of 1,024 bytes are in flight on the last of them. Fewer
/// of the larger packets are in flight.
const READ_1024: [f64; 4] = [0.62, 0.65, 0.48, 0.33];
const READ_4096: [f64; 4] = [0.70, 0.80, 0.70, 0.62];
const WRITE_1024: [f64; 4] = [0.85, 0.60, 0.30, 0.25];
const WRITE_4096: [f64; 4] = [0.85, 0.80, 0.75, 0.65];

/// Whatever the path MTU and the length of the messages: at one lost packet in a thousand 0.8 is
/// left, and ten times as many losses take far less than nine tenths of that. A sender that waits
/// for the timer at each loss, or repeats what arrived, keeps less.
#[test]
fn no_line_collapses_at_one_lost_packet_in_a_hundred() {
    println!("share of what is left without losses: at 0.1 % and 1 %");
    println!("{:34}10G 5us        10G 20us       25G 20us       100G 5us", "");
    for opcode in OPCODES {
        let floors = match opcode {
            WrOpcode::RdmaWrite => [WRITE_1024, WRITE_4096],
            _ => [READ_1024, READ_4096],
        };
        for (mtu, floors) in [Mtu::Mtu1024, Mtu::Mtu4096].into_iter().zip(floors) {
            for message in [SHORT, LONG] {
                let lines = lines(opcode).map(|line| Line { mtu, message, ..line });
                let kept = lines.map(|line| {
                    let good = line.ours();
                    [1, 10].map(|loss| Line { loss, ..line }.ours() / good)
                });
                let words = kept.map(|[few, many]| format!("{few:.3} {many:.3}"));
                println!("{opcode:?} of {message:5}, MTU {}   {}", mtu.bytes(), words.join("    "));
                for ((line, [few, many]), floor) in lines.iter().zip(kept).zip(floors) {
                    assert!(few >= 0.8, "{line:?}: {few} at 0.1 %");
                    assert!(many >= floor, "{line:?}: {many} at 1 %, not {floor}");
                    assert!(many >= few / 5.0, "{line:?}: {few} at 0.1 % and {many} at 1 %");
                }
            }
        }
    }
}

#[test]
fn at_one_lost_packet_in_a_hundred_more_is_left_than_with_rxe() {
    for loss in [10, 30] {
        for (opcode, times) in OPCODES.into_iter().zip([2.5, 1.6]) {
            for line in lines(opcode).map(|line| Line { loss, ..line }) {
                let [ours, rxe] = [line.ours(), line.rxes()];
                assert!(ours > times * rxe, "{line:?}: {ours} beside {rxe}");
            }
        }
    }
}

/// Without losses the model is as fast as its window permits: nothing else limits it.
#[test]
fn the_model_of_rxe_fills_the_lines_that_its_window_covers() {
    let [near, far, fast, fastest] = lines(WrOpcode::RdmaWrite).map(Line::rxes);
    assert!(near > 0.9 && far > 0.9, "{near} {far}");
    // 128 packets in the time that half of them take to be sent and acknowledged.
    for (line, share) in [(Line::new(25, 20), fast), (Line::new(100, 5), fastest)] {
        let packet = f64::from(line.mtu.bytes()) + Rate::OVERHEAD as f64;
        let sent = 64.0 * packet * 8.0 / line.bits as f64;
        let window = 128.0 * f64::from(line.mtu.bytes()) * 8.0;
        let most = window / (sent + 2.0 * line.delay.as_secs_f64()) / line.bits as f64;
        assert!(share > 0.97 * most && share < 1.03 * most, "{line:?}: {share} of {most}");
    }
    for read in lines(WrOpcode::RdmaRead).map(Line::rxes) {
        assert!(read > 0.9, "{read}");
    }
}

//! How much of a line a reliable connection keeps when packets are lost, in virtual time: what is asserted here does not depend
//! on the machine.
//!
//! `cargo test -p transport --test loss -- --nocapture` prints the curves.

use core::time::Duration;

use fabric_sim::options::{BASE, KEY};
use fabric_sim::{Link, Net, Options, Rate, build};
use iba::{Mtu, WcStatus, WrOpcode};

const MESSAGE: u32 = 64 << 10;
const MESSAGES: u64 = 200;
/// Work requests under way, as a program that keeps its queue filled has them.
const DEPTH: u64 = 16;

/// A line, and what is lost on it in thousandths.
#[derive(Clone, Copy, Debug)]
struct Line {
    bits: u64,
    delay: Duration,
    loss: u32,
    burst: u32,
    opcode: WrOpcode,
}

impl Line {
    fn new(gigabits: u64, micros: u64) -> Self {
        let delay = Duration::from_micros(micros);
        let bits = gigabits * 1_000_000_000;
        Self { bits, delay, loss: 0, burst: 1, opcode: WrOpcode::RdmaWrite }
    }

    /// The share of the line that is left for payload, from 0 to 1.
    #[track_caller]
    fn share(self) -> f64 {
        // The mean of a few networks, as one loss more or less shows at the smaller shares.
        (1..=3).map(|seed| self.share_of(seed)).sum::<f64>() / 3.0
    }

    #[track_caller]
    fn share_of(self, seed: u64) -> f64 {
        let mut options = Options::rc();
        options.seed = seed;
        options.mtu = Mtu::Mtu1024;
        options.retry_cnt = 7;
        // 1 ms: several times a round trip, and not longer than it takes to matter.
        options.timeout = 8;
        options.memory = 2 * MESSAGE as usize;
        let rate = Rate { bytes: self.bits / 8, queue: 1 << 20, mark: None };
        let Self { loss, burst, delay, .. } = self;
        options.link = Link { loss, burst, delay, rate: Some(rate), ..Link::GOOD };
        let mut net = Net::pair(options);
        let (mut posted, mut done) = (0, 0);
        while done < MESSAGES {
            while posted < MESSAGES && posted - done < DEPTH {
                let mut wr = build::wr(posted, self.opcode, BASE, MESSAGE);
                wr.rkey = iba::RKey(KEY);
                wr.remote_addr = BASE + u64::from(MESSAGE);
                net.post(0, wr);
                posted += 1;
            }
            net.drive_bounded(1);
            for completion in net.take_completions(0) {
                assert_eq!(completion.status, WcStatus::Success, "{self:?}, seed {seed}");
                done += 1;
            }
        }
        let seconds = net.now.as_nanos() as f64 / 1e9;
        (MESSAGES * u64::from(MESSAGE)) as f64 * 8.0 / seconds / self.bits as f64
    }
}

#[test]
fn half_is_left_at_one_packet_in_a_thousand_and_a_part_at_one_in_a_hundred() {
    println!(
        "share of the line that is payload (go-back-N)\n   lost   10G 5us  10G 20us  25G 20us  100G 5us"
    );
    let lines = [Line::new(10, 5), Line::new(10, 20), Line::new(25, 20), Line::new(100, 5)];
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
        let lines = lines.map(|line| Line { opcode, ..line });
        let good = lines.map(Line::share);
        println!("{opcode:?}");
        for (loss, burst) in [(0, 1), (1, 1), (1, 8), (3, 1), (10, 1), (30, 1)] {
            let shares = lines.map(|line| Line { loss, burst, ..line }.share());
            let words: Vec<_> = shares.iter().map(|share| format!("{share:8.3}")).collect();
            println!("{:5.1} % x{burst} {}", f64::from(loss) / 10.0, words.join("  "));
            for (index, share) in shares.iter().enumerate() {
                let kept = share / good[index];
                let line = lines[index];
                match (loss, burst) {
                    (0, _) => assert!(*share > 0.7, "{line:?}: {share} without a loss"),
                    (1, 1) => assert!(kept >= 0.5, "{line:?}: {kept} at 0.1 %"),
                    (10, _) => assert!(kept >= 0.05, "{line:?}: {kept} at 1 %"),
                    _ => {}
                }
            }
        }
    }
}

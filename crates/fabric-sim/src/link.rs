//! A network as bad as the test asks for, the same for the same seed.

use core::time::Duration;

use transport::Time;

/// What a network does to packets. Shares are in thousandths.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "tests build it")]
pub struct Link {
    /// Lost.
    pub loss: u32,
    /// Delivered with bits flipped, so that the port that receives them finds the ICRC wrong.
    pub corrupt: u32,
    /// Delivered twice.
    pub duplicate: u32,
    /// Held back long enough for later ones to overtake.
    pub reorder: u32,
    /// The most consecutive packets that one loss takes; 1 for single packets.
    pub burst: u32,
    /// The time a packet takes.
    pub delay: Duration,
    /// How much more it may take, at random: packets overtake each other.
    pub jitter: Duration,
    /// Payload bytes of the longest packet that passes: others vanish silently, as in a network
    /// whose MTU is smaller than its ends believe.
    pub longest: Option<u32>,
    /// The bandwidth of each direction; `None`: packets take no time on the line.
    pub rate: Option<Rate>,
}

/// A line that is slower than its users.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "tests build it")]
pub struct Rate {
    /// Bytes a second.
    pub bytes: u64,
    /// Bytes that may wait in front of it. A packet that finds no room is lost.
    pub queue: u64,
    /// A packet that finds more bytes than this in front of it is marked, if its QP takes part in
    /// congestion control; `None`: none is.
    pub mark: Option<u64>,
}

impl Rate {
    /// Bytes of a packet on the line besides its payload: Ethernet with preamble and gap, IP, UDP,
    /// BTH, RETH, ICRC.
    pub const OVERHEAD: u64 = 38 + 20 + 8 + 12 + 16 + 4;

    /// The time that a payload occupies the line.
    pub fn time(self, payload: usize) -> Duration {
        let bytes = payload as u64 + Self::OVERHEAD;
        Duration::from_nanos(bytes * 1_000_000_000 / self.bytes)
    }

    /// How long the last packet of a full queue waits.
    pub fn longest_wait(self) -> Duration {
        self.wait(self.queue)
    }

    /// How long the last of this many bytes waits.
    pub fn wait(self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes * 1_000_000_000 / self.bytes)
    }
}

/// One direction of a line with a rate, and what waits in front of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line {
    /// When it becomes free.
    free: Time,
}

impl Line {
    /// How long a packet that comes now waits for its turn.
    pub fn wait(&self, now: Time) -> Duration {
        self.free.max(now).since(now)
    }

    /// Queues a payload after all that waits. Returns when it has left, or `None` if it found the
    /// queue full.
    pub fn take(&mut self, rate: Rate, now: Time, payload: usize) -> Option<Time> {
        if self.wait(now) > rate.longest_wait() {
            return None;
        }
        self.free = self.free.max(now) + rate.time(payload);
        Some(self.free)
    }
}

impl Link {
    /// A perfect network with a delay of one microsecond.
    pub const GOOD: Self = Self {
        loss: 0,
        corrupt: 0,
        duplicate: 0,
        reorder: 0,
        burst: 1,
        delay: Duration::from_micros(1),
        jitter: Duration::ZERO,
        longest: None,
        rate: None,
    };

    /// When copies of a packet arrive: none, one or two times. `burst` is how many more packets the
    /// earlier loss takes.
    pub fn carry(&self, rng: &mut Rng, burst: &mut u32) -> impl Iterator<Item = Duration> + use<> {
        let mut arrivals = [None, None];
        if *burst > 0 {
            *burst -= 1;
        } else if rng.chance(self.loss) {
            *burst = if self.burst > 1 { rng.below(self.burst.into()) as u32 } else { 0 };
        } else {
            arrivals[0] = Some(self.arrival(rng));
        }
        if rng.chance(self.duplicate) {
            arrivals[1] = Some(self.arrival(rng));
        }
        arrivals.into_iter().flatten()
    }

    /// Whether a payload of this length can pass.
    pub fn passes(&self, payload: usize) -> bool {
        self.longest.is_none_or(|longest| payload <= longest as usize)
    }

    fn arrival(&self, rng: &mut Rng) -> Duration {
        let late = if rng.chance(self.reorder) { 2 + rng.below(20) as u32 } else { 1 };
        let jitter = match self.jitter.as_nanos() as u64 {
            0 => 0,
            jitter => rng.below(jitter),
        };
        self.delay * late + Duration::from_nanos(jitter)
    }
}

/// Numbers that look random: xorshift64*.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of this seed.
    pub const fn new(seed: u64) -> Self {
        // The state must not be zero; an odd constant spreads small seeds apart.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`, which is not 0.
    pub const fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    /// True in `permille` of a thousand cases.
    pub const fn chance(&mut self, permille: u32) -> bool {
        permille > 0 && self.below(1000) < permille as u64
    }
}

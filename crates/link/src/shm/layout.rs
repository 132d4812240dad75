//! The layout of the memory that two peers share. A change here is a new [`VERSION`].
//!
//! ```text
//!  ring memfd (sealed, made by the sender)          doorbell memfd (sealed, one per claim)
//!  0     HEAD     consumer writes, producer reads    0   SLEEP    even: awake, odd: asleep
//!  128   WAITING  producer sets, consumer clears     8   PROMISE  1: no sleep without a heavy fence
//!                                                        (only its owner can write them)
//!  4096  SLOT     the sender holds its guard slot here; the rest is scratch for the engines
//!  8192  the ring: records at multiples of 64 bytes
//! ```

/// First word of every message: distinguishes a peer from a program that squats on our names.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"peerdma\x01");

/// Version of messages and of the memory layout; peers of another version are refused.
pub const VERSION: u32 = 3;

/// Records start at multiples of this: a cache line of every machine we run on.
pub(crate) const LINE: usize = 64;

/// The size of the word before the payload, which announces a record.
pub(crate) const HEADER: usize = 8;

/// Control word: how far (in bytes since the beginning) the consumer has freed the ring.
///
/// Words with different writers lie 128 bytes apart, since CPUs fetch lines in pairs.
pub(crate) const HEAD: usize = 0;

/// Control word: 1 if the producer waits for space.
pub(crate) const WAITING: usize = 128;

/// Start of the page that the two engines use freely.
pub(crate) const SCRATCH: usize = 4096;

/// Bytes of the page next to the ring that the two engines use freely.
pub const SCRATCH_LEN: usize = 4096;

/// The guard slot of the sender: the first word of that page.
pub(crate) const SLOT: usize = SCRATCH;

/// Start of the ring in its memfd.
pub(crate) const DATA: usize = 8192;

/// Doorbell word: counts up at each change, odd while the owner sleeps.
pub(crate) const SLEEP: usize = 0;

/// Doorbell word: 1 while the owner promises to take this back, and then to make a fence in every
/// process ([`barrier`](threads::barrier)), before it sleeps.
pub(crate) const PROMISE: usize = 8;

/// Bytes of the doorbell memfd.
pub(crate) const BELL_LEN: usize = 4096;

/// The default ring capacity in bytes.
pub const DEFAULT_CAPACITY: usize = 256 << 10;

/// Smallest ring capacity in bytes.
pub const MIN_CAPACITY: usize = 4 << 10;

/// Largest ring capacity in bytes: what a peer may make us map.
pub const MAX_CAPACITY: usize = 16 << 20;

/// Whether a ring may have this `capacity`: a power of two between the bounds.
pub(crate) const fn valid_capacity(capacity: usize) -> bool {
    capacity.is_power_of_two() && capacity >= MIN_CAPACITY && capacity <= MAX_CAPACITY
}

/// Size of the memfd of a ring.
pub(crate) const fn ring_file_len(capacity: usize) -> usize {
    DATA + capacity
}

/// Longest payload of one record: a record must fit half the ring, so that it fits wherever the
/// wrap falls.
pub const fn max_payload(capacity: usize) -> usize {
    capacity / 2 - HEADER
}

/// Bytes that a record with `len` bytes of payload takes in the ring.
pub const fn record_size(len: usize) -> usize {
    (HEADER + len).next_multiple_of(LINE)
}

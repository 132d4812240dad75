//! How often the engine looks, how long it waits, and how many in a row make a habit: every
//! threshold of progress, from the shortest to the longest.
//!
//! The times were measured with perftest and the pingpongs on machines of two cores. A look at
//! memory costs nanoseconds, the clock tens of them, a look at a socket half a microsecond, a sleep
//! and a wake some microseconds and often another core.

use std::time::Duration;

use transport::AckPolicy;

// Polls of the program.

/// The clock is read, and timers are looked at, once in this many polls that found nothing.
pub(crate) const POLLS_PER_CLOCK: u32 = 64;
/// The same of looks at a socket where datagrams came lately, which take longer: a datagram that
/// needs no more than a rough idea of the time is to have one of some microseconds.
pub(crate) const LOOKS_PER_CLOCK: u32 = 16;
/// A socket that was silent lately is looked at with one in so many looks at the clock, as that is
/// a system call.
pub(crate) const LOOKS_PER_SOCKET: u32 = 8;
/// A socket counts as silent after so many looks at it that found nothing: UDP, and frames.
pub(crate) const LOOKS_UNTIL_SILENT: u32 = 4096;
/// After this many polls in a row the program is taken to be polling.
pub(crate) const POLLS_TO_TAKE_OVER: u64 = 64;
/// After this many polls in a row that found nothing, some tens of microseconds, the core is
/// offered to others: the peer may be waiting for it.
pub(crate) const POLLS_TO_YIELD: u64 = 1 << 10;
/// The same after the core was offered and did not come back for [`SLOW_RETURN`]: others have use
/// for it, and each offer costs the program a turn.
pub(crate) const POLLS_TO_YIELD_AGAIN: u64 = 1 << 14;
/// Longer than a peer needs to answer, shorter than the turn of a process that computes.
pub(crate) const SLOW_RETURN: Duration = Duration::from_millis(1);

// Delayed acknowledgements.

/// Which acknowledgements wait, and for how long if the program neither posts nor polls. A peer
/// whose ACK timeout is shorter than this could take what waits for lost.
pub(crate) static ACK_POLICY: AckPolicy = AckPolicy {
    max_delay: Duration::from_micros(100),
    answers_to_trust: 8,
    shortest_timeout: Duration::from_millis(10),
};
/// What it is to answer "at once". A peer that waits for its acknowledgement is to wait no longer.
pub(crate) const AT_ONCE: Duration = Duration::from_micros(20);
/// How often the background thread looks while acknowledgements wait.
pub(crate) const ACK_LOOK: Duration = Duration::from_micros(200);
/// So many trains are looked at with a clock once it was in doubt whether an answer came at once.
pub(crate) const TRAINS_IN_DOUBT: u32 = 64;

// The background thread.

/// Turns in a row before a stream is looked for, and the thread says that it sleeps.
pub(crate) const TURNS: u32 = 64;
/// A stream over UDP: so many datagrams, a train of the longest ones, since the background thread
/// last woke or looked.
pub(crate) const STREAM: u64 = 12;
/// How long the background thread looks for the next train of a stream before it sleeps. To be
/// woken costs either side some microseconds, and often another core.
pub(crate) const LINGER: Duration = Duration::from_micros(50);
/// How long work that waits for others, such as for room in a carrier, may go unchecked: nothing
/// tells when they are done.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// How long a program that polls may pause before the background thread makes progress in its
/// place.
pub(crate) const LEASE: Duration = LOOK_AGAIN;
/// How long the end of a process waits for a thread of it that has the engine: what others are
/// waiting for may be in its sockets.
pub(crate) const LAST_LEASE: Duration = Duration::from_millis(50);
/// The background thread sleeps no longer: what wakes it may have been closed.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

// Descriptors, which the program may have closed or replaced.

/// How often they are looked at, at most.
pub(crate) const DESCRIPTOR_LOOK: Duration = Duration::from_millis(1);
/// Peers whose descriptors are looked at in one pass; those after them have their turn in the next.
pub(crate) const PEERS_PER_LOOK: usize = 64;

//! How often the engine checks, how long it waits, and how many events in a row count as a pattern:
//! every threshold of progress, from the shortest to the longest.
//!
//! The times were measured with perftest and the pingpongs on machines of two cores. Reading memory
//! costs nanoseconds, the clock tens of them, checking a socket half a microsecond, a sleep and a
//! wake some microseconds and often another core.

use std::time::Duration;

use transport::AckPolicy;

// Polls of the program.

/// The clock is read, and timers are checked, once in this many polls that found nothing.
pub(crate) const POLLS_PER_CLOCK: u32 = 64;
/// The same for checks of a busy socket, which take longer: a datagram that needs only a rough time
/// should have one that is right to some microseconds.
pub(crate) const LOOKS_PER_CLOCK: u32 = 16;
/// A socket that has been silent is checked at one in this many clock readings, as that is a system
/// call.
pub(crate) const LOOKS_PER_SOCKET: u32 = 8;
/// A socket (UDP or frames) counts as silent after this many checks that found nothing.
pub(crate) const LOOKS_UNTIL_SILENT: u32 = 4096;
/// After this many polls in a row, the program counts as polling.
pub(crate) const POLLS_TO_TAKE_OVER: u64 = 64;
/// The number doubles, up to this, each time that something waits for a program that counts as
/// polling, and has paused: it polls for its own completions, and spins on memory between them.
pub(crate) const POLLS_TO_TAKE_OVER_AT_MOST: u64 = 1 << 14;
/// A program also counts as polling after a [`LEASE`] of posts and polls with no more than this
/// between two of them, in the mean.
pub(crate) const BETWEEN_CALLS: Duration = Duration::from_micros(10);
/// The number of such leases doubles likewise, up to this.
pub(crate) const LEASES_TO_TAKE_OVER_AT_MOST: u64 = 1 << 14;
/// After this many polls in a row that found nothing, some tens of microseconds, the core is
/// yielded: the peer may be waiting for it.
pub(crate) const POLLS_TO_YIELD: u64 = 1 << 10;
/// The same after the core was yielded and did not come back for [`SLOW_RETURN`]: others need it,
/// and each yield costs the program a time slice.
pub(crate) const POLLS_TO_YIELD_AGAIN: u64 = 1 << 14;
/// Longer than a peer needs to answer, shorter than the time slice of a process that computes.
pub(crate) const SLOW_RETURN: Duration = Duration::from_millis(1);

// Threads of the program that wait for an event.

/// How long such a thread polls before it sleeps, if its waits are short: as long as two threads
/// take to wake.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
/// A wait that is short: the peer, and both threads, had to wake first.
pub(crate) const SHORT_WAIT: Duration = Duration::from_micros(150);
/// After this many short waits, a thread polls before it sleeps.
pub(crate) const SHORT_WAITS_TO_SPIN: u32 = 4;
/// The number doubles, up to this, each time that too many polls found nothing.
pub(crate) const SHORT_WAITS_TO_SPIN_AT_MOST: u32 = 1 << 8;
/// How many may find nothing at first,
pub(crate) const FIRST_CREDIT: u32 = 4;
/// and after many that found something.
pub(crate) const MOST_CREDIT: u32 = 16;

// Acknowledgements.

/// Those that nobody asked for are sent after this many polls that found nothing, some hundred
/// nanoseconds: the next message may be on its way.
pub(crate) const POLLS_TO_ACK: u32 = 8;

/// Which acknowledgements wait, and for how long if the program neither posts nor polls. A peer
/// with a shorter ACK timeout could treat the message as lost.
pub(crate) static ACK_POLICY: AckPolicy = AckPolicy {
    max_delay: Duration::from_micros(100),
    answers_to_trust: 8,
    shortest_timeout: Duration::from_millis(10),
};
/// The longest time that counts as answering "at once". A peer that waits for its acknowledgement
/// should wait no longer.
pub(crate) const AT_ONCE: Duration = Duration::from_micros(20);
/// How often the background thread checks while acknowledgements wait.
pub(crate) const ACK_LOOK: Duration = Duration::from_micros(200);
/// For this many trains the clock is read once it was in doubt whether an answer came at once.
pub(crate) const TRAINS_IN_DOUBT: u32 = 64;

// Operations that wait for others (`engine::held`).

/// A program that posts more of them than this between two polls posts many.
pub(crate) const POSTS_AT_ONCE: u32 = 4;
/// How long they wait if the program does nothing else with the device. Shorter than [`ACK_LOOK`],
/// so that the thread finds them overdue when it checks the second time.
pub(crate) const LONGEST_HOLD: Duration = Duration::from_micros(150);

// The background thread.

/// Turns in a row before the thread checks for a stream, and announces that it sleeps.
pub(crate) const TURNS: u32 = 64;
/// What counts as a stream over UDP: this many datagrams, a train of the longest ones, since the
/// background thread last woke or checked.
pub(crate) const STREAM: u64 = 12;
/// How long the background thread polls for the next train of a stream before it sleeps. A wake
/// costs each side some microseconds, and often another core.
pub(crate) const LINGER: Duration = Duration::from_micros(50);
/// How long work that waits for others, such as for room in a carrier, may go unchecked: there is
/// no event when they are done.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// How long a program that polls may pause before the background thread makes progress in its
/// place.
pub(crate) const LEASE: Duration = LOOK_AGAIN;
/// Without a poll in this time at the end of a lease, the program has paused. Longer than a program
/// that polls takes to act on what it found.
pub(crate) const PAUSE: Duration = Duration::from_micros(100);
/// How long the end of a process waits for one of its threads that has the engine: its sockets may
/// hold packets that others wait for.
pub(crate) const LAST_LEASE: Duration = Duration::from_millis(50);
/// The longest sleep of the background thread: the descriptor that wakes it may have been closed.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// How long a background thread that bells and datagrams wake again and again leaves out what has
/// no descriptor to wake it.
pub(crate) const LONGEST_BETWEEN_LOOKS: Duration = Duration::from_millis(10);

// Descriptors, which the program may have closed or replaced.

/// How often they are checked, at most.
pub(crate) const DESCRIPTOR_LOOK: Duration = Duration::from_millis(1);
/// The number of peers whose descriptors are checked in one pass; the others have their turn in the
/// next.
pub(crate) const PEERS_PER_LOOK: usize = 64;

//! The names of what a trace shows, by number.

use iba::{WcStatus, WrOpcode};
use perfetto::Names;
use wire::Opcode;

use crate::carrier::Route;

/// Categories.
#[derive(Clone, Copy, Debug)]
pub(super) enum Category {
    Request = 1,
    Packet,
    Completion,
    Memory,
    FaultPlan,
    Event,
}

const CATEGORIES: [&str; 6] =
    ["request", "packet", "completion", "memory", "fault plan", "async event"];

/// Arguments of events.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg {
    Qp = 1,
    Peer,
    Psn,
    Bytes,
    WrId,
    Key,
    Answer,
    Path,
    Status,
    Why,
    Waited,
    What,
    Address,
    Count,
}

const ARGS: [&str; 14] = [
    "QP",
    "peer QP",
    "PSN",
    "bytes",
    "wr_id",
    "MR key",
    "answer",
    "path",
    "status",
    "why",
    "posted earlier (ns)",
    "what",
    "address",
    "pages",
];

/// Events beside requests, packets and completions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Receive = 64,
    PageFault,
    MapAgain,
    Revoked,
    FaultPlan,
    Async,
}

const EVENTS: [(Event, &str); 6] = [
    (Event::Receive, "RECV"),
    (Event::PageFault, "page fault"),
    (Event::MapAgain, "mapped again after a move"),
    (Event::Revoked, "revoked"),
    (Event::FaultPlan, "fault plan"),
    (Event::Async, "async event"),
];

/// Paths of packets, of which an argument tells one.
const ROUTES: [Route; 4] = [Route::None, Route::Loopback, Route::Shm(0), Route::Udp];

/// The status of a send that ends well without a completion, as an argument.
pub(super) const NO_COMPLETION: u64 = 64;

/// The path of a packet, as an argument.
pub(super) fn of_route(route: Route) -> u64 {
    match route {
        Route::None => 1,
        Route::Loopback => 2,
        Route::Shm(_) => 3,
        Route::Udp => 4,
    }
}

/// The name of a request's slice.
pub(super) fn of_request(opcode: WrOpcode) -> u64 {
    1 + opcode as u64
}

/// The name of a completion, and its status as an argument.
pub(super) fn of_status(status: WcStatus) -> u64 {
    128 + status as u64
}

/// The name of a packet.
pub(super) fn of_packet(opcode: Opcode) -> u64 {
    256 + u64::from(u8::from(opcode))
}

/// Gives every name its number.
pub(super) fn with_all<T>(act: impl FnOnce(&Names<'_>) -> T) -> T {
    let requests = (0..63).filter_map(WrOpcode::from_code);
    let mut events: Vec<(u64, &str)> = requests.map(|of| (of_request(of), of.name())).collect();
    events.extend(EVENTS.map(|(event, name)| (event as u64, name)));
    events.extend(WcStatus::ALL.iter().map(|of| (of_status(*of), of.name())));
    events.extend(Opcode::ALL.iter().map(|of| (of_packet(*of), of.name())));
    let mut words = vec![(NO_COMPLETION, "no completion")];
    words.extend(WcStatus::ALL.iter().map(|of| (of_status(*of), of.name())));
    words.extend(ROUTES.map(|of| (of_route(of), of.name())));
    act(&Names { categories: &CATEGORIES, events: &events, args: &ARGS, words: &words })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_number_of_its_own() {
        assert_eq!(Category::Event as usize, CATEGORIES.len());
        assert_eq!(Arg::Count as usize, ARGS.len());
        with_all(|names| {
            let numbers: std::collections::HashSet<u64> =
                names.events.iter().map(|(number, _)| *number).collect();
            assert_eq!(numbers.len(), names.events.len());
            assert!(!numbers.contains(&0));
            let words: std::collections::HashSet<u64> =
                names.words.iter().map(|(number, _)| *number).collect();
            assert_eq!(words.len(), names.words.len());
            assert!(!words.contains(&0));
            for (event, name) in EVENTS {
                assert!(names.events.contains(&(event as u64, name)));
            }
        });
    }
}

//! Peers that lie, are slow, or are forked.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use descriptors::{Known, PrivateFd};
use rustix::event::PollFlags;

use super::link::Link;
use super::message::{Attach, MESSAGE_MAX, Reply, Request};
use super::socket::{self, Received};
use super::*;
use crate::{
    AttachmentInfo, Direction, DmaBuf, Exporter, ExporterError, ExporterErrorKind, Gate,
    ImporterClass, Resv, ResvGuard, SgBacking, SgEntry, SgTable, Sharing, sys,
};

/// A shared buffer that stays where it is.
struct Still {
    gate: Gate,
    file: Arc<Known>,
}

impl Exporter for Still {
    fn name(&self) -> &str {
        "still"
    }

    fn map_dma_buf(
        &self,
        _: &ResvGuard<'_>,
        _: &AttachmentInfo,
        _: Direction,
    ) -> Result<SgTable, ExporterError> {
        let backing = Some(SgBacking { file: Arc::clone(&self.file), offset: 0 });
        let entry = SgEntry { addr: 0, len: 8192, backing };
        Ok(SgTable { epoch: Some(self.gate.epoch()), ..SgTable::of_system(vec![entry]) })
    }

    fn unmap_dma_buf(&self, _: &ResvGuard<'_>, _: &AttachmentInfo, _: SgTable, _: Direction) {}

    fn gate(&self) -> Option<&Gate> {
        Some(&self.gate)
    }

    fn sharing(&self) -> Sharing {
        Sharing::HostKept
    }
}

fn export() -> (DmaBuf, Address) {
    let gate = Gate::new("still").expect("memory exists");
    let file = Arc::new(Known::new(sys::sealed_memfd("pool", 8192).expect("memory exists")));
    let exporter = Arc::new(Still { gate, file });
    let buf = DmaBuf::export_with(exporter, 8192, "frame", Resv::new()).expect("exported");
    let name = sys::memfd_name(buf.fd()).expect("a memfd");
    let (_, address) = split_name(&name).expect("shared");
    (buf, address)
}

/// A client that sends arbitrary messages.
struct Raw {
    socket: PrivateFd,
    notes: OwnedFd,
}

impl Raw {
    fn connect(token: Token) -> Self {
        let socket = socket::new_socket().expect("a socket");
        rustix::net::connect(&socket, &token.socket_name().expect("short")).expect("listening");
        let (notes, theirs) = socket::pair().expect("sockets");
        let raw = Self { socket: PrivateFd::new(socket), notes };
        raw.say(&Request::Hello.encode(1), &[&theirs]);
        assert_eq!(raw.hear(), Some(Reply::Done));
        raw
    }

    fn say(&self, bytes: &[u8], fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        socket::send(&self.socket, bytes, &fds).expect("room");
    }

    /// The answer, or nothing if we were cut off.
    fn hear(&self) -> Option<Reply> {
        let mut buffer = vec![0; MESSAGE_MAX];
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match socket::recv(&self.socket, &mut buffer) {
                Received::Packet(len, _) => {
                    return Some(Reply::decode(&buffer[..len]).expect("a reply").1);
                }
                Received::Nothing => {
                    let asked = (self.socket.as_fd(), PollFlags::IN);
                    let [ready] = socket::wait([asked], Some(deadline));
                    assert!(!ready.is_empty(), "no answer");
                }
                Received::Closed => return None,
                Received::Bad(bad) => panic!("{bad}"),
            }
        }
    }

    fn ask(&self, request: &Request) -> Option<Reply> {
        self.say(&request.encode(2), &[]);
        self.hear()
    }
}

fn import_of(buf: &DmaBuf, address: Address) -> Request {
    let ((dev, ino), _) = sys::identity(buf.fd()).expect("open");
    Request::Import { buf: address.id, dev, ino }
}

fn attach(buf: u64, attachment: u64) -> Request {
    let (class, name) = (ImporterClass::Dynamic, "raw".to_owned());
    Request::Attach(Attach { buf, attachment, class, peer2peer: true, device: None, name })
}

#[test]
fn invalid_messages_end_the_connection() {
    let (buf, address) = export();
    let ends = |what: &str, lie: &dyn Fn(&Raw)| {
        let raw = Raw::connect(address.token);
        assert!(matches!(raw.ask(&import_of(&buf, address)), Some(Reply::Imported(_))));
        lie(&raw);
        assert_eq!(raw.hear(), None, "{what}");
    };
    ends("garbage", &|raw| raw.say(b"GET / HTTP/1.1\r\n", &[]));
    ends("hello again", &|raw| raw.say(&Request::Hello.encode(3), &[]));
    ends("a descriptor", &|raw| {
        let null = std::fs::File::open("/dev/null").expect("exists").into();
        raw.say(&Request::Release { buf: 0 }.encode(3), &[&null]);
    });
    ends("a number twice", &|raw| {
        assert_eq!(raw.ask(&attach(address.id, 7)), Some(Reply::Attached { peer2peer: true }));
        raw.say(&attach(address.id, 7).encode(3), &[]);
    });
    ends("a map twice", &|raw| {
        raw.ask(&attach(address.id, 7));
        let map = Request::Map { attachment: 7, map: 1, direction: Direction::ToDevice };
        assert!(matches!(raw.ask(&map), Some(Reply::Mapped(_))));
        raw.say(&map.encode(3), &[]);
    });
    let raw = Raw::connect(address.token);
    assert!(matches!(raw.ask(&import_of(&buf, address)), Some(Reply::Imported(_))), "others live");
}

#[test]
fn a_greeting_needs_a_socket_for_notes() {
    let (_buf, address) = export();
    let null: OwnedFd = std::fs::File::open("/dev/null").expect("exists").into();
    for (bytes, fds) in [
        (Request::Hello.encode(1), vec![]),
        (Request::Hello.encode(1), vec![&null]),
        (Request::Release { buf: 1 }.encode(1), vec![]),
    ] {
        let socket = socket::new_socket().expect("a socket");
        let name = address.token.socket_name().expect("short");
        rustix::net::connect(&socket, &name).expect("listening");
        let notes = socket.try_clone().expect("a descriptor");
        let raw = Raw { socket: PrivateFd::new(socket), notes };
        raw.say(&bytes, &fds);
        assert_eq!(raw.hear(), None);
    }
}

#[test]
fn unknown_objects_are_refused_or_ignored() {
    let (buf, address) = export();
    let raw = Raw::connect(address.token);
    let refused = |reply| match reply {
        Some(Reply::Refused(error)) => assert_eq!(error.kind, ExporterErrorKind::Invalid),
        other => panic!("{other:?}"),
    };
    refused(raw.ask(&Request::Import { buf: address.id, dev: 1, ino: 1 }));
    refused(raw.ask(&attach(address.id, 7)));
    refused(raw.ask(&Request::Pin { attachment: 7, pin: 1 }));
    refused(raw.ask(&Request::Map { attachment: 7, map: 1, direction: Direction::ToDevice }));
    for ignored in [
        Request::Release { buf: address.id },
        Request::Detach { attachment: 7 },
        Request::Unpin { attachment: 7, pin: 1 },
        Request::Unmap { attachment: 7, map: 1 },
    ] {
        raw.say(&ignored.encode(9), &[]);
    }
    assert!(matches!(raw.ask(&import_of(&buf, address)), Some(Reply::Imported(_))));
    assert_eq!(raw.hear_end(), None, "a process without its notes is gone");
}

impl Raw {
    fn hear_end(self) -> Option<Reply> {
        let Self { socket, notes } = self;
        drop(notes);
        let (spare, _) = socket::pair().expect("sockets");
        Self { socket, notes: spare }.hear()
    }
}

/// A request that is given up is undone afterwards, and a late answer is not taken for that of
/// another request.
#[test]
fn an_exporter_that_does_not_answer_is_given_up() {
    let (socket, theirs) = socket::pair().expect("sockets");
    let theirs = PrivateFd::new(theirs);
    let (notes, _their_notes) = socket::pair().expect("sockets");
    let link = Link::new(socket, notes, Some(1), Duration::from_millis(20)).expect("an eventfd");
    let pin = Request::Pin { attachment: 1, pin: 1 };
    let undo = Request::Unpin { attachment: 1, pin: 1 };
    let late = link.call(&pin, Some(undo.clone())).expect_err("nobody answers");
    assert_eq!(late.kind, ExporterErrorKind::Busy);
    assert_eq!(late.what, "process 1 did not answer for 20ms");

    let mut buffer = vec![0; MESSAGE_MAX];
    for expected in [(1, pin), (0, undo)] {
        let Received::Packet(len, _) = socket::recv(&theirs, &mut buffer) else {
            panic!("it was sent")
        };
        assert_eq!(Request::decode(&buffer[..len]), Ok(expected));
    }
    let say = |number, reply: Reply| {
        socket::send(&theirs, &reply.encode(number), &[]).expect("room");
    };
    say(1, Reply::Attached { peer2peer: true });
    say(2, Reply::Done);
    let mmap = Request::Mmap { buf: 1, offset: 0, len: 1 };
    assert_eq!(link.call(&mmap, None).expect("answered").0, Reply::Done);

    say(99, Reply::Done);
    let gone = link.call(&mmap, None).expect_err("it lied");
    assert_eq!(gone.kind, ExporterErrorKind::NoDevice);
    assert!(link.is_gone());
}

/// A message without an answer never waits, however long the exporting process is stopped.
#[test]
fn messages_without_an_answer_are_queued_and_never_block() {
    let (socket, theirs) = socket::pair().expect("sockets");
    let theirs = PrivateFd::new(theirs);
    let (notes, _their_notes) = socket::pair().expect("sockets");
    let link = Link::new(socket, notes, None, Duration::from_secs(30)).expect("an eventfd");
    for map in 0..1000 {
        link.post(Request::Unmap { attachment: 1, map });
    }
    let reader = std::thread::spawn(move || {
        let mut buffer = vec![0; MESSAGE_MAX];
        let mut next = 0;
        loop {
            socket::wait([(theirs.as_fd(), PollFlags::IN)], None);
            let Received::Packet(len, _) = socket::recv(&theirs, &mut buffer) else {
                panic!("it is still connected")
            };
            match Request::decode(&buffer[..len]).expect("a request") {
                (_, Request::Unmap { map, .. }) => {
                    assert_eq!(map, next, "in order");
                    next += 1;
                }
                (number, _) => {
                    socket::send(&theirs, &Reply::Done.encode(number), &[]).expect("room");
                    return next;
                }
            }
        }
    });
    let mmap = Request::Mmap { buf: 1, offset: 0, len: 1 };
    assert_eq!(link.call(&mmap, None).expect("answered").0, Reply::Done);
    assert_eq!(reader.join().expect("no panic"), 1000, "what was posted goes first");
}

/// A child imports its parent's buffer as that of another process, and its inherited copies are
/// husks.
#[test]
fn a_forked_child_imports_from_its_parent() {
    let (buf, _) = export();
    let fd = buf.fd().try_clone_to_owned().expect("a descriptor");
    let parent = std::process::id();
    let status = sys::in_child(move || {
        let Ok(again) = DmaBuf::import(fd.as_fd()) else { return 1 };
        let is_remote = !again.is_same(&buf) && again.exporter_process() == Some(parent);
        let enters = again.gate_slot().is_ok_and(|slot| slot.is_some());
        drop((buf, again));
        2 * i32::from(!is_remote) + 4 * i32::from(!enters)
    });
    assert_eq!(status, 0);
}

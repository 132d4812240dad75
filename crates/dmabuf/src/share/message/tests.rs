use proptest::prelude::*;

use super::*;

fn requests() -> Vec<Request> {
    let attach = |device| {
        Request::Attach(Attach {
            buf: 1,
            attachment: 2,
            class: ImporterClass::PinnedRevocable,
            peer2peer: true,
            device,
            name: "peerdma0".to_owned(),
        })
    };
    vec![
        Request::Hello,
        Request::Import { buf: 1, dev: 2, ino: u64::MAX },
        Request::Release { buf: 1 },
        attach(None),
        attach(Some(DeviceAddr(0x1_0000))),
        Request::Detach { attachment: 2 },
        Request::Pin { attachment: 2, pin: 3 },
        Request::Unpin { attachment: 2, pin: 3 },
        Request::Map { attachment: 2, map: 3, direction: Direction::FromDevice },
        Request::Unmap { attachment: 2, map: 3 },
        Request::BeginCpu { buf: 1, direction: Direction::ToDevice },
        Request::EndCpu { buf: 1, direction: Direction::Bidirectional },
        Request::Mmap { buf: 1, offset: 4096, len: 1 },
        Request::Hold { buf: 1, hold: 2, offset: 3, len: 4 },
        Request::LetGo { hold: 2 },
        Request::Poll { buf: 1, writes: true },
        Request::ExportSync { buf: 1, flags: 3 },
        Request::ImportSync { buf: 1, flags: 2 },
    ]
}

fn replies() -> Vec<Reply> {
    let facts = Facts {
        size: 1 << 20,
        has_pinning: true,
        is_coherent: false,
        has_gate: true,
        dies: false,
        exporter: "gpu0".to_owned(),
    };
    let entries =
        vec![Entry { file: 0, offset: 0, len: 4096 }, Entry { file: 1, offset: 8192, len: 1 }];
    let mapped = |epoch| Mapped { epoch, map_type: Reach::BusAddress, entries: entries.clone() };
    let refused = |kind| Reply::Refused(ExporterError::new(kind, "no, because"));
    vec![
        Reply::Done,
        Reply::Imported(facts),
        Reply::Attached { peer2peer: true },
        Reply::Mapped(mapped(Some(4))),
        Reply::Mapped(mapped(None)),
        refused(ExporterErrorKind::NoDevice),
        refused(ExporterErrorKind::Again),
        refused(ExporterErrorKind::Unsupported),
        refused(ExporterErrorKind::Kernel(Errno::NXIO)),
    ]
}

#[test]
fn every_message_survives_the_trip() {
    for request in requests() {
        assert_eq!(Request::decode(&request.encode(7)), Ok((7, request)));
    }
    for reply in replies() {
        assert_eq!(Reply::decode(&reply.encode(8)), Ok((8, reply)));
    }
    let note = Note::Invalidate { buf: 1, attachment: 2 };
    assert_eq!(Note::decode(&note.encode()), Ok(note));
}

#[test]
fn the_longest_messages_fit() {
    let entries = vec![Entry { file: 15, offset: u64::MAX, len: u64::MAX }; ENTRIES_MAX];
    let mapped = Mapped { epoch: Some(u64::MAX - 1), map_type: Reach::System, entries };
    assert!(Reply::Mapped(mapped).encode(u64::MAX).len() <= MESSAGE_MAX);
    let long = "ü".repeat(WORDS_MAX);
    let refused = Reply::Refused(ExporterError::new(ExporterErrorKind::Busy, long));
    let bytes = refused.encode(1);
    assert!(bytes.len() <= MESSAGE_MAX);
    assert!(Reply::decode(&bytes).is_ok(), "cut between characters");
}

#[test]
fn counts_that_lie_are_refused() {
    let entries = vec![Entry { file: 0, offset: 0, len: 4096 }];
    let mapped = Mapped { epoch: None, map_type: Reach::System, entries };
    let mut bytes = Reply::Mapped(mapped).encode(1);
    bytes[40..48].copy_from_slice(&u64::MAX.to_ne_bytes());
    assert_eq!(Reply::decode(&bytes), Err(BadMessage::Length));
    assert_eq!(Request::decode(b"GET / HTTP/1.1"), Err(BadMessage::Magic));
    let mut bytes = Request::Hello.encode(1);
    bytes.push(0);
    assert_eq!(Request::decode(&bytes), Err(BadMessage::Length));
}

fn decode_all(bytes: &[u8]) {
    let _ = (Request::decode(bytes), Reply::decode(bytes), Note::decode(bytes));
}

proptest! {
    #[test]
    fn anything_decodes_or_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        decode_all(&bytes);
    }

    #[test]
    fn damaged_messages_decode_or_are_refused(which: usize, at: usize, to: u8) {
        let mut all: Vec<_> = requests().iter().map(|request| request.encode(1)).collect();
        all.extend(replies().iter().map(|reply| reply.encode(1)));
        let which = which % all.len();
        let bytes = &mut all[which];
        let at = at % bytes.len();
        bytes[at] = to;
        decode_all(bytes);
        bytes.truncate(at);
        decode_all(bytes);
    }
}

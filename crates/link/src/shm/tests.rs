//! The ring in one process, compared with an oracle, and with a peer that breaks the rules.

mod hostile;
mod litmus;
mod oracle;

use std::convert::Infallible;
use std::os::fd::AsFd;

use super::*;

/// Both ends of a new ring.
fn ring(capacity: usize) -> (Producer, Consumer) {
    let (producer, fd) = Producer::create(capacity).expect("memory files exist");
    let consumer = Consumer::open(fd.as_fd(), capacity).expect("our own ring is a good one");
    (producer, consumer)
}

fn push(producer: &mut Producer, bytes: &[u8]) -> Result<(), PushError<Infallible>> {
    producer.push(bytes.len(), |record| {
        record.copy_from(bytes).expect("there");
        Ok(())
    })
}

fn pop(consumer: &mut Consumer) -> Option<Vec<u8>> {
    let take = |record: umem::Foreign<'_>| {
        let mut bytes = vec![0; record.len()];
        record.copy_to(&mut bytes).expect("there");
        bytes
    };
    consumer.pop(take).expect("an honest producer")
}

#[test]
fn a_small_record_shares_its_line_with_its_header() {
    assert_eq!(record_size(0), 64);
    assert_eq!(record_size(56), 64);
    assert_eq!(record_size(57), 128);
}

#[test]
fn the_longest_record_fits_wherever_the_wrap_falls() {
    let longest = vec![7; max_payload(MIN_CAPACITY)];
    for shift in 0..MIN_CAPACITY / 64 {
        let (mut producer, mut consumer) = ring(MIN_CAPACITY);
        for _ in 0..shift {
            push(&mut producer, b"x").expect("the ring is empty");
            pop(&mut consumer).expect("one was pushed");
        }
        assert_eq!(pop(&mut consumer), None);
        push(&mut producer, &longest).expect("an empty ring takes the longest record");
        assert_eq!(pop(&mut consumer).as_deref(), Some(&*longest));
    }
    let (mut producer, _consumer) = ring(MIN_CAPACITY);
    let too_long = vec![7; longest.len() + 1];
    assert!(matches!(push(&mut producer, &too_long), Err(PushError::TooLarge { .. })));
}

#[test]
fn a_failed_fill_publishes_nothing() {
    let (mut producer, mut consumer) = ring(MIN_CAPACITY);
    assert_eq!(producer.push(9, |_| Err("no")), Err(PushError::Fill("no")));
    assert_eq!(pop(&mut consumer), None);
    push(&mut producer, b"yes").expect("the ring is empty");
    assert_eq!(pop(&mut consumer).as_deref(), Some(&b"yes"[..]));
}

#[test]
fn the_producer_learns_what_was_consumed() {
    let (mut producer, mut consumer) = ring(MIN_CAPACITY);
    push(&mut producer, b"one").expect("room");
    let after_one = producer.position();
    push(&mut producer, b"two").expect("room");
    assert_eq!(producer.consumed_up_to(), 0);
    pop(&mut consumer).expect("one");
    consumer.release();
    assert_eq!(producer.consumed_up_to(), after_one);
    pop(&mut consumer).expect("two");
    assert_eq!(pop(&mut consumer), None, "finding it empty releases, too");
    assert_eq!(producer.consumed_up_to(), producer.position());
}

#[test]
fn a_waiting_producer_is_woken_once() {
    let (mut producer, mut consumer) = ring(MIN_CAPACITY);
    while push(&mut producer, &[1; 56]).is_ok() {}
    assert_eq!(producer.want_space(56), Ok(false));
    while pop(&mut consumer).is_some() {}
    assert!(consumer.take_wake());
    assert!(!consumer.take_wake());
    assert_eq!(producer.want_space(56), Ok(true));
    assert_eq!(pop(&mut consumer), None);
    assert!(!consumer.take_wake(), "the producer found space itself");
}

#[test]
fn a_record_that_is_not_taken_stays_the_next() {
    let (mut producer, mut consumer) = ring(MIN_CAPACITY);
    push(&mut producer, b"first").expect("an empty ring");
    assert_eq!(consumer.pop_if(|_| None::<()>), Ok(None));
    assert!(!consumer.is_idle());
    assert_eq!(pop(&mut consumer).as_deref(), Some(&b"first"[..]));
}

#[test]
fn a_consumer_that_finds_its_ring_empty_has_told_the_producer() {
    let (mut producer, mut consumer) = ring(MIN_CAPACITY);
    assert!(consumer.is_idle());
    push(&mut producer, b"one").expect("an empty ring");
    assert!(!consumer.is_idle(), "a record");
    pop(&mut consumer).expect("one");
    assert!(producer.consumed_up_to() < producer.position());
    assert!(consumer.is_idle());
    assert_eq!(producer.consumed_up_to(), producer.position());
    while push(&mut producer, &[1; 56]).is_ok() {}
    assert_eq!(producer.want_space(56), Ok(false));
    assert!(!consumer.is_idle(), "records");
    while !consumer.is_idle() {
        pop(&mut consumer).expect("a record");
    }
    assert!(consumer.take_wake(), "the producer waits for space");
}

#[test]
fn both_ends_see_the_scratch_page() {
    let (producer, consumer) = ring(MIN_CAPACITY);
    let order = std::sync::atomic::Ordering::Relaxed;
    producer.scratch().store_u64(SCRATCH_LEN - 8, 42, order).expect("the last word");
    assert_eq!(consumer.scratch().load_u64(SCRATCH_LEN - 8, order), Ok(42));
}

#[test]
fn only_sealed_memory_of_the_right_size_is_mapped() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let file = |len: u64, seals: SealFlags| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("test", flags).expect("memory files exist");
        ftruncate(&fd, len).expect("a small file");
        fcntl_add_seals(&fd, seals).expect("sealing allowed");
        fd
    };
    let why = |fd: &std::os::fd::OwnedFd, capacity| {
        Consumer::open(fd.as_fd(), capacity).expect_err("refused").to_string()
    };
    let len = layout::ring_file_len(4096) as u64;
    let all = memfd::SEALS;
    assert!(Consumer::open(file(len, all).as_fd(), 4096).is_ok());
    assert!(why(&file(len, all - SealFlags::SHRINK), 4096).contains("seals"));
    assert!(why(&file(len - 1, all), 4096).contains("bytes, and"));
    assert!(why(&file(len, all), 8192).contains("bytes, and"));
    assert!(why(&file(len, all), 5000).contains("5000"));
    assert!(why(&file(len, all), 1 << 40).contains("cannot have"));
    let (pipe, _) = rustix::pipe::pipe().expect("pipes exist");
    assert!(why(&pipe, 4096).contains("not a memory file"));
}

#[test]
fn only_its_owner_can_write_a_doorbell_page() {
    let bell = Doorbell::new().expect("memory files exist");
    let page = rustix::io::dup(bell.page_fd()).expect("a descriptor");
    assert!(
        memfd::Mapping::open(page.as_fd(), layout::BELL_LEN, memfd::SEALS).is_err(),
        "writable"
    );
    assert!(PeerBell::new(&page).is_ok(), "readable");
}

#[test]
fn a_doorbell_rings_once_for_each_sleep() {
    let bell = Doorbell::new().expect("memory files exist");
    let dup = |fd: std::os::fd::BorrowedFd<'_>| rustix::io::dup(fd).expect("a descriptor");
    let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("sockets exist");
    let ours = descriptors::PeerCred { pid: None, uid: rustix::process::geteuid().as_raw() };
    let socket = descriptors::strangers::PeerSocket::new(socket.into(), ours);
    let page = PeerBell::new(&dup(bell.page_fd())).expect("good");
    let mut peer = page.with_eventfd(Some(dup(bell.fd())), ours);
    let rings = || {
        let mut count = [0; 8];
        rustix::io::read(bell.fd(), &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    };
    peer.ring_if_sleeping(&socket);
    assert_eq!(rings(), 0, "awake");
    bell.set_sleeping();
    peer.ring_if_sleeping(&socket);
    peer.ring_if_sleeping(&socket);
    assert_eq!(rings(), 1);
    bell.set_sleeping();
    peer.ring_if_sleeping(&socket);
    assert_eq!(rings(), 1, "a second sleep is another one");
    bell.set_awake();
    peer.ring_if_sleeping(&socket);
    assert_eq!(rings(), 0);
}

#[test]
fn a_copy_is_known_by_its_key_and_its_end_is_seen_even_if_another_begins_at_once() {
    let (mut producer, consumer) = ring(MIN_CAPACITY);
    assert!(consumer.held().is_free());
    producer.hold(7);
    let first = consumer.held();
    assert!(first.is_for(7) && !first.is_for(8) && !first.is_free());
    producer.free();
    producer.hold(7);
    assert_ne!(consumer.held(), first, "the copy that was under way is over");
    producer.free();
    assert!(consumer.held().is_free() && !consumer.held().is_for(0));
}

//! Sockets of a user that is not ours, as far as the user's number goes.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};

use super::*;

/// Closing takes this long where it waits.
const LINGER: Duration = Duration::from_secs(60);
/// And less than this where it does not.
const SOON: Duration = Duration::from_secs(20);

/// A number that no user has: (uid_t) -1 is none.
const NOBODY: PeerCred = PeerCred { pid: None, uid: u32::MAX };

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty())?;
    Ok(())
}

/// A TCP socket whose last close waits for a minute, or until the other end is closed.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("lo is up");
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    set_socket_linger(&socket, Some(LINGER)).unwrap();
    (socket, other)
}

/// Puts a lingering socket into a message, and keeps only its other end.
fn with_lingering(socket: impl AsFd, bytes: &[u8]) -> TcpStream {
    let (lingering, other) = lingering();
    send(socket, bytes, &[lingering.as_fd()]).expect("room in the socket");
    other
}

#[test]
fn a_strangers_socket_is_closed_without_waiting_for_what_is_in_it() {
    let (ours, theirs) = pair();
    let other = with_lingering(&theirs, b"unasked");
    drop(theirs);
    let began = Instant::now();
    drop(PeerSocket::new(ours, NOBODY));
    assert!(began.elapsed() < SOON);
    drop(other);
}

#[test]
fn a_listener_gives_its_name_back_at_once_even_with_connections_not_accepted() {
    let name = format!("peerdma-test-strangers-{}", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let socket = || rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let listener = socket();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    let client = socket();
    rustix::net::connect(&client, &address).unwrap();
    send(&client, b"unasked", &[client.as_fd()]).unwrap();
    drop(Listener::new(listener));
    let again = socket();
    rustix::net::bind(&again, &address).expect("the name is free at once");
}

#[test]
fn descriptors_are_seen_before_they_are_received() {
    let (ours, theirs) = pair();
    let ours = PeerSocket::new(ours, NOBODY);
    let mut bytes = [0; 16];
    assert_eq!(ours.next(&mut bytes), Next::Nothing);
    send(&theirs, b"plain", &[]).unwrap();
    assert_eq!(ours.next(&mut bytes), Next::Expected);
    rustix::io::read(&ours, &mut bytes).unwrap();
    // Even in a message without bytes.
    send(&theirs, b"", &[theirs.as_fd()]).unwrap();
    assert_eq!(ours.next(&mut bytes), Next::Brings(0));
    assert_eq!(ours.next(&mut bytes), Next::Brings(0), "it stays where it is");
    assert!(!ours.seal(), "one is in it");
}

#[test]
fn a_sealed_socket_gets_no_descriptors_where_the_kernel_can() {
    let (ours, theirs) = pair();
    let ours = PeerSocket::new(ours, NOBODY);
    assert!(ours.seal());
    let sent = send(&theirs, b"x", &[theirs.as_fd()]);
    if ours.is_open() {
        assert_eq!(sent, Ok(()), "a kernel before 6.16");
        assert_eq!(ours.next(&mut [0; 16]), Next::Brings(1));
    } else {
        assert_eq!(sent, Err(Errno::PERM));
    }
}

#[test]
fn a_user_waits_only_for_itself() {
    let (stop, stopped) = mpsc::channel::<()>();
    let (done, is_done) = mpsc::channel();
    assert!(run(u32::MAX - 1, Box::new(move || _ = stopped.recv())));
    let behind = done.clone();
    assert!(run(u32::MAX - 1, Box::new(move || behind.send("behind").unwrap())));
    assert!(run(u32::MAX - 2, Box::new(move || done.send("other").unwrap())));
    assert_eq!(is_done.recv_timeout(SOON), Ok("other"));
    drop(stop);
    assert_eq!(is_done.recv_timeout(SOON), Ok("behind"));
}

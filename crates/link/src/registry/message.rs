//! The messages of a connection, one per packet of a `SOCK_SEQPACKET` socket.
//!
//! Every message begins with magic, version and kind. Numbers are in the host's byte order: both
//! ends are on one host.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use descriptors::strangers::{Next, PeerSocket};
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::{NicIdentity, Probe};
use crate::shm::layout::{MAGIC, VERSION};

/// Messages taken from a socket in one call.
pub(crate) const RECV_BATCH: usize = 32;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// First message of a connection that brings a ring. Descriptors: ring, doorbell page, doorbell
    /// eventfd, and the sender's table if it shares one.
    Hello(Hello),
    /// The answer that accepts. Descriptors: doorbell page, doorbell eventfd, and the table.
    Welcome(Welcome),
    /// The answer that refuses, with the reason; the connection is closed after it.
    Refused(String),
    /// First message of a connection that checks whether an engine is there.
    Ping,
    /// The answer to it.
    Pong {
        /// The VF that answers.
        vf: u16,
    },
    /// Rings the doorbell of a process that cannot be given an eventfd.
    Wake,
    /// First message of a connection that asks for the objects of the process.
    Look,
    /// The answer to it. Descriptor: a sealed memory file.
    Shown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) vf: u16,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) nic: NicIdentity,
    pub(crate) nonce: u64,
    pub(crate) probe: Probe,
    pub(crate) capacity: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) vf: u16,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// The nonce of the Hello: this is the answer to it.
    pub(crate) nonce: u64,
    pub(crate) probe: Probe,
}

/// Why bytes are not a message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadMessage {
    #[error("it does not speak our protocol")]
    Magic,
    #[error("it speaks version {0} of the shared memory layout, and we speak version {VERSION}")]
    Version(u32),
    #[error("it sent a message of unknown kind {0}")]
    Kind(u32),
    #[error("it sent a message that is too short or too long")]
    Length,
    #[error("descriptors of its message were lost: too many, or our process has none left")]
    Descriptors,
}

/// The whole of [`Message::Wake`], for callers that ring without allocating.
pub(crate) const WAKE: [u8; 16] = {
    let (magic, version, kind) =
        (MAGIC.to_ne_bytes(), VERSION.to_ne_bytes(), KIND_WAKE.to_ne_bytes());
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        bytes[i] = if i < 8 {
            magic[i]
        } else if i < 12 {
            version[i - 8]
        } else {
            kind[i - 12]
        };
        i += 1;
    }
    bytes
};

const KIND_HELLO: u32 = 1;
const KIND_WELCOME: u32 = 2;
const KIND_REFUSED: u32 = 3;
const KIND_PING: u32 = 4;
const KIND_PONG: u32 = 5;
const KIND_WAKE: u32 = 6;
const KIND_LOOK: u32 = 7;
const KIND_SHOWN: u32 = 8;

/// Longest message in bytes, and longest text of a refusal.
const MESSAGE_MAX: usize = 1024;
const WORDS_MAX: usize = 512;

/// Most descriptors in one message.
const FDS_MAX: usize = 4;

impl Message {
    /// The message as bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend(MAGIC.to_ne_bytes());
        out.extend(VERSION.to_ne_bytes());
        match self {
            Self::Hello(h) => {
                out.extend(KIND_HELLO.to_ne_bytes());
                put(&mut out, &[h.vf.into(), h.pid.into(), h.uid.into(), h.nic.guid]);
                put(&mut out, &[h.nic.ifindex.into(), h.nic.settings, h.nonce]);
                put(&mut out, &[h.probe.addr, h.probe.value, h.capacity]);
            }
            Self::Welcome(w) => {
                out.extend(KIND_WELCOME.to_ne_bytes());
                put(&mut out, &[w.vf.into(), w.pid.into(), w.uid.into(), w.nonce]);
                put(&mut out, &[w.probe.addr, w.probe.value]);
            }
            Self::Refused(words) => {
                out.extend(KIND_REFUSED.to_ne_bytes());
                out.extend(words.bytes().take(WORDS_MAX));
            }
            Self::Ping => out.extend(KIND_PING.to_ne_bytes()),
            Self::Pong { vf } => {
                out.extend(KIND_PONG.to_ne_bytes());
                put(&mut out, &[u64::from(*vf)]);
            }
            Self::Wake => out.extend(KIND_WAKE.to_ne_bytes()),
            Self::Look => out.extend(KIND_LOOK.to_ne_bytes()),
            Self::Shown => out.extend(KIND_SHOWN.to_ne_bytes()),
        }
        out
    }

    /// The message in `bytes`, which a peer sent.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadMessage> {
        let (magic, rest) = bytes.split_first_chunk().ok_or(BadMessage::Magic)?;
        if u64::from_ne_bytes(*magic) != MAGIC {
            return Err(BadMessage::Magic);
        }
        let (version, rest) = rest.split_first_chunk().ok_or(BadMessage::Length)?;
        let version = u32::from_ne_bytes(*version);
        if version != VERSION {
            return Err(BadMessage::Version(version));
        }
        let (kind, body) = rest.split_first_chunk().ok_or(BadMessage::Length)?;
        match u32::from_ne_bytes(*kind) {
            KIND_HELLO => {
                let [vf, pid, uid, guid, ifindex, settings, nonce, addr, value, capacity] =
                    get(body)?;
                Ok(Self::Hello(Hello {
                    vf: narrow(vf)?,
                    pid: narrow(pid)?,
                    uid: narrow(uid)?,
                    nic: NicIdentity { guid, ifindex: narrow(ifindex)?, settings },
                    nonce,
                    probe: Probe { addr, value },
                    capacity,
                }))
            }
            KIND_WELCOME => {
                let [vf, pid, uid, nonce, addr, value] = get(body)?;
                Ok(Self::Welcome(Welcome {
                    vf: narrow(vf)?,
                    pid: narrow(pid)?,
                    uid: narrow(uid)?,
                    nonce,
                    probe: Probe { addr, value },
                }))
            }
            KIND_REFUSED => {
                // Control characters of a stranger do not belong in our log.
                let words = String::from_utf8_lossy(&body[..body.len().min(WORDS_MAX)]);
                Ok(Self::Refused(words.chars().filter(|c| !c.is_control()).collect()))
            }
            KIND_PING => get(body).map(|[]| Self::Ping),
            KIND_PONG => get(body).and_then(|[vf]| Ok(Self::Pong { vf: narrow(vf)? })),
            KIND_WAKE => get(body).map(|[]| Self::Wake),
            KIND_LOOK => get(body).map(|[]| Self::Look),
            KIND_SHOWN => get(body).map(|[]| Self::Shown),
            kind => Err(BadMessage::Kind(kind)),
        }
    }

    /// Sends the message and copies of `fds` (at most [`FDS_MAX`]), without waiting.
    pub(crate) fn send(&self, socket: &PeerSocket, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        socket.look()?;
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = self.encode();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
        Ok(())
    }
}

/// What [`recv`] found.
#[derive(Debug)]
pub(crate) enum Received {
    /// A packet, with the descriptors it carried.
    Message(Result<Message, BadMessage>, Vec<OwnedFd>),
    /// A packet of another user that brings descriptors. The packet and its descriptors are still
    /// in the socket: a thread that receives them may have to wait.
    Brings(Result<Message, BadMessage>),
    /// Nothing yet.
    Nothing,
    /// The other end was closed.
    Closed,
}

/// Receives one message without waiting, unless it is from another user and brings descriptors.
pub(crate) fn recv(socket: &PeerSocket) -> Received {
    let mut bytes = [0; MESSAGE_MAX];
    match socket.next(&mut bytes) {
        Next::Brings(length) => Received::Brings(Message::decode(&bytes[..length])),
        Next::Expected => receive(socket.as_fd()),
        Next::Nothing => Received::Nothing,
        Next::Closed => Received::Closed,
    }
}

/// Receives one message without waiting, whatever it brings.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Received {
    let mut bytes = [0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FDS_MAX))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut iov = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, &mut iov, &mut control, flags) {
            Ok(got) => {
                // The kernel closes descriptors beyond the space; dropping `control` closes those
                // that are not taken.
                let fds: Vec<_> = control
                    .drain()
                    .filter_map(|m| match m {
                        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                        _ => None,
                    })
                    .flatten()
                    .collect();
                if got.bytes == 0 {
                    return Received::Closed;
                }
                let message = if got.flags.contains(ReturnFlags::CTRUNC) {
                    Err(BadMessage::Descriptors)
                } else if got.flags.contains(ReturnFlags::TRUNC) {
                    Err(BadMessage::Length)
                } else {
                    Message::decode(&bytes[..got.bytes])
                };
                return Received::Message(message, fds);
            }
            // The peer closed with our message unread: its last messages come after the error,
            // which is reported once.
            Err(Errno::CONNRESET | Errno::INTR) => {}
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::Closed,
        }
    }
}

fn put(out: &mut Vec<u8>, words: &[u64]) {
    out.extend(words.iter().flat_map(|w| w.to_ne_bytes()));
}

fn get<const N: usize>(body: &[u8]) -> Result<[u64; N], BadMessage> {
    let (words, rest) = body.as_chunks::<8>();
    let words: &[[u8; 8]; N] = words.try_into().map_err(|_| BadMessage::Length)?;
    if rest.is_empty() { Ok(words.map(u64::from_ne_bytes)) } else { Err(BadMessage::Length) }
}

fn narrow<T: TryFrom<u64>>(word: u64) -> Result<T, BadMessage> {
    T::try_from(word).map_err(|_| BadMessage::Length)
}

#[cfg(test)]
mod tests {
    use descriptors::PeerCred;
    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn samples() -> Vec<Message> {
        let nic = NicIdentity { guid: 7, ifindex: 3, settings: 9 };
        let probe = Probe { addr: 0x1000, value: u64::MAX };
        let hello = Hello { vf: 1023, pid: 1, uid: 0, nic, nonce: 5, probe, capacity: 4096 };
        let welcome = Welcome { vf: 1, pid: 2, uid: 3, nonce: 4, probe };
        vec![
            Message::Hello(hello),
            Message::Welcome(welcome),
            Message::Refused("no, because".into()),
            Message::Ping,
            Message::Pong { vf: 77 },
            Message::Wake,
            Message::Look,
            Message::Shown,
        ]
    }

    #[test]
    fn every_message_survives_a_round_trip() {
        for message in samples() {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        assert_eq!(Message::Wake.encode(), WAKE);
    }

    #[test]
    fn other_versions_are_distinguished_from_strangers() {
        let mut bytes = Message::Ping.encode();
        bytes[8..12].copy_from_slice(&99_u32.to_ne_bytes());
        assert_eq!(Message::decode(&bytes), Err(BadMessage::Version(99)));
        assert_eq!(Message::decode(b"GET / HTTP/1.1"), Err(BadMessage::Magic));
        assert_eq!(Message::decode(b""), Err(BadMessage::Magic));
    }

    /// A message that arrives between the peek and the receive has not been checked.
    #[test]
    fn descriptors_of_another_user_are_never_received_unchecked() {
        const MESSAGES: usize = 1_000;
        // A number that no user has: (uid_t) -1.
        let nobody = PeerCred { pid: None, uid: u32::MAX };
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map(|(ours, theirs)| (PeerSocket::new(ours, nobody), theirs))
                .expect("a pair");
        // Each is sent while the other thread polls for it.
        let (next, wanted) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let theirs = PeerSocket::new(theirs, nobody);
                while wanted.recv().is_ok() {
                    Message::Ping.send(&theirs, &[theirs.as_fd()]).expect("room for one");
                }
            });
            let next = next;
            for n in 0..MESSAGES {
                next.send(()).expect("it waits for that");
                let found = loop {
                    match recv(&ours) {
                        Received::Nothing => {}
                        found => break found,
                    }
                };
                assert!(matches!(found, Received::Brings(Ok(Message::Ping))), "{n}: {found:?}");
                drop(receive(ours.as_fd()));
            }
        });
    }

    proptest! {
        #[test]
        fn anything_decodes_or_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::decode(&bytes);
        }

        #[test]
        fn damaged_messages_decode_or_are_refused(which in 0..8_usize, at: usize, to: u8) {
            let mut bytes = samples()[which].encode();
            let at = at % bytes.len();
            bytes[at] = to;
            let _ = Message::decode(&bytes);
            bytes.truncate(at);
            let _ = Message::decode(&bytes);
        }
    }
}

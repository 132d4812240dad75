//! Messages between processes that share a GPU: one request and one answer per connection. Messages
//! are a fixed number of integers; a [`Told`] answer has text after these.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use descriptors::strangers::{self, PeerSocket};
use descriptors::{PrivateFd, peer_cred};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::act::ByHand;
use crate::place::Domain;
use crate::pools::Pools;
use crate::view::LONGEST;

/// How many processes may share a GPU at a time.
pub(crate) const MEMBERS: u8 = 64;

/// How long an answer may take. An eviction copies a buffer first.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long an act by hand may take: it may have to copy all buffers of a process.
const PATIENCE_BY_HAND: Duration = Duration::from_secs(60);

/// Version of the messages.
const VERSION: u64 = 1;
/// Words of a message, in either direction.
const WORDS: usize = 5;

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// May I have the memory?
    Join { geometry: u64 },
    /// Move this buffer of yours out of the way.
    Evict { ledger: u64, bo: u64, only_out_of_bar: bool },
    /// What do you have, of buffers with a number above this one?
    Look { after: u64 },
    /// Do something to the GPU, or to a buffer of yours, or to all.
    Act { ledger: u64, what: ByHand, buffer: Option<u64> },
}

/// A text answer, or the lack of one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Text {
        pid: Option<u32>,
        said: Vec<u8>,
    },
    /// No process has this number, or it belongs to another user.
    Nobody,
    /// A process has it, but does not answer.
    Silence {
        pid: Option<u32>,
    },
}

/// An answer, or the lack of one.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The ledger, VRAM and GTT.
    Memory([OwnedFd; 3]),
    /// The memory is not as you think.
    Otherwise,
    Done,
    NotNow,
    Never,
    /// No process has this number.
    Nobody,
    /// A process has it, but does not answer or is not one of ours.
    Silence,
}

/// The names of one GPU's sockets.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    prefix: String,
}

/// The process that asked, waiting for an answer.
pub(crate) struct Caller {
    socket: PeerSocket,
}

impl Name {
    pub(crate) fn new(gpu: &str) -> Self {
        Self { prefix: format!("{}{gpu}/", Self::prefix_of_user()) }
    }

    /// The prefix of the names of all sockets of this user.
    pub(crate) fn prefix_of_user() -> String {
        let uid = rustix::process::geteuid().as_raw();
        format!("peerdma/gpu/{uid}/")
    }

    /// Keeps other processes from joining until it is dropped.
    pub(crate) fn door(&self) -> Result<OwnedFd, Errno> {
        let socket = socket()?;
        rustix::net::bind(&socket, &self.address("door")?)?;
        Ok(socket)
    }

    pub(crate) fn listen(&self, member: u8) -> Result<OwnedFd, Errno> {
        let socket = socket()?;
        // Questions carry no descriptors.
        strangers::refuse_descriptors(&socket);
        rustix::net::bind(&socket, &self.address(&member.to_string())?)?;
        rustix::net::listen(&socket, 64)?;
        Ok(socket)
    }

    /// Whether a process has this number.
    pub(crate) fn is_taken(&self, member: u8) -> bool {
        !matches!(self.connect(member), Err(Errno::CONNREFUSED))
    }

    pub(crate) fn ask(&self, member: u8, ask: &Ask) -> Answer {
        let socket = match self.connect(member) {
            Ok(socket) => socket,
            Err(Errno::CONNREFUSED) => return Answer::Nobody,
            Err(_) => return Answer::Silence,
        };
        if !socket.is_ours() {
            tracing::warn!("{}{member} is held by another user", self.prefix);
            return Answer::Silence;
        }
        strangers::take_descriptors(&socket);
        let said = encode(ask);
        if rustix::net::send(&socket, &said, SendFlags::NOSIGNAL) != Ok(said.len()) {
            return Answer::Silence;
        }
        receive_answer(&socket).unwrap_or(Answer::Silence)
    }

    /// Asks what a process has.
    pub(crate) fn look(&self, member: u8, after: u64) -> Told {
        self.told(member, &Ask::Look { after }, PATIENCE)
    }

    /// Has a process perform an act.
    pub(crate) fn tell(&self, member: u8, ask: &Ask) -> Told {
        self.told(member, ask, PATIENCE_BY_HAND)
    }

    fn told(&self, member: u8, ask: &Ask, patience: Duration) -> Told {
        let socket = match self.connect(member) {
            Ok(socket) if socket.is_ours() => socket,
            Err(Errno::AGAIN) => return Told::Silence { pid: None },
            _ => return Told::Nobody,
        };
        let pid = peer_cred(socket.as_fd()).ok().and_then(|cred| cred.pid);
        // TIMEOUT: as long as the request may take.
        let limit = sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(patience));
        let question = encode(ask);
        if limit.is_err()
            || rustix::net::send(&socket, &question, SendFlags::NOSIGNAL) != Ok(question.len())
        {
            return Told::Silence { pid };
        }
        let mut said = vec![0; WORDS * 8 + LONGEST];
        match rustix::net::recv(&socket, &mut said[..], RecvFlags::TRUNC) {
            Ok((_, len)) if (WORDS * 8..=said.len()).contains(&len) && word(&said, 0) == TEXT => {
                said.truncate(len);
                Told::Text { pid, said: said.split_off(WORDS * 8) }
            }
            _ => Told::Silence { pid },
        }
    }

    /// A connection to a process, whoever that is. It accepts no descriptors, if the kernel can
    /// refuse them.
    fn connect(&self, member: u8) -> Result<PeerSocket, Errno> {
        let socket = socket()?;
        set_patience(&socket)?;
        let is_sealed = strangers::refuse_descriptors(&socket);
        rustix::net::connect(&socket, &self.address(&member.to_string())?)?;
        let cred = peer_cred(socket.as_fd())?;
        Ok(PeerSocket::born(socket, cred, is_sealed))
    }

    fn address(&self, what: &str) -> Result<SocketAddrUnix, Errno> {
        SocketAddrUnix::new_abstract_name(format!("{}{what}", self.prefix).as_bytes())
    }
}

/// Waits for the next question of a process of this user. `None` when the socket was shut down.
pub(crate) fn next(listener: &PrivateFd) -> Option<(Ask, Caller)> {
    loop {
        if !strangers::has_room() {
            std::thread::sleep(Duration::from_millis(50));
        }
        if !listener.is_ours() {
            return None;
        }
        let socket = match rustix::net::accept_with(listener.as_fd(), SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::INVAL | Errno::BADF | Errno::NOTSOCK) => return None,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                // Nothing notifies us when there are free descriptors again.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            Err(_) => continue,
        };
        let Ok(cred) = peer_cred(socket.as_fd()) else { continue };
        // Nothing is read from another user; its descriptors are closed where nobody waits for it.
        let socket = PeerSocket::new(socket, cred);
        if !socket.is_ours() || set_patience(&socket).is_err() {
            continue;
        }
        let mut said = [0; WORDS * 8];
        // A process that only checks whether we are alive sends nothing.
        let Ok((len, _)) = rustix::net::recv(&socket, &mut said[..], RecvFlags::empty()) else {
            continue;
        };
        let caller = Caller { socket };
        // If the sender gave up waiting (we may have been stopped), the request must not be carried
        // out now.
        if len == said.len()
            && !caller.gave_up()
            && let Some(ask) = decode(&said)
        {
            return Some((ask, caller));
        }
    }
}

impl Caller {
    pub(crate) fn answer(&self, answer: &Answer) {
        let code = match answer {
            Answer::Memory(_) | Answer::Nobody | Answer::Silence => return,
            Answer::Otherwise => OTHERWISE,
            Answer::Done => DONE,
            Answer::NotNow => NOT_NOW,
            Answer::Never => NEVER,
        };
        // A process that did not wait for the answer does not get it.
        let _ = rustix::net::send(&self.socket, &words([code, 0, 0, 0, 0]), SendFlags::NOSIGNAL);
    }

    /// Sends a text answer.
    pub(crate) fn tell(&self, text: &[u8]) {
        let mut said = words([TEXT, text.len() as u64, 0, 0, 0]).to_vec();
        said.extend(text);
        let _ = rustix::net::send(&self.socket, &said, SendFlags::NOSIGNAL);
    }

    /// Whether the process that asked no longer waits.
    pub(crate) fn gave_up(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        !matches!(rustix::net::recv(&self.socket, &mut [0; 1][..], flags), Err(Errno::AGAIN))
    }

    pub(crate) fn send_memory(&self, pools: &Pools) {
        let (ledger, vram) = (pools.ledger.file(), pools.file(Domain::Vram));
        let files = [ledger, vram, pools.file(Domain::Gtt)];
        if !files.iter().all(|file| file.is_ours()) {
            return self.answer(&Answer::Never);
        }
        let files = files.map(AsFd::as_fd);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        let said = words([MEMORY, 0, 0, 0, 0]);
        let parts = [IoSlice::new(&said)];
        let _ = rustix::net::sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::NOSIGNAL);
    }
}

const MEMORY: u64 = 1;
const OTHERWISE: u64 = 2;
const DONE: u64 = 3;
const NOT_NOW: u64 = 4;
const NEVER: u64 = 5;
const TEXT: u64 = 6;

const JOIN: u64 = 1;
const EVICT: u64 = 2;
const LOOK: u64 = 3;
const ACT: u64 = 4;

/// The commands, in the order of their numbers.
const BY_HAND: [ByHand; 5] =
    [ByHand::Evict, ByHand::MoveToVram, ByHand::MoveToGtt, ByHand::Reset, ByHand::Unplug];

fn encode(ask: &Ask) -> [u8; WORDS * 8] {
    words(match *ask {
        Ask::Join { geometry } => [VERSION, JOIN, geometry, 0, 0],
        Ask::Evict { ledger, bo, only_out_of_bar } => {
            [VERSION, EVICT, ledger, bo, only_out_of_bar.into()]
        }
        Ask::Look { after } => [VERSION, LOOK, after, 0, 0],
        Ask::Act { ledger, what, buffer } => {
            // Buffers are counted from 1.
            [VERSION, ACT, ledger, what as u64, buffer.unwrap_or(0)]
        }
    })
}

fn decode(said: &[u8; WORDS * 8]) -> Option<Ask> {
    let word = |n: usize| word(said, n);
    match (word(0), word(1)) {
        (VERSION, JOIN) => Some(Ask::Join { geometry: word(2) }),
        (VERSION, EVICT) => {
            Some(Ask::Evict { ledger: word(2), bo: word(3), only_out_of_bar: word(4) != 0 })
        }
        (VERSION, LOOK) => Some(Ask::Look { after: word(2) }),
        (VERSION, ACT) => {
            let what = usize::try_from(word(3)).ok().and_then(|what| BY_HAND.get(what))?;
            let buffer = Some(word(4)).filter(|buffer| *buffer > 0);
            Some(Ask::Act { ledger: word(2), what: *what, buffer })
        }
        // Another version joins another GPU, by its own protocol.
        (_, JOIN) => Some(Ask::Join { geometry: 0 }),
        _ => None,
    }
}

fn word(said: &[u8], n: usize) -> u64 {
    let bytes = said[n * 8..][..8].try_into();
    u64::from_le_bytes(bytes.expect("eight bytes"))
}

fn words(words: [u64; WORDS]) -> [u8; WORDS * 8] {
    let mut bytes = [0; WORDS * 8];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn receive_answer(socket: &PeerSocket) -> Option<Answer> {
    let mut said = [0; WORDS * 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut said)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket, &mut parts, &mut ancillary, flags).ok()?;
    let files: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    if got.bytes != said.len() {
        return None;
    }
    let code = u64::from_le_bytes(said[..8].try_into().ok()?);
    Some(match code {
        MEMORY => Answer::Memory(files.try_into().ok()?),
        OTHERWISE => Answer::Otherwise,
        DONE => Answer::Done,
        NOT_NOW => Answer::NotNow,
        NEVER => Answer::Never,
        _ => return None,
    })
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// TIMEOUT: a stopped process must not stop us.
fn set_patience(socket: impl AsFd) -> Result<(), Errno> {
    for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, timeout, Some(PATIENCE))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_a_round_trip_and_nonsense_is_refused() {
        let asks = [
            Ask::Join { geometry: 7 },
            Ask::Evict { ledger: 1, bo: u64::MAX, only_out_of_bar: true },
            Ask::Look { after: 9 },
            Ask::Act { ledger: 3, what: ByHand::Evict, buffer: None },
            Ask::Act { ledger: 3, what: ByHand::Unplug, buffer: Some(7) },
        ];
        for ask in asks {
            assert_eq!(decode(&encode(&ask)), Some(ask));
        }
        assert_eq!(decode(&words([VERSION, 9, 0, 0, 0])), None);
        assert_eq!(decode(&words([VERSION, ACT, 0, BY_HAND.len() as u64, 0])), None);
        assert_eq!(decode(&words([9, EVICT, 0, 0, 0])), None);
        assert_eq!(decode(&words([9, JOIN, 5, 0, 0])), Some(Ask::Join { geometry: 0 }));
    }
}

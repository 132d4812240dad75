//! What the processes of a NIC show of their objects to other processes of their user: how one
//! asks, and how one answers.
//!
//! The answer is a sealed memory file, so that neither end waits for the other, however much it is;
//! it is read and never mapped. What the bytes mean is not known here.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use descriptors::PeerCred;
use descriptors::strangers::PeerSocket;
use rustix::fs::{MemfdFlags, SealFlags};

use super::list::{comm, held, wait};
use super::message::{Message, Received, recv};
use super::socket::dial;

/// The most bytes that one process may answer, and all of them together.
const ANSWER_MAX: u64 = 32 << 20;
const ANSWERS_MAX: u64 = 256 << 20;

/// Seals of an answer: it is as long as it says, and changes no more.
const SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// A process of our user that asked for our objects, and waits.
#[derive(Debug)]
pub struct Asker(pub(super) PeerSocket);

impl Asker {
    /// Answers it. It may have gone, and nobody waits for it.
    ///
    /// # Errors
    ///
    /// If there is no memory, or no descriptor, for the answer.
    pub fn show(self, bytes: &[u8]) -> io::Result<()> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("peerdma-view", flags)?;
        let mut left = bytes;
        while !left.is_empty() {
            let written = rustix::io::write(&file, left)?;
            left = &left[written..];
        }
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        // A process that does not wait for its answer gets none.
        let _ = Message::Shown.send(&self.0, &[file.as_fd()]);
        Ok(())
    }
}

/// A process that holds a VF, and what it showed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seen {
    /// Its VF.
    pub vf: u16,
    /// Its process id, or `None` if it is in a pid namespace we cannot see.
    pub pid: Option<u32>,
    /// Its effective uid.
    pub uid: u32,
    /// Its name, if /proc shows it.
    pub comm: Option<String>,
    /// Its answer.
    pub shown: Shown,
}

/// What a process showed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shown {
    /// Its objects, in bytes that are not checked yet.
    Bytes(Vec<u8>),
    /// It did not answer in time: it is stopped, or busy.
    Nothing,
    /// It did not, or we did not ask: the reason in words.
    Refused(String),
}

/// Asks all processes of our user that hold a VF of `nic` in this network namespace, and lists the
/// others, too. Waits for at most `patience` in total.
///
/// # Errors
/// If /proc/net/unix cannot be read.
pub fn look(nic: &str, patience: Duration) -> io::Result<Vec<Seen>> {
    let mut asked: Vec<_> = held(nic)?.into_iter().filter_map(|vf| Asked::new(nic, vf)).collect();
    let deadline = Instant::now() + patience;
    let mut room = ANSWERS_MAX;
    while wait(asked.iter().filter_map(|asked| Some(asked.socket.as_ref()?.as_fd())), deadline)? {
        asked.iter_mut().for_each(|asked| asked.listen(&mut room));
    }
    Ok(asked.into_iter().map(Asked::into_seen).collect())
}

struct Asked {
    vf: u16,
    /// `None` once it has answered.
    socket: Option<PeerSocket>,
    cred: PeerCred,
    shown: Shown,
}

impl Asked {
    /// Processes that have ended since the table was read are not listed.
    fn new(nic: &str, vf: u16) -> Option<Self> {
        let (socket, cred) = dial(nic, vf, true).ok()?;
        let asked = |socket, shown| Some(Self { vf, socket, cred, shown });
        if !cred.is_same_user() {
            return asked(None, Shown::Refused("it belongs to another user".to_owned()));
        }
        match Message::Look.send(&socket, &[]) {
            Ok(()) => asked(Some(socket), Shown::Nothing),
            Err(error) => asked(None, Shown::Refused(format!("it cannot be asked: {error}"))),
        }
    }

    fn listen(&mut self, room: &mut u64) {
        let Some(socket) = &self.socket else { return };
        self.shown = match recv(socket) {
            Received::Nothing => return,
            Received::Message(Ok(Message::Shown), files) => match read(files, *room) {
                Ok(bytes) => {
                    *room -= bytes.len() as u64;
                    Shown::Bytes(bytes)
                }
                Err(reason) => Shown::Refused(reason),
            },
            Received::Message(Ok(Message::Refused(words)), _) => Shown::Refused(words),
            Received::Message(Err(bad), _) => Shown::Refused(bad.to_string()),
            Received::Closed => Shown::Refused("it hung up on the question".to_owned()),
            Received::Message(..) | Received::Brings(_) => {
                Shown::Refused("it answered something else".to_owned())
            }
        };
        self.socket = None;
    }

    fn into_seen(self) -> Seen {
        let PeerCred { pid, uid } = self.cred;
        Seen { vf: self.vf, pid, uid, comm: pid.and_then(comm), shown: self.shown }
    }
}

/// The bytes of the one file of an answer. A file with these seals is one in memory: reading it
/// waits for nobody.
fn read(mut files: Vec<OwnedFd>, room: u64) -> Result<Vec<u8>, String> {
    let (Some(file), true) = (files.pop(), files.is_empty()) else {
        return Err("its answer has no file, or several".to_owned());
    };
    let bad = |errno: rustix::io::Errno| format!("the file of its answer: {errno}");
    let seals = rustix::fs::fcntl_get_seals(&file).map_err(bad)?;
    if !seals.contains(SEALS) {
        return Err(format!("the file of its answer can still change: it has seals {seals:?}"));
    }
    let length = rustix::fs::fstat(&file).map_err(bad)?.st_size;
    let length = u64::try_from(length).unwrap_or(u64::MAX);
    if length > ANSWER_MAX.min(room) {
        return Err(format!("its answer has {length} bytes, more than there is room for"));
    }
    // CAST: checked above.
    let mut bytes = vec![0; length as usize];
    let mut at = 0;
    while at < bytes.len() {
        match rustix::io::pread(&file, &mut bytes[at..], at as u64).map_err(bad)? {
            0 => return Err("the file of its answer ends early".to_owned()),
            got => at += got,
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::{Claim, Event, NicIdentity};
    use super::*;

    fn claim(test: &str) -> (String, Claim) {
        let nic = format!("look-{test}-{}", std::process::id());
        let identity = NicIdentity { guid: 1, ifindex: 1, settings: 1 };
        let claim = Claim::new(&nic, identity).expect("a VF");
        (nic, claim)
    }

    /// Looks while the claim answers with `show`.
    fn look_while(nic: &str, claim: &mut Claim, mut show: impl FnMut(Asker)) -> Vec<Seen> {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let asker = scope.spawn(|| {
                let seen = look(nic, Duration::from_secs(60));
                done.store(true, Ordering::Release);
                seen
            });
            while !done.load(Ordering::Acquire) {
                for event in claim.poll_events() {
                    if let Event::Asked(asker) = event {
                        show(asker);
                    }
                }
                std::thread::yield_now();
            }
            asker.join().expect("no panic").expect("/proc is there")
        })
    }

    #[test]
    fn a_process_shows_its_objects_to_one_of_its_user() {
        let (nic, mut claim) = claim("show");
        let long = vec![7; 3 << 20];
        let seen = look_while(&nic, &mut claim, |asker| asker.show(&long).expect("memory"));
        let [seen] = seen.as_slice() else { panic!("one process: {seen:?}") };
        assert_eq!((seen.vf, seen.pid), (0, Some(std::process::id())));
        assert_eq!(seen.shown, Shown::Bytes(long));
    }

    #[test]
    fn a_socket_whose_name_is_no_text_hides_nobody() {
        let (nic, mut claim) = claim("name");
        let odd = super::super::socket::new_socket().expect("descriptors");
        let mut name = format!("{nic}-").into_bytes();
        name.extend([0xff, 0xfe]);
        let name = rustix::net::SocketAddrUnix::new_abstract_name(&name).expect("short");
        rustix::net::bind(&odd, &name).expect("free");
        let seen = look_while(&nic, &mut claim, |asker| asker.show(b"here").expect("memory"));
        assert_eq!(seen[0].shown, Shown::Bytes(b"here".to_vec()));
    }

    #[test]
    fn a_process_that_does_not_answer_holds_nobody_up() {
        let (nic, _claim) = claim("silent");
        let seen = look(&nic, Duration::from_millis(20)).expect("/proc is there");
        assert_eq!(seen[0].shown, Shown::Nothing);
    }

    #[test]
    fn a_process_that_hangs_up_or_sends_a_file_that_can_change_is_refused() {
        let (nic, mut claim) = claim("hostile");
        let seen = look_while(&nic, &mut claim, drop);
        assert!(matches!(&seen[0].shown, Shown::Refused(why) if why.contains("hung up")));
        let seen = look_while(&nic, &mut claim, |asker| {
            let file = rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING);
            let file = file.expect("memory");
            Message::Shown.send(&asker.0, &[file.as_fd()]).expect("it waits");
        });
        assert!(matches!(&seen[0].shown, Shown::Refused(why) if why.contains("still change")));
        let seen = look_while(&nic, &mut claim, |asker| {
            let (pipe, _other) = rustix::pipe::pipe().expect("descriptors");
            Message::Shown.send(&asker.0, &[pipe.as_fd()]).expect("it waits");
        });
        assert!(matches!(&seen[0].shown, Shown::Refused(_)), "a pipe");
        let seen = look_while(&nic, &mut claim, |asker| {
            Message::Shown.send(&asker.0, &[]).expect("it waits");
        });
        assert!(matches!(&seen[0].shown, Shown::Refused(why) if why.contains("no file")));
    }

    #[test]
    fn an_answer_that_is_too_long_is_not_read() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("long", flags).expect("memory");
        rustix::fs::ftruncate(&file, ANSWER_MAX + 1).expect("sparse");
        rustix::fs::fcntl_add_seals(&file, SEALS).expect("allowed");
        let refused = read(vec![file], u64::MAX).expect_err("too long");
        assert!(refused.contains("more than there is room for"), "{refused}");
    }
}

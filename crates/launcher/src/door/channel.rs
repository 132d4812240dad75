//! Messages between the front, the supervisor and the program: one per packet, with its
//! descriptors.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// The longest message: a tag and a path.
const ROOM: usize = 4200;

/// One end of the socket pair.
pub(super) struct Channel(OwnedFd);

/// One message.
#[derive(Debug)]
pub(super) enum Message {
    /// Program to supervisor: the listener of its filter.
    Filtered(OwnedFd),
    /// Program to supervisor: there is no filter, because of this errno.
    Unfiltered(i32),
    /// Supervisor to program: continue; the preload library finds the tree here, if it is used.
    Go(Option<PathBuf>),
    /// Supervisor to front: the program has started.
    Started { program: OwnedFd, door: Option<SharedDoor> },
    /// Supervisor to front: the program has ended with this wait status, and the supervisor ends
    /// too.
    Ended(i32),
    /// Supervisor to front: the program has ended, and left processes that need the supervisor.
    Left(i32),
    /// Front to supervisor: send the program this signal.
    Signal(i32),
}

/// What the front needs to take over from a supervisor.
#[derive(Debug)]
pub(super) struct SharedDoor {
    /// Where notifications arrive.
    pub(super) listener: OwnedFd,
    /// The root of the backing.
    pub(super) root: OwnedFd,
    /// Its directory, if it has a name; it must then be removed at the end.
    pub(super) named: Option<PathBuf>,
}

/// A socket pair for two processes.
pub(super) fn pair() -> io::Result<(Channel, Channel)> {
    let (a, b) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    Ok((Channel(a), Channel(b)))
}

impl Channel {
    /// Sends a message; it copies the descriptors.
    pub(super) fn send(&self, message: &Message) -> io::Result<()> {
        let mut text = Vec::new();
        let mut files: Vec<BorrowedFd<'_>> = Vec::new();
        match message {
            Message::Filtered(listener) => {
                text.push(b'f');
                files.push(listener.as_fd());
            }
            Message::Unfiltered(errno) => number(&mut text, b'u', *errno),
            Message::Go(sysfs) => named(&mut text, b'g', sysfs.as_deref()),
            Message::Started { program, door } => {
                named(&mut text, b's', door.as_ref().and_then(|door| door.named.as_deref()));
                files.push(program.as_fd());
                if let Some(door) = door {
                    files.extend([door.listener.as_fd(), door.root.as_fd()]);
                }
            }
            Message::Ended(status) => number(&mut text, b'e', *status),
            Message::Left(status) => number(&mut text, b'l', *status),
            Message::Signal(signal) => number(&mut text, b'k', *signal),
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
        }
        let text = [IoSlice::new(&text)];
        rustix::net::sendmsg(&self.0, &text, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for a message; `None` when the other side has gone.
    pub(super) fn receive(&self) -> io::Result<Option<Message>> {
        let mut text = [0; ROOM];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            let mut text = [IoSliceMut::new(&mut text)];
            rustix::net::recvmsg(&self.0, &mut text, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        });
        let length = match received {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(errno) => return Err(errno.into()),
        };
        let files = ancillary.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => files.collect(),
            _ => Vec::new(),
        });
        let files: Vec<OwnedFd> = files.collect();
        match text[..length].split_first() {
            None => Ok(None),
            Some((&tag, rest)) => {
                parse(tag, rest, files).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn number(text: &mut Vec<u8>, tag: u8, number: i32) {
    text.push(tag);
    text.extend(number.to_ne_bytes());
}

fn named(text: &mut Vec<u8>, tag: u8, path: Option<&std::path::Path>) {
    text.push(tag);
    text.extend(path.map_or(&[][..], |path| path.as_os_str().as_bytes()));
}

fn parse(tag: u8, rest: &[u8], files: Vec<OwnedFd>) -> Option<Message> {
    let number = || rest.try_into().ok().map(i32::from_ne_bytes);
    let path = (!rest.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(rest)));
    let mut files = files.into_iter();
    Some(match tag {
        b'f' => Message::Filtered(files.next()?),
        b'u' => Message::Unfiltered(number()?),
        b'g' => Message::Go(path),
        b's' => {
            let program = files.next()?;
            let door = match (files.next(), files.next()) {
                (Some(listener), Some(root)) => Some(SharedDoor { listener, root, named: path }),
                _ => None,
            };
            Message::Started { program, door }
        }
        b'e' => Message::Ended(number()?),
        b'l' => Message::Left(number()?),
        b'k' => Message::Signal(number()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_cross_with_their_descriptors() {
        let (here, there) = pair().unwrap();
        let fd = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let named = Some(PathBuf::from("/tmp/x"));
        let door = SharedDoor { listener: fd(), root: fd(), named: named.clone() };
        here.send(&Message::Started { program: fd(), door: Some(door) }).unwrap();
        here.send(&Message::Ended(256)).unwrap();
        here.send(&Message::Go(None)).unwrap();
        drop(here);
        match there.receive().unwrap() {
            Some(Message::Started { door: Some(door), .. }) => assert_eq!(door.named, named),
            other => panic!("{other:?}"),
        }
        assert!(matches!(there.receive().unwrap(), Some(Message::Ended(256))));
        assert!(matches!(there.receive().unwrap(), Some(Message::Go(None))));
        assert!(there.receive().unwrap().is_none());
    }
}

//! Event channels: entries behind a descriptor that a program may poll.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use descriptors::Known;
use device::cm::{ConnParam, EventKind};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    getsockname, recv, send, socket_with,
};

use super::endpoint::Endpoint;
use super::mcast::Join;
use super::{Answer, Failure};
use crate::abi::boundary::control;
use crate::abi::errno;
use crate::abi::object::Object;
use crate::abi::types::rdma::EventChannel;

/// What an endpoint has to tell.
#[derive(Debug)]
pub(super) enum What {
    /// Its address was resolved, or why not.
    Addr(Answer),
    /// Its route is resolved.
    Route,
    /// Something happened to its connection.
    Cm(EventKind),
    /// It listens, and somebody asks.
    Request {
        /// The endpoint made for the request.
        child: Arc<Endpoint>,
        /// What the peer said.
        param: ConnParam,
    },
    /// It joined a multicast group.
    Join(Arc<Join>),
    /// A name was resolved for it.
    AddrInfo,
    /// What the program wrote itself.
    User {
        /// Its status.
        status: c_int,
        /// Its argument.
        arg: u64,
    },
}

/// One event that waits.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) what: What,
}

/// The queue of a channel.
#[derive(Debug)]
pub(super) struct Channel {
    bell: Bell,
    queue: Mutex<VecDeque<Entry>>,
}

impl Channel {
    fn new() -> Answer<Self> {
        let bell = Bell::new().map_err(|error| {
            let what = format!("rdma_create_event_channel: {error}");
            Failure::new(error.raw_os_error(), what)
        })?;
        Ok(Self { bell, queue: Mutex::default() })
    }

    /// Adds an event.
    pub(super) fn push(&self, entry: Entry) {
        let mut queue = self.queue();
        queue.push_back(entry);
        if queue.len() == 1 {
            self.bell.ring();
        }
    }

    /// Takes the oldest event, which from then on waits for its acknowledgement. Waits for one
    /// unless the program made the descriptor non-blocking.
    pub(super) fn take(&self) -> Answer<Entry> {
        loop {
            let mut queue = self.queue();
            if let Some(entry) = queue.pop_front() {
                // Still under the lock, so that whoever destroys the endpoint waits for this event.
                entry.endpoint.acks.give();
                if queue.is_empty() {
                    self.bell.silence();
                }
                return Ok(entry);
            }
            drop(queue);
            self.bell.wait()?;
        }
    }

    /// Takes out the events of one endpoint.
    pub(super) fn remove(&self, endpoint: &Arc<Endpoint>) -> Vec<Entry> {
        self.remove_if(endpoint, |_| true)
    }

    /// Takes out those events of one endpoint that `is_it` says.
    pub(super) fn remove_if(
        &self,
        endpoint: &Arc<Endpoint>,
        is_it: impl Fn(&What) -> bool,
    ) -> Vec<Entry> {
        let mut queue = self.queue();
        let had = !queue.is_empty();
        let mut out = Vec::new();
        let mut rest = VecDeque::with_capacity(queue.len());
        for entry in queue.drain(..) {
            if Arc::ptr_eq(&entry.endpoint, endpoint) && is_it(&entry.what) {
                out.push(entry);
            } else {
                rest.push_back(entry);
            }
        }
        *queue = rest;
        if had && queue.is_empty() {
            self.bell.silence();
        }
        out
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A descriptor that is readable while it rings.
///
/// It is a datagram socket connected to itself, and not an eventfd, since only a socket can be
/// waited on without taking what it holds: the wait then ends as a read of the kernel's device
/// would, by `O_NONBLOCK` and by signals with and without `SA_RESTART`, and the queue alone decides
/// when it falls silent.
#[derive(Debug)]
struct Bell(Known);

impl Bell {
    fn new() -> rustix::io::Result<Self> {
        let fd = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        // The kernel finds a name (unix(7), autobind). Connected, the socket takes datagrams of its
        // peer only: its own.
        bind(&fd, &SocketAddrUnix::new_unnamed())?;
        connect(&fd, &getsockname(&fd)?)?;
        Ok(Self(Known::new(fd)))
    }

    fn ring(&self) {
        if self.0.look().is_ok() {
            let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    fn silence(&self) {
        if self.0.look().is_ok() {
            let _ = recv(&self.0, &mut [0; 1], RecvFlags::DONTWAIT);
        }
    }

    fn wait(&self) -> Answer {
        match self.0.look().and_then(|()| recv(&self.0, &mut [0; 1], RecvFlags::PEEK)) {
            Ok(_) => Ok(()),
            Err(error) => Err(Failure(error.raw_os_error())),
        }
    }
}

/// The library's part of a channel.
pub(super) struct OwnChannel {
    pub(super) channel: Arc<Channel>,
}

pub(super) type ChannelObject = Object<EventChannel, OwnChannel>;

/// Makes a channel.
pub(super) fn create() -> Answer<*mut EventChannel> {
    let channel = Channel::new()?;
    let c = EventChannel { fd: channel.bell.0.as_raw_fd() };
    Ok(ChannelObject::create(c, OwnChannel { channel: Arc::new(channel) }))
}

/// Makes a channel of a program, if there is a NIC: programs learn here that there is none.
fn create_first() -> Answer<*mut EventChannel> {
    // NICs do not go away: who found one need not look again.
    static FOUND: AtomicBool = AtomicBool::new(false);
    if !FOUND.load(Ordering::Relaxed) {
        if device::nics()?.is_empty() {
            let what = "rdma_create_event_channel: the configuration names no NIC";
            return Err(Failure::new(libc::ENODEV, what));
        }
        FOUND.store(true, Ordering::Relaxed);
    }
    create()
}

pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut EventChannel {
    control("rdma_create_event_channel", ptr::null_mut(), || match create_first() {
        Ok(channel) => channel,
        Err(failure) => {
            errno::set(failure.errno());
            ptr::null_mut()
        }
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut EventChannel) {
    control("rdma_destroy_event_channel", (), || {
        // SAFETY: contract: the channel is one of ours, and the program uses it no more.
        drop(unsafe { ChannelObject::destroy(channel) });
    });
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(bell: &Bell) -> bool {
        let mut fds = [PollFd::new(&bell.0, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn a_bell_rings_until_it_is_silenced() {
        let bell = Bell::new().unwrap();
        assert!(!is_readable(&bell));
        bell.ring();
        assert!(is_readable(&bell));
        assert_eq!(bell.wait(), Ok(()));
        assert!(is_readable(&bell), "waiting takes nothing");
        bell.silence();
        assert!(!is_readable(&bell));
        // Silence twice is silence.
        bell.silence();
        rustix::io::ioctl_fionbio(&bell.0, true).unwrap();
        assert_eq!(bell.wait().map_err(Failure::errno), Err(libc::EAGAIN));
    }

    #[test]
    fn nobody_else_can_ring() {
        let bell = Bell::new().unwrap();
        let name = getsockname(&bell.0).unwrap();
        let stranger =
            socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        assert!(connect(&stranger, &name).is_err());
        assert!(!is_readable(&bell));
    }
}

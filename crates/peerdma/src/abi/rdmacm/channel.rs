//! Event channels: entries behind a descriptor that a program may poll.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use descriptors::Known;
use device::cm::{ConnParam, EventKind};

use super::bell::Bell;
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
    pub(super) fn new() -> Answer<Self> {
        let bell = Bell::new().map_err(|error| {
            let what = format!("rdma_create_event_channel: {error}");
            Failure::new(error.raw_os_error(), what)
        })?;
        Ok(Self { bell, queue: Mutex::default() })
    }

    /// The descriptor that is readable while an event waits.
    pub(super) fn descriptor(&self) -> &Known {
        self.bell.descriptor()
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

/// The library's part of a channel.
pub(super) struct OwnChannel {
    pub(super) channel: Arc<Channel>,
}

pub(super) type ChannelObject = Object<EventChannel, OwnChannel>;

/// Makes a channel.
pub(super) fn create() -> Answer<*mut EventChannel> {
    let channel = Channel::new()?;
    let c = EventChannel { fd: channel.descriptor().as_raw_fd() };
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

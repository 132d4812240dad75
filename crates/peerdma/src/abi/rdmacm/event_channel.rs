//! Event channels as C has them: `struct rdma_event_channel`.

use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::channel::Channel;
use super::endpoint::Entry;
use super::{Answer, Failure};
use crate::abi::boundary::control;
use crate::abi::errno;
use crate::abi::object::Object;
use crate::abi::types::rdma::EventChannel;

/// The library's part of a channel.
pub(super) struct OwnChannel {
    pub(super) channel: Arc<Channel<Entry>>,
}

pub(super) type ChannelObject = Object<EventChannel, OwnChannel>;

/// Makes a channel.
pub(super) fn create() -> Answer<*mut EventChannel> {
    let channel = Channel::new()?;
    let c = EventChannel { fd: channel.descriptor().as_raw_fd() };
    Ok(ChannelObject::create(c, OwnChannel { channel: Arc::new(channel) }))
}

/// Makes a channel for a program, if there is a NIC: this call is where programs learn that there
/// is none.
fn create_first() -> Answer<*mut EventChannel> {
    // NICs do not go away: once one was found, nobody needs to look again.
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

//! Completion channels and completion queues: creation, arming, resizing, destruction.
//! [`super::poll`] reads them.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use device::{Kind, Refusal};

use super::acks::Acks;
use super::boundary::{control, data};
use super::errno;
use super::object::{given, same_device};
use super::own::context::{Open, opened};
use super::own::cq::{ChannelObject, CqObject, OwnChannel, OwnCq, lookup};
use super::own::pd::{PdObject, Role};
use super::poll;
use super::turn::Turn;
use super::types::context::Context;
use super::types::cq::{CompChannel, Cq, CqEx, CqInitAttrEx, ModerateCq, ModifyCqAttr};
use super::waiting::Waiting;

pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
    control("ibv_create_comp_channel", ptr::null_mut(), || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        errno::or_null(create_channel(context, open))
    })
}

fn create_channel(context: *mut Context, open: &Open) -> Result<*mut CompChannel, Refusal> {
    use std::os::fd::AsRawFd as _;
    let mut engine = open.hca.alive()?;
    let id = engine.create_channel(open.id)?;
    let fd = engine.channel_fd(id).expect("the channel was created just now").as_raw_fd();
    drop(engine);
    let own = OwnChannel {
        hca: Arc::clone(&open.hca),
        id,
        waiting: Waiting::default(),
        is_gone: AtomicBool::new(false),
    };
    Ok(ChannelObject::create(CompChannel { context, fd, refcnt: 0 }, Arc::new(own)))
}

pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    control("ibv_destroy_comp_channel", libc::EIO, || {
        // SAFETY: contract: the channel is one of ours.
        let own = unsafe { ChannelObject::own(channel) };
        let mut engine = own.hca.lock();
        if let Err(refusal) = engine.destroy_channel(own.id) {
            return errno::of(refusal.kind());
        }
        own.is_gone.store(true, Ordering::Relaxed);
        drop(engine);
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { ChannelObject::destroy(channel) });
        0
    })
}

pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    comp_vector: c_int,
) -> *mut Cq {
    control("ibv_create_cq", ptr::null_mut(), || {
        let wanted = Wanted {
            entries: u32::try_from(cqe).unwrap_or(0),
            cq_context,
            channel,
            comp_vector: u32::try_from(comp_vector).unwrap_or(u32::MAX),
            stamps: false,
        };
        // SAFETY: the same contract.
        errno::or_null(unsafe { create(context, &wanted) }).cast()
    })
}

/// Bits of [`CqInitAttrEx::comp_mask`] and of its flags.
mod mask {
    /// The flags are valid.
    pub(super) const FLAGS: u32 = 1;
    /// The parent domain is valid.
    pub(super) const PD: u32 = 1 << 1;
    /// One thread polls; or an overrun is not an error. Both only allow a library to do less.
    pub(super) const KNOWN_FLAGS: u32 = 1 | 1 << 1;
}

/// Both timestamps: in ticks of the device, and of the wall clock.
const WC_TIMES: u64 = 1 << 7 | 1 << 11;
/// What a completion can report here: the standard fields, the timestamps, and what tag matching
/// found.
const WC_FLAGS: u64 = 0x7f | WC_TIMES | 1 << 10;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut Context,
    attr: *mut CqInitAttrEx,
) -> *mut CqEx {
    control("ibv_create_cq_ex", ptr::null_mut(), || {
        // SAFETY: contract: the attributes are valid; only those that the mask names are read.
        let attr = unsafe { given(attr) };
        let flags = if attr.comp_mask & mask::FLAGS != 0 { attr.flags } else { 0 };
        let refused =
            if attr.comp_mask & !(mask::FLAGS | mask::PD) != 0 || flags & !mask::KNOWN_FLAGS != 0 {
                Some(format!("comp_mask {:#x}, flags {flags:#x}", attr.comp_mask))
            } else if attr.wc_flags & !WC_FLAGS != 0 {
                Some(format!("wc_flags {:#x}; {WC_FLAGS:#x} are possible", attr.wc_flags))
            } else {
                None
            };
        // SAFETY: contract: the mask says that the domain is valid, and so it is one of ours.
        let is_parent = |pd| matches!(unsafe { PdObject::lookup(pd) }.role, Role::Parent { .. });
        let created = match refused {
            Some(what) => {
                Err(Refusal::new(Kind::NotSupported, format!("ibv_create_cq_ex: {what}")))
            }
            // A CQ has no protection domain. A parent domain may be named, for what it adds to one.
            None if attr.comp_mask & mask::PD != 0 && !is_parent(attr.parent_domain) => {
                Err(Refusal::new(Kind::Invalid, "ibv_create_cq_ex: the PD is not a parent domain"))
            }
            None => {
                let wanted = Wanted {
                    entries: attr.cqe,
                    cq_context: attr.cq_context,
                    channel: attr.channel,
                    comp_vector: attr.comp_vector,
                    stamps: attr.wc_flags & WC_TIMES != 0,
                };
                // SAFETY: the same contract.
                unsafe { create(context, &wanted) }
            }
        };
        errno::or_null(created)
    })
}

/// What a program asks of a new queue.
struct Wanted {
    entries: u32,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    comp_vector: u32,
    /// Whether its completions have timestamps.
    stamps: bool,
}

/// Creates a queue. The context is one of ours, and so is the channel if it is not NULL.
unsafe fn create(context: *mut Context, wanted: &Wanted) -> Result<*mut CqEx, Refusal> {
    // SAFETY: the caller's promise.
    let open = unsafe { opened(context) };
    let channel = if wanted.channel.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        let channel = unsafe { ChannelObject::own(wanted.channel) };
        same_device(&open.hca, &channel.hca, "the channel");
        Some(channel.id)
    };
    // SAFETY: the structure is made of integers, pointers, and pointers to functions that may be
    // absent, for all of which zero is a value; so it is for a mutex and a condition.
    let mut c: CqEx = unsafe { mem::zeroed() };
    c.context = context;
    c.channel = wanted.channel;
    c.cq_context = wanted.cq_context;
    c.cqe = c_int::try_from(wanted.entries).unwrap_or(c_int::MAX);
    poll::fill(&mut c);

    // The engine returns the queue's address with its events, so the object comes first.
    let mut engine = open.hca.alive()?;
    let boxed = CqObject::reserve(c);
    let cookie = boxed.address() as u64;
    let id = engine.create_cq(open.id, wanted.entries, channel, wanted.comp_vector, cookie)?;
    if wanted.stamps {
        engine.stamp_completions();
    }
    drop(engine);
    let cq = boxed.create(
        |c| c.handle = id.handle(),
        OwnCq {
            hca: Arc::clone(&open.hca),
            id,
            comp_acks: Acks::default(),
            async_acks: Acks::default(),
            current: Turn::default(),
        },
    );
    if !wanted.channel.is_null() {
        // SAFETY: the caller's promise; the count is the library's alone to write.
        unsafe { (*wanted.channel).refcnt += 1 };
    }
    Ok(cq)
}

pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut Cq, cqe: c_int) -> c_int {
    control("ibv_resize_cq", libc::EIO, || {
        // SAFETY: contract: the queue is one of ours.
        let own = unsafe { lookup(cq) };
        let entries = u32::try_from(cqe).unwrap_or(0);
        let resized = own.hca.alive().and_then(|mut engine| engine.resize_cq(own.id, entries));
        errno::or_errno(resized.map(|()| {
            // SAFETY: contract: the queue is alive; the field is the library's to write.
            unsafe { (*cq).cqe = cqe };
        }))
    })
}

/// `IBV_CQ_ATTR_MODERATE`.
const MODERATE: u32 = 1;

pub(crate) unsafe extern "C" fn modify_cq(cq: *mut Cq, attr: *mut ModifyCqAttr) -> c_int {
    control("ibv_modify_cq", libc::EIO, || {
        // SAFETY: contract: the attributes are valid.
        let ModifyCqAttr { attr_mask, ref moderate } = *unsafe { given(attr) };
        // As `ib_uverbs_ex_modify_cq` of the kernel.
        match attr_mask {
            0 => return libc::EINVAL,
            MODERATE => {}
            _ => return libc::EOPNOTSUPP,
        }
        // SAFETY: contract: the queue is one of ours.
        let own = unsafe { lookup(cq) };
        let ModerateCq { cq_count, cq_period } = *moderate;
        let engine = own.hca.alive();
        errno::or_errno(engine.and_then(|mut e| e.moderate_cq(own.id, cq_count, cq_period)))
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    control("ibv_destroy_cq", libc::EIO, || {
        // SAFETY: contract: the queue is one of ours.
        let own = unsafe { lookup(cq) };
        let mut engine = own.hca.lock();
        if let Err(refusal) = engine.destroy_cq(own.id) {
            return errno::of(refusal.kind());
        }
        // In the child of a fork, events that the parent took are the parent's to acknowledge.
        let is_husk = engine.is_husk();
        drop(engine);
        if !is_husk {
            own.comp_acks.wait();
            own.async_acks.wait();
        }
        // SAFETY: contract: the queue is alive.
        let channel = unsafe { (*cq).channel };
        if !channel.is_null() {
            // SAFETY: a channel outlives its queues: destroying it earlier is refused.
            unsafe { (*channel).refcnt -= 1 };
        }
        // SAFETY: contract: the program uses the queue no more.
        drop(unsafe { CqObject::destroy(cq.cast()) });
        0
    })
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
    data("ibv_req_notify_cq", libc::EIO, || {
        // SAFETY: contract: the queue is one of ours.
        let own = unsafe { lookup(cq) };
        errno::or_errno(own.hca.req_notify_cq(own.id, solicited_only != 0))
    })
}

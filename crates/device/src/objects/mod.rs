//! The objects of the verbs: the device's part of each, and how the program learns of events.

pub(crate) mod bell;
pub(crate) mod charges;
pub(crate) mod comp_cntr;
pub(crate) mod cq;
pub(crate) mod events;
pub(crate) mod flows;
pub(crate) mod group;
pub(crate) mod tags;
pub(crate) mod uses;
pub(crate) mod xrc;

use std::collections::VecDeque;

use iba::EventType;
use slab::Slab;
use transport::Time;
use transport::wr::RecvWr;

use self::bell::Bells;
use self::charges::Charge;
use self::comp_cntr::CompCntr;
use self::cq::Cq;
use self::events::EventQueue;
use self::flows::{Flows, RwqTable};
use self::group::Group;
use self::tags::TagList;
use self::uses::{Use, Uses};
use self::xrc::{SrqXrc, Xrcd};
use crate::ids::{CqId, CtxId, PdId, QpId, SrqId};

/// A context: one of the opens of a device.
#[derive(Debug)]
pub(crate) struct Ctx {
    pub(crate) events: EventQueue<AsyncEvent>,
    pub(crate) _charge: Charge,
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) ctx: CtxId,
    /// Objects in it.
    pub(crate) uses: Uses,
    /// Handles of the program that are no objects here: address handles, parent domains, handles of
    /// the null region.
    pub(crate) handles: usize,
    pub(crate) _charge: Charge,
}

/// A completion channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) ctx: CtxId,
    pub(crate) events: EventQueue<CqId>,
    pub(crate) uses: Uses,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) ctx: CtxId,
    pub(crate) pd: PdId,
    pub(crate) cookie: u64,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// Below this many receives, an event is raised once; 0 is off.
    pub(crate) limit: u32,
    pub(crate) uses: Uses,
    /// Set for an XRC SRQ.
    pub(crate) xrc: Option<SrqXrc>,
    /// Set for an SRQ with tag matching.
    pub(crate) tm: Option<Box<TagList>>,
    pub(crate) queue: VecDeque<RecvWr>,
    /// What it uses.
    pub(crate) holds: Vec<Use>,
    pub(crate) _charge: Charge,
}

/// The subject of an asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventSource {
    /// A completion queue.
    Cq(CqId),
    /// A QP.
    Qp(QpId),
    /// A shared receive queue.
    Srq(SrqId),
    /// A port, from 1.
    Port(u32),
    /// The device.
    Device,
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_async_event")]
#[non_exhaustive]
pub struct AsyncEvent {
    /// What happened.
    pub event: EventType,
    /// The object that it concerns.
    pub source: EventSource,
    /// The cookie given when that object was made; 0 for ports and devices.
    pub cookie: u64,
}

/// The work to do for CQs.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// When events that are held back are due.
    pub(crate) moderated: Vec<(Time, CqId)>,
    /// CQs that overran, whose QPs must end.
    pub(crate) overruns: Vec<CqId>,
}

/// All objects except QPs and memory.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// Of events that their owners do not know of yet, and of the background thread.
    pub(crate) bells: Bells,
    pub(crate) ctxs: Slab<Ctx>,
    pub(crate) pds: Slab<Pd>,
    pub(crate) channels: Slab<Channel>,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) srqs: Slab<Srq>,
    pub(crate) xrcds: Slab<Xrcd>,
    pub(crate) groups: Vec<Group>,
    pub(crate) comp_cntrs: Slab<CompCntr>,
    pub(crate) flows: Flows,
    /// Indirection tables of receive side scaling.
    pub(crate) rwq_tables: Slab<RwqTable>,
    /// One for each address handle: they have no other state here.
    pub(crate) ahs: Vec<Charge>,
    pub(crate) due: Due,
}

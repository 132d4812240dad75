//! The objects of the verbs: what the device keeps for each, and how the program learns what
//! happened to them.

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

use self::comp_cntr::CompCntr;
use self::cq::Cq;
use self::events::EventQueue;
use self::flows::{Flows, RwqTable};
use self::group::Group;
use self::tags::TagList;
use self::uses::{Use, Uses};
use self::xrc::{SrqXrc, Xrcd};
use crate::ids::{CqId, CtxId, PdId, QpId, SrqId};

/// An open device, as one program part holds it.
#[derive(Debug)]
pub(crate) struct Ctx {
    pub(crate) events: EventQueue<AsyncEvent>,
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) ctx: CtxId,
    /// Objects in it.
    pub(crate) uses: Uses,
    /// What the program has in it that is not an object here: address handles, parent domains,
    /// names of the null region.
    pub(crate) handles: usize,
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
    /// Below this many receives an event is raised once; 0 is off.
    pub(crate) limit: u32,
    pub(crate) uses: Uses,
    /// If it is one of XRC.
    pub(crate) xrc: Option<SrqXrc>,
    /// If it is one of tag matching.
    pub(crate) tm: Option<Box<TagList>>,
    pub(crate) queue: VecDeque<RecvWr>,
    /// What it uses.
    pub(crate) holds: Vec<Use>,
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
    Port(u8),
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
    /// To what.
    pub source: EventSource,
    /// The cookie given when that object was made; 0 for ports and devices.
    pub cookie: u64,
}

/// The work to do for CQs.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// When events that are held back come at the latest.
    pub(crate) moderated: Vec<(Time, CqId)>,
    /// CQs that overran, whose QPs must end for it.
    pub(crate) overruns: Vec<CqId>,
}

/// All of them but QPs and memory.
#[derive(Debug, Default)]
pub(crate) struct Objects {
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
    /// How many address handles there are.
    pub(crate) ahs: u32,
    pub(crate) due: Due,
}

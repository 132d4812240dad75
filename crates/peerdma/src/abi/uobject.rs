//! What the kernel would check of an object: the context, which stands for its file, and the
//! handle, a number in it.
//!
//! A program can write both, as they are fields of the structures of `<infiniband/verbs.h>`. A call
//! that would reach the kernel finds its object by them, so a wrong one is ENOENT
//! (`rdma_lookup_get_uobject`). Here they must be those that the library wrote: the handle of
//! another object of the same kind is wrong, too, and does not name that object. Calls that a
//! provider answers in user space (posting, polling, acknowledging) look at neither.

use super::types::ah::Ah;
use super::types::comp_cntr::CompCntr;
use super::types::context::Context;
use super::types::cq::{CompChannel, CqEx};
use super::types::device::Device;
use super::types::dm::Dm;
use super::types::flow::{Flow, RwqIndTable, Wq};
use super::types::mr::{Mr, Mw};
use super::types::ops::VerbsContext;
use super::types::pd::{Pd, Td};
use super::types::qp::QpEx;
use super::types::rdma::{CmEvent, CmId, EventChannel};
use super::types::srq::{Srq, Xrcd};

/// What the kernel finds an object by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The pointer of its context, as an address.
    context: usize,
    handle: u32,
}

impl Identity {
    fn new(context: *mut Context, handle: u32) -> Self {
        Self { context: context.addr(), handle }
    }
}

/// A structure that stands for an object.
pub(crate) trait Uobject {
    /// What the kernel finds it by; the default if it does not.
    fn identity(&self) -> Identity {
        Identity::default()
    }
}

macro_rules! by_handle {
    ($($type:ty),* $(,)?) => {
        $(impl Uobject for $type {
            fn identity(&self) -> Identity {
                Identity::new(self.context, self.handle)
            }
        })*
    };
}

by_handle!(Pd, Mr, Mw, CqEx, Srq, Ah, Wq, Flow, Dm, CompCntr);

impl Uobject for QpEx {
    fn identity(&self) -> Identity {
        Identity::new(self.qp_base.context, self.qp_base.handle)
    }
}

impl Uobject for RwqIndTable {
    fn identity(&self) -> Identity {
        Identity::new(self.context, self.ind_tbl_handle.cast_unsigned())
    }
}

/// Its handle is not in what a program sees.
impl Uobject for Xrcd {
    fn identity(&self) -> Identity {
        Identity::new(self.context, 0)
    }
}

// Not an object of the kernel, or one that is found by a descriptor.
impl Uobject for CompChannel {}
impl Uobject for Device {}
impl Uobject for Td {}
impl Uobject for VerbsContext {}
// Objects of the connection manager have numbers that a program does not see.
impl Uobject for CmEvent {}
impl Uobject for CmId {}
impl Uobject for EventChannel {}

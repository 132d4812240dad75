//! Windows: keys for parts of memory that peers reach.

use std::ops::RangeBounds;

use iba::{Qpn, RKey};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{RemoteSlice, Shared};
use crate::{Kind, Mr, Mw, Refusal, Remote, Result};

/// A memory window of type 2: a key of its own for some values of a region, which one QP grants its
/// peer ([`aio::Qp::bind`](crate::aio::Qp::bind)) and which either side takes back, without a
/// registration. It gives access to nothing until it is bound, and to nothing once it is dropped.
///
/// It keeps its region, which cannot be given back before it. A request takes the window and gives
/// it back, so no window is bound twice at once.
#[derive(Debug)]
#[doc(alias = "ibv_mw")]
pub struct Window<T> {
    mw: Mw,
    bound: Option<Bound<T>>,
}

/// What a window grants.
#[derive(Debug)]
struct Bound<T> {
    by: Qpn,
    to: RemoteSlice<T>,
}

/// What a window is to be bound to: an offset in its region, a length, and the values there by the
/// region's own key.
pub(crate) struct Part<T> {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    values: RemoteSlice<T>,
}

impl<T: FromBytes + IntoBytes + Immutable> Shared<T> {
    /// A window on these values, which are registered with
    /// [`Access::MW_BIND`](crate::Access::MW_BIND).
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`] at the limit of windows.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn window(&self) -> Result<Window<T>> {
        Window::new(self.mr())
    }
}

impl<T> Window<T> {
    /// A window on a region that is an array of `T`, registered with
    /// [`Access::MW_BIND`](crate::Access::MW_BIND).
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`] at the limit of windows.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn new(mr: &Mr) -> Result<Self> {
        Ok(Self { mw: mr.window()?, bound: None })
    }

    /// What the peer may reach, while it may: to be sent to the peer.
    pub fn remote(&self) -> Option<RemoteSlice<T>> {
        self.bound.as_ref().map(|bound| bound.to)
    }

    /// The peer has invalidated a key ([`Message::invalidated`](crate::aio::Message::invalidated)).
    /// If it was this window's, it can be bound again, and the answer is true.
    pub fn note_invalidated(&mut self, key: RKey) -> bool {
        let is_own = self.bound.is_some() && self.mw.rkey() == key;
        if is_own {
            self.bound = None;
        }
        is_own
    }

    /// A part of its region, if the window can be bound to it.
    pub(crate) fn part(&self, range: impl RangeBounds<u64>) -> Result<Part<T>> {
        if let Some(bound) = &self.bound {
            let what = format!("bind_mw: the window is bound by QP {}", bound.by);
            return Err(Refusal::new(Kind::Busy, what));
        }
        let region = self.mw.region();
        let all = region.len().checked_div(size_of::<T>() as u64).unwrap_or(0);
        let values = RemoteSlice::new(region.remote(0), all)?.get(range);
        let values =
            values.filter(|values: &RemoteSlice<T>| !values.is_empty()).ok_or_else(|| {
                let what = format!("bind_mw: no values, or not among the {all} of the region");
                Refusal::new(Kind::Invalid, what)
            })?;
        let offset = values.remote().addr.wrapping_sub(region.remote(0).addr);
        Ok(Part { offset, length: values.byte_len(), values })
    }

    /// The key that is to be invalidated by a QP.
    pub(crate) fn key_of(&self, qp: Qpn) -> Result<RKey> {
        match &self.bound {
            Some(bound) if bound.by == qp => Ok(self.mw.rkey()),
            Some(bound) => {
                let by = bound.by;
                let what = format!("local_inv: the window is bound by QP {by}, not by QP {qp}");
                Err(Refusal::new(Kind::Invalid, what))
            }
            None => Err(Refusal::new(Kind::Invalid, "local_inv: the window is not bound")),
        }
    }

    /// It was bound.
    pub(crate) fn bind(&mut self, by: Qpn, part: &Part<T>) -> Result<RemoteSlice<T>> {
        let Remote { addr, .. } = part.values.remote();
        let to = RemoteSlice::new(Remote { addr, rkey: self.mw.rkey() }, part.values.len())?;
        self.bound = Some(Bound { by, to });
        Ok(to)
    }

    /// It was invalidated.
    pub(crate) fn unbind(&mut self) {
        self.bound = None;
    }

    pub(crate) fn mw(&self) -> &Mw {
        &self.mw
    }
}

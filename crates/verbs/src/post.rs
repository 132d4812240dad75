//! Posting in quantity: a list of requests in one call.

use device::EngineGuard;
use device::ids::QpId;
use transport::PostError;
use transport::wr::{Plain, RecvWr, Request, SendWr};

use crate::arm::Arm;
use crate::request::Origin;
use crate::{Pd, Qp, SendRequest, Slice, Srq};

/// The request of a list that a queue refused. Those before it are posted; it and those behind it
/// are not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {index} of the list: {error}")]
#[doc(alias = "bad_wr")]
#[non_exhaustive]
pub struct BadRequest {
    /// Its place in the list, from 0: how many are posted.
    pub index: usize,
    /// Why it was refused.
    pub error: PostError,
}

impl BadRequest {
    fn at(index: usize) -> impl FnOnce(PostError) -> Self {
        move |error| Self { index, error }
    }
}

/// How many sends of a list are posted before other threads have a turn.
const LOCKED: usize = 64;

/// A send queue that requests are posted to, one behind the other, without another's between them
/// on the software device.
pub(crate) enum Posting<'qp> {
    Soft(EngineGuard<'qp>, QpId),
    Hard(&'qp sysverbs::Qp),
}

impl Posting<'_> {
    /// Posts a request in its shortest form.
    #[inline]
    pub(crate) fn plain(&mut self, plain: Plain) -> Result<(), PostError> {
        match self {
            Self::Soft(engine, id) => engine.post_send(*id, plain),
            Self::Hard(qp) => {
                let mut wr = SendWr::EMPTY;
                plain.fill(&mut wr)?;
                qp.post_send(&wr, None, None)
            }
        }
    }

    /// Posts any request, for a QP of this domain.
    #[inline]
    pub(crate) fn send(&mut self, request: &SendRequest<'_>, pd: &Pd) -> Result<(), PostError> {
        let wr = request.check(pd)?;
        match self {
            Self::Soft(engine, id) => engine.post_send(*id, wr),
            Self::Hard(qp) => {
                let (ah, window) = request.hard();
                qp.post_send(wr, ah, window)
            }
        }
    }
}

impl Qp {
    /// Posts a list of sends, in order, until one is refused. The software device is locked once
    /// for many of them. A library gets SENDs, WRITEs and READs of a connected QP in lists of its
    /// own, and each other request by itself: datagrams, inline data, atomics.
    ///
    /// # Errors
    ///
    /// The first that was refused, and why: [`PostError::Full`] if the queue has no more room.
    #[doc(alias = "ibv_post_send")]
    pub fn post_sends(&self, requests: &[SendRequest<'_>]) -> Result<(), BadRequest> {
        match self.arm() {
            Arm::Soft(_) => {
                for (begin, some) in (0..).step_by(LOCKED).zip(requests.chunks(LOCKED)) {
                    let mut posting = self.posting();
                    for (index, request) in (begin..).zip(some) {
                        posting.send(request, self.pd()).map_err(BadRequest::at(index))?;
                    }
                }
                Ok(())
            }
            Arm::Hard(qp) => self.post_lists(qp, requests),
        }
    }

    /// Posts requests that need nothing but their slices as lists of the library's, and each other
    /// one by itself.
    fn post_lists(
        &self,
        qp: &sysverbs::Qp,
        requests: &[SendRequest<'_>],
    ) -> Result<(), BadRequest> {
        let mut done = 0;
        while done < requests.len() {
            let rest = &requests[done..];
            let wrs = rest.iter().map_while(|request| request.check(self.pd()).ok());
            let (posted, refused) = qp.post_plain_sends(wrs);
            done += posted;
            if let Some(error) = refused {
                return Err(BadRequest { index: done, error });
            }
            if let Some(request) = requests.get(done) {
                self.post_send(request).map_err(BadRequest::at(done))?;
                done += 1;
            }
        }
        Ok(())
    }

    /// Posts a list of receives, each with its id, in order, until one is refused.
    ///
    /// # Errors
    ///
    /// The first that was refused, and why: [`PostError::Full`] if the queue has no more room.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recvs(&self, receives: &[(u64, &[Slice<'_>])]) -> Result<(), BadRequest> {
        match self.arm() {
            Arm::Soft(on) => {
                let mut engine = on.lock_to_post();
                let post = |wr| engine.post_recv(on.id, wr);
                each(receives, self.pd(), post)
            }
            Arm::Hard(qp) => in_lists(receives, self.pd(), |wrs| qp.post_recvs(wrs)),
        }
    }
}

impl Srq {
    /// Posts a list of receives, each with its id, in order, until one is refused.
    ///
    /// # Errors
    ///
    /// The first that was refused, and why: [`PostError::Full`] if the queue has no more room.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recvs(&self, receives: &[(u64, &[Slice<'_>])]) -> Result<(), BadRequest> {
        match self.in_arm() {
            Arm::Soft(on) => {
                let mut engine = on.lock_to_post();
                let post = |wr| engine.post_srq_recv(on.id, wr);
                each(receives, self.pd(), post)
            }
            Arm::Hard(srq) => in_lists(receives, self.pd(), |wrs| srq.post_recvs(wrs)),
        }
    }
}

/// A receive, for a queue of a domain.
pub(crate) fn receive(wr_id: u64, local: &[Slice<'_>], pd: &Pd) -> Result<RecvWr, PostError> {
    let mut wr = RecvWr { wr_id, ..RecvWr::EMPTY };
    Origin::put(&mut wr.sges, local).check(pd)?;
    Ok(wr)
}

fn each(
    receives: &[(u64, &[Slice<'_>])],
    pd: &Pd,
    mut post: impl FnMut(RecvWr) -> Result<(), PostError>,
) -> Result<(), BadRequest> {
    for (index, (wr_id, local)) in receives.iter().enumerate() {
        let posted = receive(*wr_id, local, pd).and_then(&mut post);
        posted.map_err(BadRequest::at(index))?;
    }
    Ok(())
}

/// The same as lists of a library's.
fn in_lists(
    receives: &[(u64, &[Slice<'_>])],
    pd: &Pd,
    post: impl FnOnce(&[RecvWr]) -> (usize, Option<PostError>),
) -> Result<(), BadRequest> {
    let mut wrong = None;
    let wrs = receives.iter().map_while(|(wr_id, local)| {
        receive(*wr_id, local, pd).map_err(|error| wrong = Some(error)).ok()
    });
    let wrs: Vec<_> = wrs.collect();
    let (index, refused) = if wrs.is_empty() { (0, None) } else { post(&wrs) };
    match refused.or(wrong) {
        Some(error) => Err(BadRequest { index, error }),
        None => Ok(()),
    }
}

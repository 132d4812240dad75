//! Several requests that are posted together.

use std::iter;
use std::marker::PhantomData;

use super::error::Outcome;
use super::op::Op;
use super::qp::Qp;
use super::request::{Request, Work};
use crate::owned::{Local, LocalMut, RemoteSlice};
use crate::{PostError, Refusal};

/// Requests that are posted one behind the other, without another of the QP between them, and that
/// complete as one. If one fails, those behind it are flushed, and its error is the batch's.
///
/// On a reliable connection there is one completion for all of them, that of the last; the others
/// are not signaled, and complete only if they fail.
#[derive(Debug)]
#[must_use = "nothing is posted before `post` is awaited"]
pub struct Batch<'qp, B: Local> {
    qp: &'qp Qp,
    works: Vec<Work>,
    refusal: Option<Refusal>,
    of: PhantomData<B>,
}

impl Qp {
    /// Several requests with memory of one kind, which are posted together and complete as one.
    pub fn batch<B: Local>(&self) -> Batch<'_, B> {
        Batch { qp: self, works: Vec::new(), refusal: None, of: PhantomData }
    }
}

impl<B: Local> Batch<'_, B> {
    fn push(mut self, request: Request, memory: B) -> Self {
        self.works.push(Work::new(request, memory));
        self
    }

    /// Sends bytes to a receive of the peer.
    pub fn send(self, memory: B) -> Self {
        self.push(Request::Send { imm: None }, memory)
    }

    /// Sends bytes and a number to a receive of the peer.
    pub fn send_with_imm(self, memory: B, imm: u32) -> Self {
        self.push(Request::Send { imm: Some(imm) }, memory)
    }

    /// Sends bytes to a receive of the peer, and gives back what the peer granted by a window, as
    /// [`Qp::send_with_inv`].
    pub fn send_with_inv<T>(self, memory: B, granted: RemoteSlice<T>) -> Self {
        self.push(Request::send_with_inv(granted), memory)
    }

    /// Writes bytes to the front of memory of the peer.
    pub fn write<T>(self, memory: B, to: RemoteSlice<T>) -> Self {
        self.push(Request::write(to, None), memory)
    }

    /// Writes bytes to memory of the peer, and completes a receive there with a number.
    pub fn write_with_imm<T>(self, memory: B, to: RemoteSlice<T>, imm: u32) -> Self {
        self.push(Request::write(to, Some(imm)), memory)
    }

    /// How many requests it has.
    pub fn len(&self) -> usize {
        self.works.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    /// Posts them, when there is room for all, and waits until all have completed. The memory
    /// comes back in the order in which it was given.
    ///
    /// # Errors
    ///
    /// [`PostError::Full`] for more requests than the QP takes at once: then none is posted. None
    /// is posted either if one leaves its remote slice. If the QP refuses one, those before it are
    /// carried out. A library that refuses one of a reliable connection for a reason of its own
    /// leaves it in the error state.
    pub async fn post(self) -> Outcome<(), Vec<B>> {
        let Self { qp, works, refusal, .. } = self;
        let (capacity, count) = (qp.inner().capacity(), works.len());
        if count > capacity as usize {
            let memory = works.into_iter().map(|work| B::take_back(work.memory)).collect();
            return (Err(PostError::Full(capacity).into()), memory);
        }
        let mut works = works.into_iter();
        let Some(first) = works.next() else { return (Ok(()), Vec::new()) };
        let (result, memory) = Op::batch(qp, first, works.collect(), refusal).await;
        let all = iter::once(memory.first).chain(memory.more);
        (result.map(drop), all.map(B::take_back).collect())
    }
}

impl<B: LocalMut> Batch<'_, B> {
    /// Reads memory of the peer.
    pub fn read<T>(mut self, mut memory: B, from: RemoteSlice<T>) -> Self {
        if let Err(refusal) = memory.fit(from.byte_len()) {
            self.refusal.get_or_insert(refusal);
        }
        self.push(Request::read(from), memory)
    }
}

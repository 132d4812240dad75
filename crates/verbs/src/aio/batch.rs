//! Several requests that are posted together.

use std::marker::PhantomData;

use smallvec::SmallVec;

use super::error::{Error, Outcome};
use super::op::Op;
use super::qp::Qp;
use super::request::Request;
use super::table::Memory;
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
    requests: SmallVec<[Request; 1]>,
    memory: Memory,
    refusal: Option<Refusal>,
    of: PhantomData<B>,
}

impl Qp {
    /// Several requests with memory of one kind, which are posted together and complete as one.
    pub fn batch<B: Local>(&self) -> Batch<'_, B> {
        let (requests, memory) = (SmallVec::new(), Memory::new());
        Batch { qp: self, requests, memory, refusal: None, of: PhantomData }
    }
}

impl<B: Local> Batch<'_, B> {
    fn push(mut self, request: Request, memory: B) -> Self {
        self.requests.push(request);
        self.memory.push(memory.hold());
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
        self.requests.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
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
        let (result, memory) = self.run().await;
        (result, memory.into_iter().map(B::take_back).collect())
    }

    async fn run(self) -> (Result<(), Error>, Memory) {
        let inner = self.qp.inner();
        let capacity = inner.capacity();
        let count = u32::try_from(self.requests.len()).unwrap_or(u32::MAX);
        if count == 0 {
            return (Ok(()), self.memory);
        }
        if count > capacity {
            return (Err(PostError::Full(capacity).into()), self.memory);
        }
        let (result, memory) = Op::new(inner, self.requests, self.memory, self.refusal).await;
        (result.map(drop), memory)
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

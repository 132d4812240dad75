//! A queue pair whose requests are futures.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use iba::{AttrMask, QpAttr, QpState, Qpn, Srqn};

use super::error::{Error, Outcome};
use super::inner::Inner;
use super::op::Op;
use super::request::{Request, Work};
use crate::owned::{Local, LocalMut, RemoteSlice};
use crate::{Ah, ConnectOptions, Endpoint, Flush, Kind, Pd, Refusal, Remote, Wc};

/// A queue pair whose requests are futures. Clones are the same one; behind the last, it goes to
/// the error state, and what is in flight ends.
///
/// Nothing is posted before a future is polled first. Requests of one QP are carried out in the
/// order in which they are posted.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_qp")]
pub struct Qp {
    open: Arc<Open>,
    /// The shared queue of the peer that its requests name.
    srq: Option<Srqn>,
}

/// What the program holds.
#[derive(Debug)]
struct Open(Arc<Inner>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.leave_shared();
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        // A device that is gone completes nothing: then what is in flight is never given back.
        let _ = self.0.qp().modify(&attr, AttrMask::STATE);
        // Nobody takes messages any more, and none is received any more.
        self.0.close();
        // What was flushed at once is given back at once, also if nobody looks at the queue again.
        self.0.cq().drain_all();
    }
}

impl Qp {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        inner.fill_receives();
        Self { open: Arc::new(Open(inner)), srq: None }
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.open.0
    }

    pub(super) fn srq(&self) -> Option<Srqn> {
        self.srq
    }

    /// The same QP, whose requests name a shared queue of the peer, as all requests of a
    /// [`QpOptions::xrc_send`](super::QpOptions::xrc_send) do.
    #[doc(alias("remote_srqn", "ibv_wr_set_xrc_srqn"))]
    pub fn to_srq(&self, number: Srqn) -> Self {
        Self { srq: Some(number), ..self.clone() }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.inner().qp().qpn()
    }

    /// The domain of its memory.
    pub fn pd(&self) -> &Pd {
        self.inner().qp().pd()
    }

    /// Where a peer reaches it.
    ///
    /// # Errors
    ///
    /// As [`verbs::Qp::endpoint`](crate::Qp::endpoint).
    pub fn endpoint(&self) -> crate::Result<Endpoint> {
        self.inner().qp().endpoint()
    }

    /// Connects it to its peer. Receives are posted already, so the peer may send at once.
    ///
    /// # Errors
    ///
    /// As [`verbs::Qp::connect`](crate::Qp::connect).
    pub fn connect(&self, peer: &Endpoint) -> crate::Result<()> {
        self.inner().qp().connect(peer)
    }

    /// The same with other parameters.
    ///
    /// # Errors
    ///
    /// As [`verbs::Qp::connect_with`](crate::Qp::connect_with).
    pub fn connect_with(&self, peer: &Endpoint, options: &ConnectOptions) -> crate::Result<()> {
        self.inner().qp().connect_with(peer, options)
    }

    /// Makes a QP of datagrams ready.
    ///
    /// # Errors
    ///
    /// As [`verbs::Qp::to_rts`](crate::Qp::to_rts).
    pub fn to_rts(&self) -> crate::Result<()> {
        self.inner().qp().to_rts()
    }

    /// Its state and attributes.
    ///
    /// # Errors
    ///
    /// The device's.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> crate::Result<QpAttr> {
        self.inner().qp().query()
    }

    /// Changes attributes, as selected by the mask.
    ///
    /// # Errors
    ///
    /// The device's.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> crate::Result<()> {
        self.inner().qp().modify(attr, mask)
    }

    pub(super) fn request<B: Local>(&self, request: Request, memory: B) -> WorkRequest<'_, B> {
        self.checked(request, memory, None)
    }

    fn checked<B: Local>(
        &self,
        request: Request,
        memory: B,
        refusal: Option<Refusal>,
    ) -> WorkRequest<'_, B> {
        let op = Op::new(self, Work::new(request, memory), refusal);
        WorkRequest { op, of: PhantomData }
    }

    /// Sends bytes to a receive of the peer.
    pub fn send<B: Local>(&self, memory: B) -> WorkRequest<'_, B> {
        self.request(Request::Send { imm: None }, memory)
    }

    /// Sends bytes and a number to a receive of the peer.
    pub fn send_with_imm<B: Local>(&self, memory: B, imm: u32) -> WorkRequest<'_, B> {
        self.request(Request::Send { imm: Some(imm) }, memory)
    }

    /// Sends a datagram.
    pub fn send_to<B: Local>(&self, memory: B, ah: &Ah, qpn: Qpn, qkey: u32) -> WorkRequest<'_, B> {
        self.request(Request::SendTo { ah: ah.clone(), qpn, qkey }, memory)
    }

    /// Writes bytes to the front of memory of the peer.
    pub fn write<B: Local, T>(&self, memory: B, to: RemoteSlice<T>) -> WorkRequest<'_, B> {
        self.request(Request::write(to, None), memory)
    }

    /// Writes bytes to memory of the peer, and completes a receive there with a number.
    pub fn write_with_imm<B: Local, T>(
        &self,
        memory: B,
        to: RemoteSlice<T>,
        imm: u32,
    ) -> WorkRequest<'_, B> {
        self.request(Request::write(to, Some(imm)), memory)
    }

    /// Reads memory of the peer. A [`Buffer`](crate::owned::Buffer) gets the length of what is
    /// read; a [`Range`](crate::owned::Range) is filled.
    pub fn read<B: LocalMut, T>(&self, mut memory: B, from: RemoteSlice<T>) -> WorkRequest<'_, B> {
        let refusal = memory.fit(from.byte_len()).err();
        self.checked(Request::read(from), memory, refusal)
    }

    /// Adds to the first word of memory of the peer, and returns what it was.
    pub async fn fetch_add(&self, at: RemoteSlice<u64>, add: u64) -> Result<u64, Error> {
        let at = first(&at, "fetch_add")?;
        self.atomic(Request::FetchAdd { at, add }).await
    }

    /// Stores `swap` in the first word of memory of the peer if it is `compare`, and returns what
    /// it was.
    pub async fn compare_swap(
        &self,
        at: RemoteSlice<u64>,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Error> {
        let at = first(&at, "compare_swap")?;
        self.atomic(Request::CompareSwap { at, compare, swap }).await
    }

    /// Stores the first word of memory of the peer at once, behind what was written before.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for a slice without a word; [`PostError::Absent`](crate::PostError::Absent)
    /// for a NIC that has no ATOMIC WRITE, or whose library has none.
    pub async fn atomic_write(&self, at: RemoteSlice<u64>, value: u64) -> Result<(), Error> {
        let at = first(&at, "atomic_write")?;
        self.request(Request::AtomicWrite { at, value }, ()).await.0.map(drop)
    }

    /// Waits until what was written to memory of the peer before is visible to every reader there,
    /// and until it survives a loss of power if that is asked for.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for 4 GiB or more; [`PostError::Absent`](crate::PostError::Absent) for a
    /// NIC that has no FLUSH, or whose library has none; failed where the peer does not grant it.
    pub async fn flush<T>(&self, memory: RemoteSlice<T>, is_persistent: bool) -> Result<(), Error> {
        let Ok(length) = u32::try_from(memory.byte_len()) else {
            let what = format!("flush: {} bytes are too many for a request", memory.byte_len());
            return Err(Refusal::new(Kind::Invalid, what).into());
        };
        let (global, persistent) = (!is_persistent, is_persistent);
        let reach = Flush { length, whole: false, global, persistent };
        let at = memory.remote();
        self.request(Request::Flush { at, reach }, ()).await.0.map(drop)
    }

    async fn atomic(&self, request: Request) -> Result<u64, Error> {
        let word = self.inner().word()?;
        let (result, word) = self.request(request, word).await;
        result?;
        Ok(u64::from_ne_bytes(word[..].try_into().expect("eight bytes")))
    }
}

/// A work request as a future: posted when it is polled first, ready when it has completed. If it
/// is dropped, the request goes on, and its memory is dropped when it completes.
#[derive(Debug)]
#[must_use = "nothing is posted before it is awaited"]
pub struct WorkRequest<'qp, B: Local> {
    op: Op<'qp>,
    of: PhantomData<fn() -> B>,
}

impl<B: Local> Future for WorkRequest<'_, B> {
    type Output = Outcome<Wc, B>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (result, memory) = ready!(Pin::new(&mut self.op).poll(cx));
        Poll::Ready((result, B::take_back(memory.first)))
    }
}

fn first(words: &RemoteSlice<u64>, call: &str) -> crate::Result<Remote> {
    if words.is_empty() {
        return Err(Refusal::new(Kind::Invalid, format!("{call}: the remote slice has no word")));
    }
    Ok(words.remote())
}

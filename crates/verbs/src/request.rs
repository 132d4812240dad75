//! Work requests.

use iba::{Access, RKey, SendFlags, Srqn, WrOpcode};
use transport::PostError;
use transport::wr::{Bind, Data, Flush, SendWr, SgList, UdDest};

use crate::{Ah, Context, Mw, Pd, Remote, Slice};

/// A send work request. Made by the function named after its operation; then flags are added.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_send_wr")]
#[must_use = "a request does nothing until it is posted"]
pub struct SendRequest<'mr> {
    wr: SendWr,
    /// The device of its slices.
    from: Origin<'mr>,
    /// The destination of a datagram; kept until the request is dropped.
    ah: Option<Ah>,
    has_imm: bool,
    /// The window to bind; kept likewise.
    window: Option<Mw>,
}

/// The device that the slices of a request are of: keys are numbers, which mean other regions on
/// another device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin<'mr> {
    /// The domain of the first one.
    pd: Option<&'mr Pd>,
    /// Whether another one is of another device.
    is_mixed: bool,
}

impl<'mr> Origin<'mr> {
    /// Adds slices to a list. One by one, as collecting a list takes longer than all else that is
    /// done for a request, and mostly there is one.
    #[inline]
    pub(crate) fn put(sges: &mut SgList, local: &[Slice<'mr>]) -> Self {
        let mut origin = Self::default();
        for slice in local {
            sges.push(slice.sge);
            match origin.pd {
                None => origin.pd = Some(slice.pd),
                Some(first) => origin.is_mixed |= !first.is_same_device(slice.pd),
            }
        }
        origin
    }

    /// Refuses slices of another device than that of a domain.
    #[inline]
    pub(crate) fn check(&self, pd: &Pd) -> Result<(), PostError> {
        if self.is_mixed || self.pd.is_some_and(|own| !own.is_same_device(pd)) {
            return Err(PostError::OtherDevice);
        }
        Ok(())
    }
}

impl<'mr> SendRequest<'mr> {
    fn new(wr_id: u64, opcode: WrOpcode, local: &[Slice<'mr>]) -> Self {
        let mut sges = SgList::new();
        let from = Origin::put(&mut sges, local);
        let wr = SendWr::new(wr_id, opcode, SendFlags::empty(), Data::Sges(sges));
        Self { wr, from, ah: None, has_imm: false, window: None }
    }

    /// The request in the form that both providers take, for a QP of this domain.
    #[inline]
    pub(crate) fn check(&self, pd: &Pd) -> Result<&SendWr, PostError> {
        self.from.check(pd)?;
        let brings = matches!(self.wr.opcode, WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm);
        if self.has_imm && !brings {
            return Err(PostError::Immediate(self.wr.opcode));
        }
        let other = |of: Option<&Context>| of.is_some_and(|of| !pd.context().is_same(of));
        let window = self.window.as_ref().map(Mw::context);
        if other(self.ah.as_ref().map(Ah::context)) || other(window) {
            return Err(PostError::OtherDevice);
        }
        Ok(&self.wr)
    }

    /// What a library takes beside the request: the address handle and the window.
    #[inline]
    pub(crate) fn hard(&self) -> (Option<&sysverbs::Ah>, Option<&sysverbs::Mw>) {
        (self.ah.as_ref().and_then(Ah::hard), self.window.as_ref().and_then(Mw::hard))
    }

    fn at(mut self, remote: Remote) -> Self {
        self.wr.remote_addr = remote.addr;
        self.wr.rkey = remote.rkey;
        self
    }

    /// Sends bytes to a receive of the peer.
    pub fn send(wr_id: u64, local: &[Slice<'mr>]) -> Self {
        Self::new(wr_id, WrOpcode::Send, local)
    }

    /// Sends bytes to a receive of the peer and invalidates a key of one of the peer's windows:
    /// from then on the key gives access to no memory. The peer's completion names the key
    /// ([`Wc::invalidated`](crate::Wc::invalidated)).
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    pub fn send_with_inv(wr_id: u64, local: &[Slice<'mr>], rkey: RKey) -> Self {
        let mut request = Self::new(wr_id, WrOpcode::SendWithInv, local);
        request.wr.imm = rkey.0;
        request
    }

    /// Binds a window to `length` bytes at `offset` of its region, and grants the peer of the QP
    /// `access` to them. Requests posted later find it bound. The window has a new key from now on
    /// ([`Mw::rkey`]). One that is bound must be invalidated first, by [`SendRequest::local_inv`]
    /// or by the peer's [`SendRequest::send_with_inv`].
    #[doc(alias("IBV_WR_BIND_MW", "ibv_bind_mw"))]
    pub fn bind(wr_id: u64, window: &Mw, offset: u64, length: u64, access: Access) -> Self {
        let mut request = Self::new(wr_id, WrOpcode::BindMw, &[]);
        request.wr.data = Data::Bind(Box::new(Bind {
            window: window.number(),
            key: window.next_key(),
            lkey: window.region().lkey(),
            addr: window.region().remote(offset).addr,
            length,
            access,
        }));
        request.window = Some(window.clone());
        request
    }

    /// Invalidates a key of a window of this side.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn local_inv(wr_id: u64, rkey: RKey) -> Self {
        let mut request = Self::new(wr_id, WrOpcode::LocalInv, &[]);
        request.wr.imm = rkey.0;
        request
    }

    /// Writes bytes to the peer's memory.
    pub fn write(wr_id: u64, local: &[Slice<'mr>], to: Remote) -> Self {
        Self::new(wr_id, WrOpcode::RdmaWrite, local).at(to)
    }

    /// Writes bytes to the peer's memory and completes a receive there with `imm`.
    pub fn write_with_imm(wr_id: u64, local: &[Slice<'mr>], to: Remote, imm: u32) -> Self {
        Self::write(wr_id, local, to).with_imm(imm)
    }

    /// Reads bytes of the peer's memory.
    pub fn read(wr_id: u64, local: &[Slice<'mr>], from: Remote) -> Self {
        Self::new(wr_id, WrOpcode::RdmaRead, local).at(from)
    }

    /// Stores `swap` in eight bytes of the peer if they hold `compare`; the old value goes to
    /// `old`.
    pub fn compare_swap(wr_id: u64, old: Slice<'mr>, at: Remote, compare: u64, swap: u64) -> Self {
        let mut request = Self::new(wr_id, WrOpcode::AtomicCmpAndSwp, &[old]).at(at);
        request.wr.compare_add = compare;
        request.wr.swap = swap;
        request
    }

    /// Adds to eight bytes of the peer; the old value goes to `old`.
    pub fn fetch_add(wr_id: u64, old: Slice<'mr>, at: Remote, add: u64) -> Self {
        let mut request = Self::new(wr_id, WrOpcode::AtomicFetchAndAdd, &[old]).at(at);
        request.wr.compare_add = add;
        request
    }

    /// Stores eight bytes in the peer's memory at once: a reader there sees all of them or none,
    /// behind what was written before. The address is a multiple of eight.
    ///
    /// Posting it to a NIC of a library is refused if the NIC or the library does not have it, as
    /// [`PostError::Absent`].
    #[doc(alias = "ibv_wr_atomic_write")]
    pub fn atomic_write(wr_id: u64, at: Remote, value: u64) -> Self {
        let mut request = Self::new(wr_id, WrOpcode::AtomicWrite, &[]).at(at);
        request.wr.data = Data::Inline(value.to_ne_bytes().as_slice().into());
        request
    }

    /// Completes when what was written before it is where `reach` says, beginning at `at`. The
    /// memory and the QP of the peer grant [`Access::FLUSH_GLOBAL`] or
    /// [`Access::FLUSH_PERSISTENT`].
    ///
    /// Posting it to a NIC of a library is refused if the NIC or the library does not have it, as
    /// [`PostError::Absent`].
    #[doc(alias = "ibv_wr_flush")]
    pub fn flush(wr_id: u64, at: Remote, reach: Flush) -> Self {
        let mut request = Self::new(wr_id, WrOpcode::Flush, &[]).at(at);
        request.wr.data = Data::Flush(reach);
        request
    }

    /// Gives a send or a write four bytes that arrive in the completion of the peer's receive. A
    /// write then needs a receive, as a send does. A request that completes no receive takes no
    /// immediate data: posting it is refused.
    pub fn with_imm(mut self, imm: u32) -> Self {
        self.wr.opcode = match self.wr.opcode {
            WrOpcode::Send => WrOpcode::SendWithImm,
            WrOpcode::RdmaWrite => WrOpcode::RdmaWriteWithImm,
            other => other,
        };
        self.wr.imm = imm;
        self.has_imm = true;
        self
    }

    /// Asks for a completion.
    pub fn signaled(mut self) -> Self {
        self.signal();
        self
    }

    /// [`signaled`](Self::signaled) in place, as moving a request is expensive.
    pub(crate) fn signal(&mut self) {
        self.wr.flags |= SendFlags::SIGNALED;
    }

    /// Waits for earlier READs and atomics of the QP.
    pub fn fence(mut self) -> Self {
        self.wr.flags |= SendFlags::FENCE;
        self
    }

    /// Wakes a peer that waits only for solicited completions.
    pub fn solicited(mut self) -> Self {
        self.wr.flags |= SendFlags::SOLICITED;
        self
    }

    /// Copies `bytes` now, in place of a list of slices; no memory region is needed for them.
    pub fn inline(mut self, bytes: &[u8]) -> Self {
        self.put_inline(bytes);
        self
    }

    /// [`inline`](Self::inline) in place.
    pub(crate) fn put_inline(&mut self, bytes: &[u8]) {
        self.wr.flags |= SendFlags::INLINE;
        self.wr.data = Data::Inline(bytes.into());
    }

    /// Names the shared receive queue of the peer, which every request of an XRC_SEND QP does: a
    /// request that takes a receive takes one of this queue, and one that reaches memory reaches
    /// that of the queue's protection domain. Requests of other QPs have no use for it.
    #[doc(alias("remote_srqn", "ibv_wr_set_xrc_srqn"))]
    pub fn to_srq(mut self, number: Srqn) -> Self {
        self.wr.srqn = number.value();
        self
    }

    /// Sets the destination of a datagram.
    pub fn to(mut self, ah: &Ah, qpn: iba::Qpn, qkey: u32) -> Self {
        self.ah = Some(ah.clone());
        self.wr.ud = Some(UdDest { av: ah.av(), remote_qpn: qpn, remote_qkey: iba::QKey(qkey) });
        self
    }
}

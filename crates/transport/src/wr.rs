//! Work requests in the transport's form.

use std::mem;

use iba::{Access, Av, LKey, QKey, Qpn, RKey, SendFlags, WrOpcode};
use smallvec::SmallVec;

use crate::error::PostError;

/// A scatter/gather element: bytes in a local memory region. In memory it is what it is in C, so
/// that a list need not be copied for a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_sge")]
#[repr(C)]
#[expect(clippy::exhaustive_structs, reason = "the three fields of an SGE")]
pub struct Sge {
    /// Where, in the region's own addresses.
    pub addr: u64,
    /// How many bytes.
    pub length: u32,
    /// Which region.
    pub lkey: LKey,
}

/// A scatter/gather list.
pub type SgList = SmallVec<[Sge; 2]>;

/// Where a send takes its bytes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a work request has a list or its bytes")]
pub enum Data {
    /// Local memory; for READs and atomics, where the answer goes.
    Sges(SgList),
    /// The bytes themselves, taken when the request was posted.
    Inline(SmallVec<[u8; 64]>),
    /// None: what [`WrOpcode::BindMw`] binds.
    Bind(Box<Bind>),
    /// None: what [`WrOpcode::Flush`] flushes, starting at the request's `remote_addr`.
    Flush(Flush),
}

/// The reach of a FLUSH (IBA annex A19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_wr_flush")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Flush {
    /// How many bytes; ignored for a whole region.
    pub length: u32,
    /// All of the region, and not a range.
    pub whole: bool,
    /// Until every reader sees the bytes.
    pub global: bool,
    /// Until they survive a loss of power.
    pub persistent: bool,
}

/// A memory window, and the range it exposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_mw_bind_info")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Bind {
    /// The device's number for the window.
    pub window: u32,
    /// Its key from now on; only the low eight bits are used.
    pub key: RKey,
    /// The region.
    pub lkey: LKey,
    /// Where the window begins, in the region's addresses.
    pub addr: u64,
    /// How many bytes it exposes; 0 unbinds it.
    pub length: u64,
    /// What peers may do.
    pub access: Access,
}

/// A send work request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_send_wr")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub opcode: WrOpcode,
    /// How to do it.
    pub flags: SendFlags,
    /// Immediate data, a number whose most significant byte travels first, or the key that
    /// [`WrOpcode::SendWithInv`] and [`WrOpcode::LocalInv`] invalidate.
    pub imm: u32,
    /// The bytes.
    pub data: Data,
    /// The peer's memory, for WRITE, READ and atomics.
    pub remote_addr: u64,
    /// The key of the peer's memory.
    pub rkey: RKey,
    /// Compare value of CMP_SWAP; addend of FETCH_ADD.
    pub compare_add: u64,
    /// Swap value of CMP_SWAP.
    pub swap: u64,
    /// Where a datagram goes.
    pub ud: Option<UdDest>,
    /// The peer's shared receive queue, on XRC.
    pub srqn: u32,
}

impl SendWr {
    /// A request with only the fields that every request has.
    #[inline]
    pub const fn new(wr_id: u64, opcode: WrOpcode, flags: SendFlags, data: Data) -> Self {
        Self {
            wr_id,
            opcode,
            flags,
            imm: 0,
            data,
            remote_addr: 0,
            rkey: RKey(0),
            compare_add: 0,
            swap: 0,
            ud: None,
            srqn: 0,
        }
    }
}

impl SendWr {
    /// A SEND of nothing.
    pub const EMPTY: Self =
        Self::new(0, WrOpcode::Send, SendFlags::empty(), Data::Sges(SgList::new_const()));
}

/// A send request in the program's form, still to be read.
pub trait Request {
    /// Why it was not accepted.
    type Error: From<PostError>;

    /// The request, if it is a SEND without immediate data of one piece of memory.
    fn plain(&self) -> Option<PlainSend>;

    /// The request, if it is a WRITE without immediate data or a READ, of one piece of memory.
    fn plain_one_sided(&self) -> Option<PlainOneSided>;

    /// Writes the request in place, over [`SendWr::EMPTY`], as moving it is expensive.
    ///
    /// # Errors
    /// The error that the program gets for a request that cannot be read.
    fn fill(self, to: &mut SendWr) -> Result<(), Self::Error>;
}

/// A SEND without immediate data of one piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct PlainSend {
    /// Returned in the completion.
    pub wr_id: u64,
    /// How to do it.
    pub flags: SendFlags,
    /// The memory.
    pub sge: Sge,
}

/// A WRITE without immediate data or a READ, of one piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct PlainOneSided {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Whether it is a READ.
    pub is_read: bool,
    /// How to do it.
    pub flags: SendFlags,
    /// The memory of this side.
    pub sge: Sge,
    /// The peer's memory.
    pub remote_addr: u64,
    /// Its key.
    pub rkey: RKey,
}

impl SendWr {
    /// The only element of its list, if it has one.
    #[inline]
    fn only_sge(&self) -> Option<Sge> {
        match &self.data {
            Data::Sges(sges) if sges.len() == 1 => Some(sges[0]),
            _ => None,
        }
    }
}

impl Request for SendWr {
    type Error = PostError;

    #[inline]
    fn plain(&self) -> Option<PlainSend> {
        let sge = self.only_sge().filter(|_| self.opcode == WrOpcode::Send)?;
        Some(PlainSend { wr_id: self.wr_id, flags: self.flags, sge })
    }

    #[inline]
    fn plain_one_sided(&self) -> Option<PlainOneSided> {
        let is_read = match self.opcode {
            WrOpcode::RdmaWrite => false,
            WrOpcode::RdmaRead => true,
            _ => return None,
        };
        let Self { wr_id, flags, remote_addr, rkey, .. } = *self;
        Some(PlainOneSided { wr_id, is_read, flags, sge: self.only_sge()?, remote_addr, rkey })
    }

    fn fill(self, to: &mut SendWr) -> Result<(), PostError> {
        *to = self;
        Ok(())
    }
}

/// A request in its shortest form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers build it")]
pub enum Plain {
    /// A SEND.
    Send(PlainSend),
    /// A WRITE or a READ.
    OneSided(PlainOneSided),
}

impl Request for Plain {
    type Error = PostError;

    #[inline]
    fn plain(&self) -> Option<PlainSend> {
        match *self {
            Self::Send(send) => Some(send),
            Self::OneSided(_) => None,
        }
    }

    #[inline]
    fn plain_one_sided(&self) -> Option<PlainOneSided> {
        match *self {
            Self::Send(_) => None,
            Self::OneSided(one_sided) => Some(one_sided),
        }
    }

    fn fill(self, to: &mut SendWr) -> Result<(), PostError> {
        let sge = match self {
            Self::Send(PlainSend { wr_id, flags, sge }) => {
                (to.wr_id, to.opcode, to.flags) = (wr_id, WrOpcode::Send, flags);
                sge
            }
            Self::OneSided(PlainOneSided { wr_id, is_read, flags, sge, remote_addr, rkey }) => {
                let opcode = if is_read { WrOpcode::RdmaRead } else { WrOpcode::RdmaWrite };
                (to.wr_id, to.opcode, to.flags) = (wr_id, opcode, flags);
                (to.remote_addr, to.rkey) = (remote_addr, rkey);
                sge
            }
        };
        match &mut to.data {
            Data::Sges(list) => list.push(sge),
            data => *data = Data::Sges(SgList::from_slice(&[sge])),
        }
        Ok(())
    }
}

/// A request that stays the caller's.
impl Request for &SendWr {
    type Error = PostError;

    #[inline]
    fn plain(&self) -> Option<PlainSend> {
        (**self).plain()
    }

    #[inline]
    fn plain_one_sided(&self) -> Option<PlainOneSided> {
        (**self).plain_one_sided()
    }

    fn fill(self, to: &mut SendWr) -> Result<(), PostError> {
        let &SendWr { wr_id, opcode, flags, imm, remote_addr, rkey, ud, srqn, .. } = self;
        (to.wr_id, to.opcode, to.flags, to.imm) = (wr_id, opcode, flags, imm);
        (to.remote_addr, to.rkey, to.srqn) = (remote_addr, rkey, srqn);
        (to.compare_add, to.swap) = (self.compare_add, self.swap);
        if ud.is_some() {
            to.ud = ud;
        }
        match (&self.data, &mut to.data) {
            (Data::Sges(from), Data::Sges(list)) => list.extend_from_slice(from),
            (data, to) => to.clone_from(data),
        }
        Ok(())
    }
}

/// A request that the caller does not need any more: [`SendWr::EMPTY`] may be left of it.
impl Request for &mut SendWr {
    type Error = PostError;

    #[inline]
    fn plain(&self) -> Option<PlainSend> {
        (**self).plain()
    }

    #[inline]
    fn plain_one_sided(&self) -> Option<PlainOneSided> {
        (**self).plain_one_sided()
    }

    fn fill(self, to: &mut SendWr) -> Result<(), PostError> {
        mem::swap(to, self);
        Ok(())
    }
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct UdDest {
    /// The path.
    pub av: Av,
    /// The peer's QP.
    pub remote_qpn: Qpn,
    /// The key to present; with its top bit set the QP's own key is sent instead.
    pub remote_qkey: QKey,
}

/// A receive work request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_recv_wr")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct RecvWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the bytes go.
    pub sges: SgList,
}

impl RecvWr {
    /// A receive that has no room.
    pub const EMPTY: Self = Self { wr_id: 0, sges: SgList::new_const() };

    /// How many bytes it has room for.
    #[inline]
    pub fn room(&self) -> u64 {
        bytes_of(&self.sges)
    }
}

/// How many bytes the elements of a list name.
#[inline]
pub(crate) fn bytes_of(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SGE: Sge = Sge { addr: 0x1000, length: 8, lkey: LKey(3) };

    fn filled<R: Request<Error = PostError>>(request: R) -> SendWr {
        let mut wr = SendWr::EMPTY;
        request.fill(&mut wr).unwrap();
        wr
    }

    #[test]
    fn a_request_that_stays_the_callers_is_filled_whole() {
        let lists = [0, 1, 3].map(|count| Data::Sges(SgList::from_elem(SGE, count)));
        let flush = Flush { length: 1, whole: true, global: true, persistent: false };
        let others = [Data::Inline(SmallVec::from_slice(&[1, 2])), Data::Flush(flush)];
        for data in lists.into_iter().chain(others) {
            let wr = SendWr {
                imm: 1,
                remote_addr: 2,
                rkey: RKey(3),
                compare_add: 4,
                swap: 5,
                srqn: 6,
                ..SendWr::new(7, WrOpcode::RdmaWriteWithImm, SendFlags::SOLICITED, data)
            };
            assert_eq!(filled(&wr), wr);
        }
    }

    #[test]
    fn the_shortest_form_is_the_request() {
        let flags = SendFlags::SIGNALED;
        let list = || Data::Sges(SgList::from_slice(&[SGE]));
        let send = PlainSend { wr_id: 1, flags, sge: SGE };
        let wr = SendWr::new(1, WrOpcode::Send, flags, list());
        assert_eq!((filled(Plain::Send(send)), wr.plain()), (wr.clone(), Some(send)));
        for (is_read, opcode) in [(true, WrOpcode::RdmaRead), (false, WrOpcode::RdmaWrite)] {
            let (remote_addr, rkey) = (2, RKey(3));
            let plain = PlainOneSided { wr_id: 1, is_read, flags, sge: SGE, remote_addr, rkey };
            let wr = SendWr { remote_addr, rkey, ..SendWr::new(1, opcode, flags, list()) };
            assert_eq!(filled(Plain::OneSided(plain)), wr);
            assert_eq!(wr.plain_one_sided(), Some(plain));
        }
    }
}

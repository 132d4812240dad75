//! What requests do.

use iba::{Access, Qpn, RKey, SendFlags};
use transport::wr::{Plain, PlainOneSided, PlainSend};

use crate::owned::{Held, Local, RemoteSlice};
use crate::{Ah, Flush, Mw, Remote, SendRequest, Slice};

/// A request and its memory.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) request: Request,
    pub(super) memory: Held,
}

impl Work {
    pub(super) fn new(request: Request, memory: impl Local) -> Self {
        Self { request, memory: memory.hold() }
    }

    /// Its memory, for somebody else to hold.
    pub(super) fn take_memory(&mut self) -> Held {
        std::mem::replace(&mut self.memory, Held::Nothing)
    }
}

/// What a request does.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Send { imm: Option<u32> },
    SendWithInv { rkey: RKey },
    SendTo { ah: Ah, qpn: Qpn, qkey: u32 },
    Write { to: Remote, room: u64, imm: Option<u32> },
    Read { from: Remote, room: u64 },
    FetchAdd { at: Remote, add: u64 },
    CompareSwap { at: Remote, compare: u64, swap: u64 },
    AtomicWrite { at: Remote, value: u64 },
    Flush { at: Remote, reach: Flush },
    Bind { window: Mw, offset: u64, length: u64, access: Access },
    LocalInv { rkey: RKey },
}

impl Request {
    pub(super) fn write<T>(to: RemoteSlice<T>, imm: Option<u32>) -> Self {
        Self::Write { to: to.remote(), room: to.byte_len(), imm }
    }

    pub(super) fn send_with_inv<T>(granted: RemoteSlice<T>) -> Self {
        Self::SendWithInv { rkey: granted.remote().rkey }
    }

    pub(super) fn read<T>(from: RemoteSlice<T>) -> Self {
        Self::Read { from: from.remote(), room: from.byte_len() }
    }

    /// How many bytes there are at the peer.
    pub(super) fn room(&self) -> Option<(&'static str, u64)> {
        match self {
            Self::Write { room, .. } => Some(("a WRITE", *room)),
            Self::Read { room, .. } => Some(("a READ", *room)),
            _ => None,
        }
    }

    /// Whether it takes bytes of this side and leaves them as they are.
    pub(super) fn sends(&self) -> bool {
        matches!(
            self,
            Self::Send { .. } | Self::SendWithInv { .. } | Self::SendTo { .. } | Self::Write { .. }
        )
    }

    /// The request in its shortest form, if it has one.
    pub(super) fn plain(&self, wr_id: u64, flags: SendFlags, local: Slice<'_>) -> Option<Plain> {
        let (remote, is_read) = match self {
            Self::Send { imm: None } => {
                return Some(Plain::Send(PlainSend { wr_id, flags, sge: local.sge }));
            }
            Self::Write { to, imm: None, .. } => (to, false),
            Self::Read { from, .. } => (from, true),
            _ => return None,
        };
        let &Remote { addr: remote_addr, rkey } = remote;
        let sge = local.sge;
        let one_sided = PlainOneSided { wr_id, is_read, flags, sge, remote_addr, rkey };
        Some(Plain::OneSided(one_sided))
    }

    pub(super) fn build<'mr>(&self, wr_id: u64, local: &[Slice<'mr>]) -> SendRequest<'mr> {
        let imm_of = |request: SendRequest<'mr>, imm: Option<u32>| match imm {
            Some(imm) => request.with_imm(imm),
            None => request,
        };
        match self {
            Self::Send { imm } => imm_of(SendRequest::send(wr_id, local), *imm),
            Self::SendWithInv { rkey } => SendRequest::send_with_inv(wr_id, local, *rkey),
            Self::SendTo { ah, qpn, qkey } => SendRequest::send(wr_id, local).to(ah, *qpn, *qkey),
            Self::Write { to, imm, .. } => imm_of(SendRequest::write(wr_id, local, *to), *imm),
            Self::Read { from, .. } => SendRequest::read(wr_id, local, *from),
            Self::FetchAdd { at, add } => SendRequest::fetch_add(wr_id, local[0], *at, *add),
            Self::CompareSwap { at, compare, swap } => {
                SendRequest::compare_swap(wr_id, local[0], *at, *compare, *swap)
            }
            Self::AtomicWrite { at, value } => SendRequest::atomic_write(wr_id, *at, *value),
            Self::Flush { at, reach } => SendRequest::flush(wr_id, *at, *reach),
            Self::Bind { window, offset, length, access } => {
                SendRequest::bind(wr_id, window, *offset, *length, *access)
            }
            Self::LocalInv { rkey } => SendRequest::local_inv(wr_id, *rkey),
        }
    }
}

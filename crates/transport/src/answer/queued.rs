//! An answer that waits to be sent.

use iba::{Psn, RKey};
use wire::{Reth, Syndrome};

/// Something to send to the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Its sequence number; the next one for a READ response.
    pub(super) psn: Psn,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Ack,
    Nak(Syndrome),
    Atomic { value: u64, is_new: bool },
    Read(ReadAnswer),
}

/// What is left of the answer to a READ.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAnswer {
    pub(super) rkey: RKey,
    pub(super) addr: u64,
    pub(super) left: u32,
    /// The sequence number after its last.
    pub(super) end: Psn,
    /// Whether a packet of it was sent.
    pub(super) begun: bool,
    /// Whether the request came for the first time.
    pub(super) is_new: bool,
    /// Whether the peer was told to ask for the rest later, and has not done so yet.
    pub(super) is_put_off: bool,
    /// Bytes of the whole READ, if a counter must be told when it is answered.
    pub(super) counts: Option<u32>,
}

impl Answer {
    /// The answer to a READ, in `packets` sequence numbers.
    pub(crate) const fn read(psn: Psn, packets: u32, reth: Reth, is_new: bool) -> Self {
        let end = psn.add(packets);
        let (rkey, addr, left) = (reth.rkey, reth.va, reth.dma_len);
        let counts = if is_new { Some(left) } else { None };
        let read =
            ReadAnswer { rkey, addr, left, end, begun: false, is_new, is_put_off: false, counts };
        Self { psn, kind: Kind::Read(read) }
    }

    /// An answer that carries no data: that to a FLUSH or an ATOMIC WRITE.
    pub(crate) const fn done(psn: Psn, is_new: bool) -> Self {
        let (rkey, end) = (RKey(0), psn.add(1));
        let read = ReadAnswer {
            rkey,
            addr: 0,
            left: 0,
            end,
            begun: false,
            is_new,
            is_put_off: false,
            counts: None,
        };
        Self { psn, kind: Kind::Read(read) }
    }

    /// The answer to an atomic.
    pub(crate) const fn atomic(psn: Psn, value: u64, is_new: bool) -> Self {
        Self { psn, kind: Kind::Atomic { value, is_new } }
    }

    /// Whether it takes one of the QP's responder resources.
    pub(crate) const fn is_new_data(&self) -> bool {
        matches!(
            self.kind,
            Kind::Read(ReadAnswer { is_new: true, .. }) | Kind::Atomic { is_new: true, .. }
        )
    }

    pub(super) const fn is_data(&self) -> bool {
        matches!(self.kind, Kind::Read(_) | Kind::Atomic { .. })
    }

    pub(super) const fn is_put_off(&self) -> bool {
        matches!(self.kind, Kind::Read(ReadAnswer { is_put_off: true, .. }))
    }

    /// The number after its last.
    pub(super) const fn end(&self) -> Psn {
        match self.kind {
            Kind::Read(read) => read.end,
            // A NAK acknowledges everything before its number, the others include their number.
            Kind::Nak(_) => self.psn,
            Kind::Ack | Kind::Atomic { .. } => self.psn.add(1),
        }
    }
}

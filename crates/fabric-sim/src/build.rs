//! Work requests and packets, with few words.

use iba::{LKey, Psn, Qpn, RKey, SendFlags, WrOpcode};
use transport::{Data, RecvWr, SendWr, Sge};
use wire::{Aeth, AtomicAckEth, AtomicEth, Deth, Headers, Ieth, ImmDt, Opcode, Reth, Syndrome};

use crate::options::KEY;

/// A scatter/gather element of the region that every host has.
pub fn sge(addr: u64, length: u32) -> Sge {
    Sge { addr, length, lkey: LKey(KEY) }
}

/// A receive of `length` bytes at `addr`.
pub fn recv(wr_id: u64, addr: u64, length: u32) -> RecvWr {
    RecvWr { wr_id, sges: [sge(addr, length)].into_iter().collect() }
}

/// A work request of `length` bytes at `addr`, unsignaled and without other flags.
pub fn wr(wr_id: u64, opcode: WrOpcode, addr: u64, length: u32) -> SendWr {
    let data = Data::Sges([sge(addr, length)].into_iter().collect());
    SendWr { rkey: RKey(KEY), ..SendWr::new(wr_id, opcode, SendFlags::empty(), data) }
}

/// A SEND.
pub fn send(wr_id: u64, addr: u64, length: u32) -> SendWr {
    SendWr { rkey: RKey(0), ..wr(wr_id, WrOpcode::Send, addr, length) }
}

/// A WRITE to `remote`.
pub fn write(wr_id: u64, addr: u64, length: u32, remote: u64) -> SendWr {
    SendWr { remote_addr: remote, ..wr(wr_id, WrOpcode::RdmaWrite, addr, length) }
}

/// A READ from `remote`.
pub fn read(wr_id: u64, addr: u64, length: u32, remote: u64) -> SendWr {
    SendWr { remote_addr: remote, ..wr(wr_id, WrOpcode::RdmaRead, addr, length) }
}

/// A FETCH_ADD on `remote`.
pub fn fetch_add(wr_id: u64, addr: u64, remote: u64, add: u64) -> SendWr {
    let wr = wr(wr_id, WrOpcode::AtomicFetchAndAdd, addr, 8);
    SendWr { remote_addr: remote, compare_add: add, ..wr }
}

/// A CMP_SWAP on `remote`.
pub fn cmp_swap(wr_id: u64, addr: u64, remote: u64, compare: u64, swap: u64) -> SendWr {
    let wr = wr(wr_id, WrOpcode::AtomicCmpAndSwp, addr, 8);
    SendWr { remote_addr: remote, compare_add: compare, swap, ..wr }
}

/// A packet. The sender, or the test that expects it, fills in its destination.
pub fn packet(opcode: Opcode, psn: Psn) -> Headers {
    Headers::new(opcode, Qpn::default(), psn)
}

/// An acknowledgement of everything up to `psn`, after `msn` messages.
pub fn ack(psn: Psn, msn: u32) -> Headers {
    packet(Opcode::RcAck, psn).with_aeth(Syndrome::ACK, msn)
}

/// A NAK.
pub fn nak(psn: Psn, msn: u32, syndrome: Syndrome) -> Headers {
    packet(Opcode::RcAck, psn).with_aeth(syndrome, msn)
}

/// Adds headers, one after the other.
pub trait Build: Sized {
    /// Asks for an acknowledgement.
    #[must_use]
    fn ackreq(self) -> Self;
    /// Asks for a completion event.
    #[must_use]
    fn solicited(self) -> Self;
    /// Names remote memory, of the region that every host has.
    #[must_use]
    fn with_reth(self, va: u64, dma_len: u32) -> Self;
    /// Names eight bytes of it.
    #[must_use]
    fn atomic(self, va: u64, swap_add: u64, compare: u64) -> Self;
    /// Adds an AETH.
    #[must_use]
    fn with_aeth(self, syndrome: Syndrome, msn: u32) -> Self;
    /// Adds an atomic's old value.
    #[must_use]
    fn orig(self, orig: u64) -> Self;
    /// Carries immediate data.
    #[must_use]
    fn imm(self, data: u32) -> Self;
    /// Invalidates a key.
    #[must_use]
    fn inv(self, rkey: u32) -> Self;
    /// Identifies the sender of a datagram.
    #[must_use]
    fn with_deth(self, qkey: iba::QKey, src_qp: Qpn) -> Self;
}

impl Build for Headers {
    fn ackreq(mut self) -> Self {
        self.bth.ackreq = true;
        self
    }

    fn solicited(mut self) -> Self {
        self.bth.se = true;
        self
    }

    fn with_reth(mut self, va: u64, dma_len: u32) -> Self {
        self.set_reth(Reth { va, rkey: RKey(KEY), dma_len });
        self
    }

    fn atomic(mut self, va: u64, swap_add: u64, compare: u64) -> Self {
        self.set_atomic_eth(AtomicEth { va, rkey: RKey(KEY), swap_add, compare });
        self
    }

    fn with_aeth(mut self, syndrome: Syndrome, msn: u32) -> Self {
        self.set_aeth(Aeth { syndrome, msn: iba::Msn::new(msn) });
        self
    }

    fn orig(mut self, orig: u64) -> Self {
        self.set_atomic_ack_eth(AtomicAckEth { orig });
        self
    }

    fn imm(mut self, data: u32) -> Self {
        self.set_imm_dt(ImmDt { data });
        self
    }

    fn inv(mut self, rkey: u32) -> Self {
        self.set_ieth(Ieth { rkey: RKey(rkey) });
        self
    }

    fn with_deth(mut self, qkey: iba::QKey, src_qp: Qpn) -> Self {
        self.set_deth(Deth { qkey, src_qp });
        self
    }
}

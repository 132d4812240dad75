//! A request as a packet: its opcode, its headers, its part of the payload.

use iba::{SendFlags, WrOpcode};
use wire::{
    AtomicEth, Feth, Headers, Ieth, ImmDt, Opcode, Operation, Position, Reth, Selectivity, Service,
};

use crate::env::Source;
use crate::qp::Qp;
use crate::wqe::Wqe;
use crate::wr::Data;

impl Qp {
    /// The opcode of a packet of the QP's service. An opcode that the service does not have is
    /// unknown, but no such request can be posted ([`Qp::post_send`]).
    pub(crate) fn opcode(&self, operation: Operation, position: Position) -> Opcode {
        Service::of(self.qp_type)
            .and_then(|service| Opcode::new(service, operation, position))
            .unwrap_or(Opcode::Unknown(0xff))
    }
}

/// What the packets of a request do.
pub(crate) const fn operation_of(opcode: WrOpcode) -> Operation {
    match opcode {
        WrOpcode::RdmaWrite => Operation::Write,
        WrOpcode::RdmaWriteWithImm => Operation::WriteWithImm,
        WrOpcode::SendWithImm => Operation::SendWithImm,
        WrOpcode::SendWithInv => Operation::SendWithInv,
        WrOpcode::RdmaRead => Operation::ReadRequest,
        WrOpcode::AtomicCmpAndSwp => Operation::CmpSwap,
        WrOpcode::AtomicFetchAndAdd => Operation::FetchAdd,
        WrOpcode::AtomicWrite => Operation::AtomicWrite,
        WrOpcode::Flush => Operation::Flush,
        // No packet carries the others.
        _ => Operation::Send,
    }
}

/// Fills in the header fields other than opcode and sequence number.
pub(crate) fn describe(headers: &mut Headers, wqe: &Wqe, offset: u32, position: Position) {
    let wr = &wqe.wr;
    let ends = matches!(position, Position::Last | Position::Only);
    let begins = matches!(position, Position::First | Position::Only);
    match wr.opcode {
        WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm if begins => {
            headers.set_reth(Reth { va: wr.remote_addr, rkey: wr.rkey, dma_len: wqe.length });
        }
        WrOpcode::RdmaRead => {
            // A READ that is repeated from its middle requests only the rest, as in the kernel's
            // `req_retry` (IBA 9.7.6).
            headers.set_reth(Reth {
                va: wr.remote_addr.wrapping_add(u64::from(offset)),
                rkey: wr.rkey,
                dma_len: wqe.length - offset,
            });
        }
        WrOpcode::AtomicWrite | WrOpcode::Flush => {
            headers.set_reth(Reth { va: wr.remote_addr, rkey: wr.rkey, dma_len: wqe.length });
            if let Data::Flush(flush) = &wr.data {
                let selectivity = if flush.whole { Selectivity::Mr } else { Selectivity::Range };
                let (global, persistent) = (flush.global, flush.persistent);
                headers.set_feth(Feth { global, persistent, selectivity });
            }
        }
        WrOpcode::AtomicCmpAndSwp => {
            headers.set_atomic_eth(AtomicEth {
                va: wr.remote_addr,
                rkey: wr.rkey,
                swap_add: wr.swap,
                compare: wr.compare_add,
            });
        }
        WrOpcode::AtomicFetchAndAdd => {
            headers.set_atomic_eth(AtomicEth {
                va: wr.remote_addr,
                rkey: wr.rkey,
                swap_add: wr.compare_add,
                compare: 0,
            });
        }
        _ => {}
    }
    if !ends {
        return;
    }
    match wr.opcode {
        WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm => {
            headers.set_imm_dt(ImmDt { data: wr.imm });
        }
        WrOpcode::SendWithInv => headers.set_ieth(Ieth { rkey: iba::RKey(wr.imm) }),
        _ => {}
    }
    // IBA 9.2.3: only what completes a receive can raise an event.
    headers.bth.se = wr.flags.contains(SendFlags::SOLICITED)
        && !matches!(wr.opcode, WrOpcode::RdmaWrite)
        && !wqe.is_answered();
}

/// The source of `length` bytes at `offset` of a message.
pub(crate) fn payload(data: &Data, offset: u32, length: u32) -> Source<'_> {
    match data {
        _ if length == 0 => Source::Empty,
        // These carry no payload.
        Data::Bind(_) | Data::Flush(_) => Source::Empty,
        Data::Sges(sges) => Source::Sges { sges, offset: u64::from(offset), length },
        Data::Inline(bytes) => Source::Bytes(&bytes[offset as usize..][..length as usize]),
    }
}

//! A request as a packet: its opcode, its headers, its part of the payload.

use iba::{QpType, SendFlags, WrOpcode};
use wire::{AtomicEth, Feth, Headers, Ieth, ImmDt, Opcode, Position, Reth, Selectivity};

use crate::env::Source;
use crate::wqe::Wqe;
use crate::wr::Data;

/// The opcode of a packet of a request over RC, UC or XRC.
pub(crate) fn request_opcode(qp_type: QpType, opcode: WrOpcode, position: Position) -> Opcode {
    use Position::{First, Last, Middle, Only};
    use WrOpcode as W;

    let rc = match (opcode, position) {
        (W::RdmaWrite | W::RdmaWriteWithImm, First) => Opcode::RcWriteFirst,
        (W::RdmaWrite | W::RdmaWriteWithImm, Middle) => Opcode::RcWriteMiddle,
        (W::RdmaWrite, Last) => Opcode::RcWriteLast,
        (W::RdmaWrite, Only) => Opcode::RcWriteOnly,
        (W::RdmaWriteWithImm, Last) => Opcode::RcWriteLastWithImm,
        (W::RdmaWriteWithImm, Only) => Opcode::RcWriteOnlyWithImm,
        (W::RdmaRead, _) => Opcode::RcReadRequest,
        (W::AtomicCmpAndSwp, _) => Opcode::RcCmpSwap,
        (W::AtomicFetchAndAdd, _) => Opcode::RcFetchAdd,
        (W::AtomicWrite, _) => Opcode::RcAtomicWrite,
        (W::Flush, _) => Opcode::RcFlush,
        (_, First) => Opcode::RcSendFirst,
        (_, Middle) => Opcode::RcSendMiddle,
        (W::SendWithImm, Last) => Opcode::RcSendLastWithImm,
        (W::SendWithImm, Only) => Opcode::RcSendOnlyWithImm,
        (W::SendWithInv, Last) => Opcode::RcSendLastWithInv,
        (W::SendWithInv, Only) => Opcode::RcSendOnlyWithInv,
        (_, Last) => Opcode::RcSendLast,
        (_, Only) => Opcode::RcSendOnly,
    };
    of_service(qp_type, rc)
}

/// The opcode that is the same for a QP's service as this one is for RC: only the top three bits
/// differ (IBA table 38).
pub(crate) fn of_service(qp_type: QpType, rc: Opcode) -> Opcode {
    match qp_type {
        QpType::Uc => Opcode::from(u8::from(rc) | 0x20),
        QpType::XrcSend | QpType::XrcRecv => Opcode::from(u8::from(rc) | 0xa0),
        _ => rc,
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

/// Where `length` bytes at `offset` of a message come from.
pub(crate) fn payload(data: &Data, offset: u32, length: u32) -> Source<'_> {
    match data {
        _ if length == 0 => Source::Empty,
        // Nothing that travels.
        Data::Bind(_) | Data::Flush(_) => Source::Empty,
        Data::Sges(sges) => Source::Sges { sges, offset: u64::from(offset), length },
        Data::Inline(bytes) => Source::Bytes(&bytes[offset as usize..][..length as usize]),
    }
}

#[cfg(test)]
mod tests {
    use wire::{Operation, Service};

    use super::*;

    #[test]
    fn request_opcodes_are_those_of_the_table() {
        let table = [
            (WrOpcode::Send, Operation::Send),
            (WrOpcode::SendWithImm, Operation::SendWithImm),
            (WrOpcode::SendWithInv, Operation::SendWithInv),
            (WrOpcode::RdmaWrite, Operation::Write),
            (WrOpcode::RdmaWriteWithImm, Operation::WriteWithImm),
        ];
        for (opcode, operation) in table {
            for position in [Position::First, Position::Middle, Position::Last, Position::Only] {
                for (qp_type, service) in [(QpType::Rc, Service::Rc), (QpType::Uc, Service::Uc)] {
                    if let Some(expected) = Opcode::new(service, operation, position) {
                        assert_eq!(request_opcode(qp_type, opcode, position), expected);
                    }
                }
            }
        }
    }
}

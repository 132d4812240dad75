//! Bits that flip in transit.

use std::net::{Ipv6Addr, SocketAddr};

use wire::icrc::{self, Flow};
use wire::{Headers, bth};

use crate::host::Sent;
use crate::link::Rng;

/// Flips bits of a packet. `None` if the port that receives it finds its ICRC wrong, otherwise the
/// changed packet. The checksum finds all single and double errors, and every run of up to 32 bits.
///
/// # Panics
///
/// If the packet cannot be encoded.
pub(crate) fn damage(rng: &mut Rng, sent: &Sent) -> Option<Sent> {
    // IPv6: its packets have no identification field, which a socket does not see.
    let end = |last| SocketAddr::from((Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last), 4791));
    let flow = Flow::new(end(1), end(2)).expect("two addresses of one family");

    let mut headers = sent.headers;
    headers.bth.pad = bth::pad_for(sent.payload.len());
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes);
    bytes.extend_from_slice(&sent.payload);
    bytes.resize(bytes.len() + usize::from(headers.bth.pad), 0);
    let sum = icrc::compute(&flow, 0, &bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());

    let bits = bytes.len() as u64 * 8;
    let first = rng.below(bits);
    let run = 1 + rng.below(32.min(bits - first));
    for bit in first..first + run {
        // The ends of the run are wrong; the bits between may be.
        if bit == first || bit == first + run - 1 || rng.chance(500) {
            bytes[(bit / 8) as usize] ^= 0x80 >> (bit % 8);
        }
    }
    let (packet, _) = icrc::verify(&flow, &bytes).ok()?;
    let (headers, range) = Headers::parse(packet).ok()?;
    Some(Sent { headers, payload: packet[range].to_vec(), skipped: sent.skipped })
}

#[cfg(test)]
mod tests {
    use iba::{Psn, Qpn};
    use wire::Opcode;

    use super::*;

    #[test]
    fn a_run_of_wrong_bits_is_found_unless_switches_may_change_the_bits() {
        let mut rng = Rng::new(5);
        for round in 0..20_000 {
            let headers = Headers::new(Opcode::RcSendOnly, Qpn::new(0x12), Psn::new(3));
            let payload = vec![7; round % 64];
            let sent = Sent { headers, payload, skipped: Default::default() };
            if let Some(mut got) = damage(&mut rng, &sent) {
                (got.headers.bth.fecn, got.headers.bth.becn) = (false, false);
                got.headers.bth.pad = 0;
                assert_eq!(got, sent, "round {round}");
            }
        }
    }
}

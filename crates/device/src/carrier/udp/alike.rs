//! Packets that arrived in a row and differ only in their number and their payload: they are
//! checked in one loop, and handled together.

use link::udp::Payloads;
use umem::{Pieces, crc32_pieces, sums_pieces};
use wire::icrc::{self, Flow, Verifier};
use wire::{Headers, bth};
use zerocopy::IntoBytes;

/// The most packets of a message that are handled together, half of a train: more do not stay in
/// the L1 cache between the check and the copy.
pub(crate) const MOST_JOINED: u32 = 31;

/// How many of the packets at hand are like the first one, which is valid, apart from consecutive
/// sequence numbers: these may be handled with it in one pass. They are checked as the first one
/// was.
pub(crate) fn count_alike(
    verifier: &mut Verifier,
    flow: &Flow,
    (first, first_id): (&[u8], u16),
    headers: &Headers,
    rest: &Payloads<'_>,
    most: u32,
) -> u32 {
    let count =
        rest.clone().take((most - 1) as usize).take_while(|p| p.len() == first.len()).count();
    let good = count_good(verifier, flow, (first, first_id), headers, rest, count);
    // The identifications of a sender need not count up, and not every processor can check several
    // packets at once.
    let mut bth = headers.bth;
    bth.psn = bth.psn.add(good as u32);
    let is_good = |next: &&[u8]| {
        bth.psn = bth.psn.add(1);
        next.starts_with(bth.to_raw().as_bytes()) && verifier.verify(flow, next).is_ok()
    };
    1 + (good + rest.clone().take(count).skip(good).take_while(is_good).count()) as u32
}

/// Checks this many packets at once, which are as long as the first one. Returns how many of them
/// are like it apart from their sequence numbers, and valid if their identifications count up, too.
fn count_good(
    verifier: &mut Verifier,
    flow: &Flow,
    (first, first_id): (&[u8], u16),
    headers: &Headers,
    packets: &Payloads<'_>,
    count: usize,
) -> usize {
    let mut crcs = [0; MOST_JOINED as usize];
    let crcs = &mut crcs[..count];
    let Some(len) = first.len().checked_sub(bth::LEN + icrc::LEN) else { return 0 };
    if count == 0 || !sums_pieces(len) {
        return 0;
    }
    let mut bth = headers.bth;
    bth.psn = bth.psn.add(1);
    let mut id = first_id.wrapping_add(1);
    let mut begun = verifier.begin(flow, id, first.len() - icrc::LEN, bth.to_raw().as_bytes());
    for crc in &mut *crcs {
        *crc = begun;
        begun = icrc::next_of_train(begun, flow, id, bth.psn);
        (id, bth.psn) = (id.wrapping_add(1), bth.psn.add(1));
    }
    let pieces = Pieces { first: bth::LEN, len, stride: first.len(), count };
    if !crc32_pieces(packets.bytes(), pieces, crcs) {
        return 0;
    }
    // The headers are checked after the payloads, which brought them to the cache.
    bth.psn = headers.bth.psn;
    let is_good = |(packet, crc): &(&[u8], &mut u32)| {
        bth.psn = bth.psn.add(1);
        packet.starts_with(bth.to_raw().as_bytes()) && packet.ends_with(&crc.to_le_bytes())
    };
    let good = packets.clone().zip(crcs).take_while(is_good).count();
    if good > 0 {
        verifier.found(first_id.wrapping_add(good as u16));
    }
    good
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use iba::{Psn, Qpn};
    use wire::Opcode;

    use super::*;

    const PAYLOAD: usize = 512;
    const SIZE: usize = bth::LEN + PAYLOAD + icrc::LEN;

    fn flow() -> Flow {
        let [here, there] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|ip| SocketAddr::from((ip, 4791)));
        Flow::new(here, there).unwrap()
    }

    fn headers() -> Headers {
        // The numbers wrap in the middle of the train.
        Headers::new(Opcode::RcWriteMiddle, Qpn::new(77), Psn::new(0xff_fffc))
    }

    /// Twelve packets with the identifications that `id` gives.
    fn train(id: impl Fn(u16) -> u16) -> Vec<u8> {
        let mut headers = headers();
        let mut bytes = Vec::new();
        for index in 0..12 {
            let mut packet = vec![0; bth::LEN];
            headers.emit(&mut packet);
            packet.extend((0..PAYLOAD).map(|at| (at * 7 + at / 256) as u8 ^ index as u8));
            let icrc = icrc::compute(&flow(), id(index), &packet);
            bytes.extend([&packet[..], &icrc.to_le_bytes()].concat());
            headers.bth.psn = headers.bth.psn.add(1);
        }
        bytes
    }

    fn alike(bytes: &[u8], most: u32) -> u32 {
        umem::guard::recheck();
        let mut rest = Payloads::cut(bytes, SIZE);
        let first = rest.next().unwrap();
        let mut verifier = Verifier::new();
        let (_, id) = verifier.verify(&flow(), first).unwrap();
        count_alike(&mut verifier, &flow(), (first, id), &headers(), &rest, most)
    }

    #[test]
    fn packets_that_continue_the_first_are_handled_with_it_whatever_their_identifications() {
        let ids: [fn(u16) -> u16; 5] =
            [|at| at, |at| 0xfffa_u16.wrapping_add(at), |_| 0, |at| 0x1234 ^ at << 9, |at| at / 5];
        for id in ids {
            let train = train(id);
            assert_eq!(alike(&train, 12), 12);
            assert_eq!(alike(&train, 31), 12, "there are no more");
            assert_eq!(alike(&train, 2), 2);
            assert_eq!(alike(&train[..5 * SIZE + 100], 12), 5, "a shorter one is none of them");
        }
    }

    #[test]
    fn a_broken_packet_or_one_that_is_not_the_next_ends_the_run() {
        for place in 1..12 {
            for at in [0, 8, 11, bth::LEN, bth::LEN + 300, SIZE - 5, SIZE - 4, SIZE - 1] {
                let mut train = train(|at| at);
                train[place * SIZE + at] ^= 0x10;
                assert_eq!(alike(&train, 12), place as u32, "byte {at} of packet {place}");
            }
            // Valid packets, of which one is missing, or arrives twice.
            let mut gap = train(|at| at);
            gap.drain(place * SIZE..(place + 1) * SIZE);
            let expected = if place == 11 { 11 } else { place };
            assert_eq!(alike(&gap, 12), expected as u32);
            let mut twice = train(|at| at);
            twice.copy_within((place - 1) * SIZE..place * SIZE, place * SIZE);
            assert_eq!(alike(&twice, 12), place as u32);
        }
    }

    #[test]
    fn the_next_train_is_expected_where_this_one_ended() {
        umem::guard::recheck();
        let train = train(|at| 20 + at);
        let mut rest = Payloads::cut(&train, SIZE);
        let first = rest.next().unwrap();
        let mut verifier = Verifier::new();
        let (_, id) = verifier.verify(&flow(), first).unwrap();
        assert_eq!(id, 20);
        assert_eq!(count_alike(&mut verifier, &flow(), (first, id), &headers(), &rest, 8), 8);
        let next = rest.nth(7).unwrap();
        assert_eq!(verifier.verify(&flow(), next).map(|(_, id)| id), Ok(28));
    }
}

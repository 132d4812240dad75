//! Invalid packets (IBA 9.7.4): refused or dropped, without other effects.

use crate::prelude::*;

/// The QP answers a packet with "invalid request" and is in ERR for this step.
#[track_caller]
fn refused(before: &[(wire::Headers, usize)], headers: wire::Headers, length: usize, step: Step) {
    let mut s = Station::new(&Options::rc());
    s.post_recv(build::recv(7, BASE, 4000));
    for (headers, length) in before {
        send!(s, 0, *headers, &vec![0; *length]);
    }
    send!(s, 1, headers, &vec![0; length]);
    recv!(s, 1, nak(headers.bth.psn, 0, Syndrome::Nak(NakCode::InvalidRequest)));
    assert_eq!(s.qp.last_refusal(), Some(step));
    assert_eq!(s.qp.state(), QpState::Err);
}

#[test]
fn messages_have_a_beginning() {
    for opcode in [Opcode::RcSendMiddle, Opcode::RcSendLast, Opcode::RcWriteLast] {
        refused(&[], packet(opcode, rq(0)), 256, Step::ErrMissingOpcodeFirst);
    }
}

#[test]
fn messages_end_before_the_next_begins() {
    let first = (packet(Opcode::RcSendFirst, rq(0)), 256);
    for opcode in [Opcode::RcSendFirst, Opcode::RcSendOnly, Opcode::RcWriteLast] {
        refused(&[first], packet(opcode, rq(1)), 256, Step::ErrMissingOpcodeLastC);
    }
    let read = packet(Opcode::RcReadRequest, rq(1)).with_reth(BASE, 8);
    refused(&[first], read, 0, Step::ErrMissingOpcodeLastC);
}

#[test]
fn lengths_are_exact() {
    let first = (packet(Opcode::RcSendFirst, rq(0)), 256);
    let write = (packet(Opcode::RcWriteFirst, rq(0)).with_reth(BASE, 300), 256);
    let cases: [(&[_], _, _); 10] = [
        (&[], packet(Opcode::RcSendFirst, rq(0)), 255),
        (&[], packet(Opcode::RcSendFirst, rq(0)), 0),
        (&[], packet(Opcode::RcSendOnly, rq(0)), 257),
        (&[first], packet(Opcode::RcSendMiddle, rq(1)), 512),
        (&[first], packet(Opcode::RcSendLast, rq(1)), 0),
        (&[], packet(Opcode::RcWriteOnly, rq(0)).with_reth(BASE, 9), 8),
        (&[], packet(Opcode::RcWriteFirst, rq(0)).with_reth(BASE, 256), 256),
        (&[write], packet(Opcode::RcWriteLast, rq(1)), 45),
        (&[write], packet(Opcode::RcWriteMiddle, rq(1)), 256),
        (&[], packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, u32::MAX), 0),
    ];
    for (before, headers, length) in cases {
        refused(before, headers, length, Step::ErrLength);
    }
    refused(&[], packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 8), 4, Step::ErrLength);
}

#[test]
fn a_flush_to_nowhere_is_an_invalid_request() {
    let mut flush = packet(Opcode::RcFlush, rq(0)).with_reth(BASE, 8);
    flush.set_feth(wire::Feth::default());
    refused(&[], flush, 0, Step::ErrUnsupportedOpcode);
}

#[test]
fn packets_of_another_service_are_dropped() {
    let mut s = Station::new(&Options::rc());
    s.post_recv(build::recv(7, BASE, 4000));
    for opcode in [Opcode::UcSendOnly, Opcode::UdSendOnly, Opcode::Unknown(0x1f)] {
        send!(s, 0, packet(opcode, rq(0)), b"x");
    }
    recv_nothing!(s, 0);
    assert_eq!(s.host.counted(Counter::DroppedPacket), 3);
    assert_eq!(s.qp.state(), QpState::Rts);
}

#[test]
fn missing_headers_that_an_opcode_promises_do_no_harm() {
    for opcode in Opcode::ALL.iter().copied() {
        for length in [0, 1, 256, 257] {
            for psn in [rq(0), rq(1), rq(0).sub(1), sq(0), sq(1)] {
                let mut s = Station::new(&Options::rc());
                s.post_recv(build::recv(7, BASE, 4000));
                s.post(build::read(8, BASE, 8, BASE));
                s.at(0);
                send!(s, 1, packet(opcode, psn), &vec![0; length]);
                s.at(2);
            }
        }
    }
}

/// Any packet in any state: nothing panics, and nothing grows without bound.
#[test]
fn noise_does_no_harm() {
    let mut rng = fabric_sim::Rng::new(3);
    for options in [Options::rc(), Options::uc(), Options::ud(), Options::rc().over_memory(1024)] {
        for _ in 0..200 {
            let mut s = Station::new(&options);
            s.host.room = Some(4);
            for wr_id in 0..8 {
                s.post_recv(build::recv(wr_id, BASE, 700));
                if options.qp_type == iba::QpType::Rc {
                    s.post(build::read(wr_id, BASE, 700, BASE));
                }
            }
            for _ in 0..100 {
                let opcode = Opcode::ALL[rng.below(Opcode::ALL.len() as u64) as usize];
                let base = if rng.chance(500) { rq(0) } else { sq(0) };
                let mut headers = packet(opcode, base.add(rng.below(40) as u32).sub(10));
                if rng.chance(800) {
                    let length = [0, 8, 256, 600, u32::MAX][rng.below(5) as usize];
                    headers = headers
                        .with_reth(BASE + rng.below(9), length)
                        .atomic(BASE + rng.below(9), 1, 2)
                        .with_aeth(Syndrome::from(rng.next() as u8), 1)
                        .orig(1)
                        .with_deth(QKEY, PEER);
                }
                headers.bth.ackreq = rng.chance(500);
                s.skipped = Skipped { psns: rng.below(3) as u32, messages: rng.next() as u32 };
                let length = [0, 1, 8, 255, 256, 512, 1000][rng.below(7) as usize];
                let now = s.now.as_nanos() / 1000 + rng.below(20);
                send!(s, now, headers, &vec![0; length]);
                if rng.chance(300) {
                    s.host.out.clear();
                }
            }
        }
    }
}

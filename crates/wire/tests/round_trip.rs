//! Headers survive a round trip for every opcode, and no input causes a panic.

use iba::{Msn, PKey, Psn, QKey, Qpn, RKey};
use proptest::prelude::*;
use proptest::sample::select;
use wire::bth::pad_for;
use wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ext, Feth, Headers, Ieth, ImmDt, Opcode, Reth, Sack,
    SackRange, Srqn, Syndrome, Xrceth, pretty,
};

prop_compose! {
    fn bths()(
        opcode in select(Opcode::ALL),
        [se, migreq, fecn, becn, ackreq] in any::<[bool; 5]>(),
        (pad, pkey, dest_qp, psn) in (0..4_u8, any::<u16>(), any::<u32>(), any::<u32>()),
    ) -> Bth {
        let (pkey, dest_qp, psn) = (PKey(pkey), Qpn::new(dest_qp), Psn::new(psn));
        Bth { opcode, se, migreq, pad, pkey, fecn, becn, dest_qp, ackreq, psn }
    }
}

prop_compose! {
    /// Headers with exactly the extension headers of their opcode.
    fn headers()(
        bth in bths(),
        [va, swap_add, compare, orig] in any::<[u64; 4]>(),
        [rkey, dma_len, qkey, src_qp, srqn, data, msn] in any::<[u32; 7]>(),
        (syndrome, selectivity, global, persistent) in any::<(u8, u8, bool, bool)>(),
    ) -> Headers {
        let mut headers = Headers::from_bth(bth);
        let rkey = RKey(rkey);
        for ext in bth.opcode.info().headers {
            match ext {
                Ext::Xrceth => headers.set_xrceth(Xrceth { srqn: Srqn::new(srqn) }),
                Ext::Deth => {
                    headers.set_deth(Deth { qkey: QKey(qkey), src_qp: Qpn::new(src_qp) });
                }
                Ext::Feth => {
                    let selectivity = selectivity.into();
                    headers.set_feth(Feth { global, persistent, selectivity });
                }
                Ext::Reth => headers.set_reth(Reth { va, rkey, dma_len }),
                Ext::AtomicEth => {
                    headers.set_atomic_eth(AtomicEth { va, rkey, swap_add, compare });
                }
                Ext::Aeth => {
                    let syndrome = Syndrome::from(syndrome);
                    headers.set_aeth(Aeth { syndrome, msn: Msn::new(msn) });
                }
                Ext::AtomicAckEth => headers.set_atomic_ack_eth(AtomicAckEth { orig }),
                Ext::ImmDt => headers.set_imm_dt(ImmDt { data }),
                Ext::Ieth => headers.set_ieth(Ieth { rkey }),
                Ext::Sack => {
                    let mut sack = Sack::default();
                    sack.ranges[3] = SackRange { ahead: srqn as u16, count: msn as u16 };
                    headers.set_sack(sack);
                }
                other => unreachable!("no strategy for {other:?}"),
            }
        }
        headers
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn headers_survive_a_round_trip(mut headers in headers(), payload in 0..64_usize) {
        headers.bth.pad = pad_for(payload);
        let len = headers.len();
        let mut packet = vec![0xaa; len + payload + usize::from(headers.bth.pad)];
        prop_assert_eq!(headers.emit(&mut packet), len);
        prop_assert!(packet[len..].iter().all(|byte| *byte == 0xaa), "nothing beyond the headers");
        prop_assert_eq!(Headers::parse(&packet), Ok((headers, len..len + payload)));
    }

    #[test]
    fn headers_alone_are_read_whatever_follows(headers in headers(), tail: [u8; 8]) {
        let mut bytes = [0; wire::headers::MAX_LEN + 8];
        let len = headers.emit(&mut bytes);
        bytes[len..len + 8].copy_from_slice(&tail);
        prop_assert_eq!(Headers::parse_prefix(&bytes), Ok((headers, len)));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        pretty::exercise(&bytes);
    }

    #[test]
    fn arbitrary_bytes_after_a_known_opcode_never_panic(
        opcode in select(Opcode::ALL), mut bytes in prop::collection::vec(any::<u8>(), 2..96),
    ) {
        bytes[0] = opcode.into();
        bytes[1] &= 0xf0;
        pretty::exercise(&bytes);
    }
}

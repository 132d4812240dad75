//! Messages read back as they were written, and no bytes make a parser panic.

use nvmet::target::io::{self, MAX_DATA};
use nvmet::target::registers::{CSTS_CFS, CSTS_RDY, Registers, offset};
use nvmet::target::subsystem::Geometry;
use nvmet::wire::cm::{Reject, Request};
use nvmet::wire::discovery::{self, ENTRY_LEN, Entry};
use nvmet::wire::fabrics::{Connect, ConnectData, Fabrics};
use nvmet::wire::{Command, Completion, Descriptor, Status, nqn, nqn_of};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

fn geometry(nsid: u32) -> Option<Geometry> {
    (nsid == 1).then_some(Geometry { blocks: 1000, shift: 9 })
}

fn descriptor() -> impl Strategy<Value = Descriptor> {
    prop_oneof![
        (any::<u64>(), any::<u32>())
            .prop_map(|(offset, len)| Descriptor::InCapsule { offset, len }),
        (any::<u64>(), 0u32..1 << 24, any::<u32>(), any::<bool>()).prop_map(
            |(addr, len, key, invalidate)| Descriptor::Keyed { addr, len, key, invalidate }
        ),
    ]
}

proptest! {
    #[test]
    fn descriptors_survive_a_round_trip(one in descriptor()) {
        prop_assert_eq!(Descriptor::from_bytes(&one.to_bytes()), Ok(one));
    }

    #[test]
    fn a_descriptor_is_of_one_of_three_types_or_refused(bytes: [u8; 16]) {
        match Descriptor::from_bytes(&bytes) {
            Ok(_) => prop_assert!([0x01, 0x40, 0x4f].contains(&bytes[15])),
            Err(status) => prop_assert_eq!(status, Status::SGL_TYPE_INVALID.dnr()),
        }
    }

    #[test]
    fn data_of_a_capsule_lie_in_it(offset: u64, len: u32, there in 0u32..20000) {
        let near = offset % 20001;
        for offset in [offset, near] {
            for len in [len, len % 20001] {
                let one = Descriptor::InCapsule { offset, len };
                if let Ok(at) = one.in_capsule(there) {
                    prop_assert_eq!(u64::from(at), offset);
                    prop_assert!(offset + u64::from(len) <= there.into());
                }
            }
        }
    }

    #[test]
    fn commands_and_completions_survive_a_round_trip(bytes: [u8; 64], cid: u16, bits: u16, result: u64) {
        let command = Command::from_capsule(&bytes).expect("long enough");
        prop_assert_eq!(command.as_bytes(), &bytes[..]);
        let status = Status::from_bits(bits);
        let completion = Completion::new(cid, status, result);
        let again = Completion::read_from_bytes(completion.as_bytes()).expect("as long");
        prop_assert_eq!((again.cid.get(), again.status(), again.result.get()), (cid, status, result));
    }

    #[test]
    fn fabrics_commands_survive_a_round_trip(
        recfmt: u16, qid: u16, sqsize: u16, no_flow: bool, kato: u32,
        offset: u32, wide: bool, value: u64,
    ) {
        let size = if wide { 8 } else { 4 };
        for one in [
            Fabrics::Connect(Connect { recfmt, qid, sqsize, no_flow, kato }),
            Fabrics::PropertyGet { offset, size },
            Fabrics::PropertySet { offset, size, value },
        ] {
            prop_assert_eq!(Fabrics::parse(&one.to_command()), Ok(one));
        }
    }

    #[test]
    fn a_plan_stays_inside_its_namespace(bytes: [u8; 64], there in 0u32..=16384, near: bool) {
        let mut command = Command::from_capsule(&bytes).expect("long enough");
        if near {
            // Commands that pass the checks are rare among random ones.
            command.opcode %= 10;
            command.flags = 0x40;
            command.nsid = (command.nsid.get() % 3).into();
            command.cdw10 = (command.cdw10.get() % 1100).into();
            command.cdw11 = 0.into();
            command.cdw12 = (command.cdw12.get() % 300).into();
            let len = (command.cdw12.get() + 1) << 9;
            let one = Descriptor::Keyed { addr: 1, len, key: 2, invalidate: true };
            command.dptr = one.to_bytes();
        }
        match io::plan(&command, there, geometry) {
            Ok(plan) => {
                prop_assert_eq!(plan.nsid, 1);
                prop_assert!(plan.offset + plan.len <= 1000 << 9);
                if matches!(plan.op, io::Op::Read | io::Op::Write) {
                    prop_assert!(plan.len <= MAX_DATA.into());
                    prop_assert_eq!(u64::from(plan.data.len()), plan.len);
                }
            }
            Err(status) => prop_assert_ne!(status, Status::SUCCESS),
        }
    }

    #[test]
    fn private_data_give_a_possible_queue_or_a_reason(
        recfmt in 0u16..3, qid in 0u16..80, hrqsize in 0u16..200, hsqsize in 0u16..200,
        len in 0usize..56,
    ) {
        let mut request = Request::new(qid, 1);
        request.recfmt = recfmt.into();
        (request.hrqsize, request.hsqsize) = (hrqsize.into(), hsqsize.into());
        let mut bytes = request.as_bytes().to_vec();
        bytes.resize(len, 0);
        match Request::parse(&bytes) {
            Ok(shape) => {
                prop_assert!(recfmt == 0 && len >= 32);
                prop_assert_eq!((shape.qid, shape.depth), (qid, hsqsize + 1));
                let most = if qid == 0 { 32 } else { 128 };
                prop_assert!(shape.depth <= most);
            }
            Err(reject) => prop_assert_eq!(len < 32, reject == Reject::InvalidLen),
        }
    }

    #[test]
    fn names_survive_a_round_trip(name in "[a-z0-9.:-]{1,255}") {
        let field = nqn(&name);
        prop_assert_eq!(nqn_of(&field), Some(name.as_str()));
        let data = ConnectData::new([7; 16], 3, &name, &name);
        prop_assert_eq!((data.subsysnqn(), data.hostnqn()), (Some(&*name), Some(&*name)));
        prop_assert_eq!(data.as_bytes().len(), 1024);
    }

    #[test]
    fn discovery_entries_survive_a_round_trip(name in "[a-z0-9.:-]{1,200}", ip: std::net::IpAddr, port: u16) {
        let entry = Entry { subnqn: name, addr: (ip, port).into() };
        prop_assert_eq!(Entry::from_bytes(&entry.to_bytes()), Some(entry.clone()));
        let page = discovery::page(1, &[entry.clone(), entry.clone()]);
        prop_assert_eq!(page.len(), 3 * ENTRY_LEN);
        prop_assert_eq!(discovery::entries(&page), Some((2, vec![entry.clone(), entry])));
    }

    #[test]
    fn a_discovery_page_of_any_bytes_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        if let Some((count, entries)) = discovery::entries(&bytes) {
            prop_assert!(entries.len() as u64 <= count);
        }
    }

    #[test]
    fn a_controller_is_ready_only_while_it_is_enabled(writes in proptest::collection::vec(any::<u32>(), 0..20)) {
        let mut registers = Registers::default();
        for value in writes {
            registers.set(offset::CC, 4, value.into()).expect("CC is written");
            // CAST: a register of 32 bits.
            let cc = registers.get(offset::CC, 4).expect("CC is read") as u32;
            let csts = registers.get(offset::CSTS, 4).expect("CSTS is read") as u32;
            prop_assert!(csts & CSTS_RDY == 0 || cc & 1 != 0);
            prop_assert!(csts & CSTS_RDY == 0 || csts & CSTS_CFS == 0);
            prop_assert_eq!(registers.is_ready(), csts & CSTS_RDY != 0);
        }
    }
}

#[test]
fn a_write_that_must_be_durable_is_planned_as_one_and_directives_are_refused() {
    use nvmet::wire::capsule::opcode;
    for op in [opcode::READ, opcode::WRITE, opcode::WRITE_ZEROES] {
        for (bits, expected) in [(0, Ok(false)), (1 << 30, Ok(true)), (1 << 26, Err(()))] {
            let mut command = Command::io(op, 1, 3, 2);
            command.cdw12 = (command.cdw12.get() | bits).into();
            let data = Descriptor::Keyed { addr: 1, len: 1024, key: 2, invalidate: true };
            command.dptr = data.to_bytes();
            let planned = io::plan(&command, 0, geometry).map(|plan| plan.fua);
            assert_eq!(planned.map_err(drop), expected, "{op} {bits:#x}");
        }
    }
    let mut streams = Command::io(opcode::WRITE, 1, 0, 1);
    streams.cdw12 = (1 << 20).into();
    assert_eq!(io::plan(&streams, 0, geometry), Err(Status::INVALID_FIELD.dnr()));
}

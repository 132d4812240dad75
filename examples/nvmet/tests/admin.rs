//! The admin queue: what a host asks before its first block.

mod common;

use std::time::{Duration, Instant};

use common::{Bench, NQN, SIZE, pattern, status, two_files, until};
use nvmet::host::{Data, Host, HostError, Queue, Who, discover};
use nvmet::target::Target;
use nvmet::target::admin::feature;
use nvmet::target::registers::{CC_ENABLE, CSTS_CFS, Registers, VERSION, offset};
use nvmet::target::subsystem::{Namespace, Subsystem};
use nvmet::wire::capsule::opcode;
use nvmet::wire::cm::{ADMIN_DEPTH, MAX_QID, Reject, Request};
use nvmet::wire::fabrics::{ANY_CNTLID, ConnectData, Field};
use nvmet::wire::{Command, DISCOVERY_NQN, Status, discovery, nqn_of};
use providers::Kind;
use verbs::cm::RejReason;
use verbs::soft::{self, NicConfig};
use zerocopy::IntoBytes;

#[test]
fn a_host_discovers_the_subsystem_at_the_address_where_it_connects() {
    let bench = Bench::new(Kind::System);
    let entries = discover(&bench.host, bench.target.addr()).expect("it tells");
    let [entry] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!((entry.subnqn.as_str(), entry.addr), (NQN, bench.target.addr()));
    until("its controller is gone", || bench.target.controllers() == 0);
}

#[test]
fn a_target_at_all_addresses_reports_the_one_that_the_host_connected_to() {
    let bench = Bench::new(Kind::System);
    let device = soft::device(NicConfig {
        name: format!("nvmet-all-{}", std::process::id()),
        ..bench.machine.nic()
    });
    let device = device.expect("a NIC");
    let (ours, host) = (device.open().expect("opens"), soft::open_another(&device).expect("opens"));
    let all = (std::net::Ipv4Addr::UNSPECIFIED, 0).into();
    let subsystem = Subsystem::new(NQN, Vec::new());
    let target = Target::start(&bench.machine, &ours, all, subsystem, 1).expect("it starts");
    let at = (ours.default_gid().unwrap().gid.to_ip(), target.addr().port()).into();
    let entries = discover(&host, at).expect("it tells");
    assert_eq!(entries.iter().map(|entry| entry.addr).collect::<Vec<_>>(), [at]);
}

#[test]
fn a_discovery_controller_has_no_namespaces_and_no_io_queues() {
    let bench = Bench::new(Kind::System);
    let who = Who::new(bench.target.addr(), DISCOVERY_NQN);
    let mut host = Host::connect(&bench.host, &who).expect("it connects");
    let page = host.identify(0x01, 0).expect("a page");
    assert_eq!(page[111], 2, "CNTRLTYPE");
    assert_eq!(nqn_of(&page[768..1024]), Some(DISCOVERY_NQN));
    assert_eq!(page[516..520], [0; 4], "NN");
    assert_eq!(page[261], 1 << 2, "LPA: no page of effects");
    assert_eq!(status(host.log_page(0x05, 0, 4096)), Status::INVALID_LOG_PAGE.dnr());
    assert_eq!(status(host.identify(0x02, 0)), Status::INVALID_FIELD.dnr());
    assert_eq!(status(host.log_page(0x02, 0, 512)), Status::INVALID_LOG_PAGE.dnr());
    let refusal = host.add_queue(1, 16);
    assert_eq!(status(refusal), Status::CONNECT_INVALID_PARAMETERS.dnr());
}

#[test]
fn identify_controller_has_what_the_kernels_host_insists_on() {
    let bench = Bench::new(Kind::System);
    let mut host = bench.connect();
    let page = host.identify(0x01, 0).expect("a page");
    let half = |at: usize| u16::from_le_bytes([page[at], page[at + 1]]);
    let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(half(78), host.cntlid, "CNTLID is what Connect returned");
    assert_eq!(word(80), VERSION);
    assert_eq!(page[77], 5, "MDTS");
    assert_eq!(page[111], 1, "CNTRLTYPE: I/O");
    assert!(half(320) > 0, "KAS: keep alive is mandatory");
    assert_eq!((page[512], page[513]), (0x66, 0x44), "SQES and CQES");
    assert!(u64::from(half(514)) > Registers::CAP & 0xffff, "MAXCMD");
    assert_eq!(word(516), 1024, "NN");
    assert_eq!(word(92), 1 << 8, "OAES: namespaces that change");
    assert_eq!(half(520), 1 << 2 | 1 << 3 | 1 << 5, "ONCS");
    assert_eq!(word(536), 1 | 1 << 2 | 1 << 20, "SGLS: keyed, offsets");
    assert_eq!(word(1792), (64 + 16384) / 16, "IOCCSZ");
    assert_eq!(host.in_capsule(), 16384, "what the host makes of it");
    assert_eq!(word(1796), 1, "IORCSZ");
    assert_eq!(half(1800), 0, "ICDOFF");
    assert_eq!(page[1803], 1, "MSDBD");
    assert_eq!(nqn_of(&page[768..1024]), Some(NQN));
}

/// The kernel's host asks for these pages whatever version the controller has, and it would write a
/// refusal to the error log of each controller that it connects to.
#[test]
fn the_pages_of_the_nvm_command_set_are_zeros() {
    let bench = Bench::new(Kind::System);
    let mut host = bench.connect();
    for nsid in [1, 2] {
        assert_eq!(host.identify(0x05, nsid).expect("a page"), [0; 4096]);
    }
    assert_eq!(status(host.identify(0x05, 3)), Status::INVALID_NAMESPACE.dnr());
    assert_eq!(host.identify(0x06, 0).expect("a page"), [0; 4096]);
    let mut other_set = Command::new(opcode::IDENTIFY, 0);
    (other_set.cdw10, other_set.cdw11) = (0x06.into(), (1 << 24).into());
    let data = Data::In { len: 4096, invalidate: true };
    let refusal = host.admin.run(&other_set, data, &mut [0; 4096]);
    assert_eq!(status(refusal), Status::INVALID_FIELD.dnr());
}

#[test]
fn namespaces_have_sizes_of_files_and_names_of_their_own() {
    let bench = Bench::new(Kind::System);
    let mut host = bench.connect();
    let namespaces = host.namespaces().expect("a list");
    assert_eq!(namespaces.iter().map(|one| one.nsid).collect::<Vec<_>>(), [1, 2]);
    for one in &namespaces {
        assert_eq!(one.blocks * u64::from(one.block), SIZE);
        let list = host.identify(0x03, one.nsid).expect("descriptors");
        assert_eq!((list[0], list[1], &list[4..20]), (2, 16, &one.nguid[..]));
        assert_eq!((list[20], list[21], list[40]), (3, 16, 0), "a UUID, and the end");
    }
    assert_ne!(namespaces[0].nguid, namespaces[1].nguid);
    let rest = host.identify(0x02, 1).expect("a list");
    assert_eq!(rest[..8], [2, 0, 0, 0, 0, 0, 0, 0], "those above 1");
    for nsid in [0, 3, 0xffff_ffff] {
        assert_eq!(status(host.identify(0x03, nsid)), Status::INVALID_NAMESPACE.dnr());
    }
    assert_eq!(host.identify(0x00, 3).expect("a page"), [0; 4096], "one that is not there");
    for nsid in [0, 1025, 0xffff_ffff] {
        assert_eq!(status(host.identify(0x00, nsid)), Status::INVALID_NAMESPACE.dnr());
    }
    assert_eq!(status(host.identify(0x02, 0xffff_ffff)), Status::INVALID_NAMESPACE.dnr());
    assert_eq!(status(host.identify(0x55, 0)), Status::INVALID_FIELD.dnr());
}

#[test]
fn registers_are_read_and_written_by_property() {
    let bench = Bench::new(Kind::System);
    let mut host = Host::connect(&bench.host, &bench.who()).expect("it connects");
    assert_eq!(host.register(offset::CAP, 8).expect("CAP"), Registers::CAP);
    assert_eq!(host.register(offset::VS, 4).expect("VS"), VERSION.into());
    assert_eq!(host.register(offset::CC, 4).expect("CC"), CC_ENABLE.into());
    for (at, size) in [(offset::CAP, 4), (offset::VS, 8), (0x40, 4)] {
        assert_eq!(status(host.register(at, size)), Status::INVALID_FIELD.dnr());
    }
    assert_eq!(status(host.set_register(offset::VS, 1)), Status::INVALID_FIELD.dnr());
    // Disabled, it takes no admin commands; with sizes that it does not support, it fails.
    host.set_register(offset::CC, 0).expect("CC");
    assert_eq!(status(host.identify(0x01, 0)), Status::COMMAND_SEQUENCE_ERROR.dnr());
    host.set_register(offset::CC, CC_ENABLE & !(0xf << 16)).expect("CC");
    assert_eq!(host.register(offset::CSTS, 4).expect("CSTS"), CSTS_CFS.into());
}

#[test]
fn features_are_kept_and_a_change_of_a_fixed_one_is_refused() {
    let bench = Bench::new(Kind::System);
    let mut host = Host::connect(&bench.host, &bench.who()).expect("it connects");
    let most = u64::from(MAX_QID - 1);
    assert_eq!(host.set_feature(feature::NUMBER_OF_QUEUES, 3 | 2 << 16).expect("set"), 3 | 2 << 16);
    let many = host.set_feature(feature::NUMBER_OF_QUEUES, 999 | 999 << 16).expect("set");
    assert_eq!(many, most | most << 16);
    let refusal = host.set_feature(feature::NUMBER_OF_QUEUES, 0xffff);
    assert_eq!(status(refusal), Status::INVALID_FIELD.dnr());
    for (name, value) in [(feature::ASYNC_EVENT_CONFIG, 0x100), (feature::KATO, 60_000)] {
        host.set_feature(name, value).expect("set");
        assert_eq!(host.feature(name).expect("get"), value.into());
    }
    assert_eq!(host.feature(feature::VOLATILE_WRITE_CACHE).expect("get"), 1);
    let refusal = host.set_feature(feature::VOLATILE_WRITE_CACHE, 0);
    assert_eq!(status(refusal), Status::FEATURE_NOT_CHANGEABLE.dnr());
    let refusal = host.set_feature(feature::HOST_ID, 0);
    assert_eq!(status(refusal), Status::COMMAND_SEQUENCE_ERROR.dnr());
    assert_eq!(status(host.feature(0x7e)), Status::INVALID_FIELD.dnr());
}

#[test]
fn hosts_connect_again_for_another_number_of_queues() {
    let bench = Bench::new(Kind::System);
    let mut host = bench.connect();
    bench.target.set_queues(2);
    assert!(host.admin.is_over(Duration::from_secs(10)).expect("a channel"), "it has to");
    until("the controller is gone", || bench.target.controllers() == 0);
    let mut host = Host::connect_io(&bench.host, &bench.who(), 2, 16).expect("it connects");
    assert_eq!(host.set_feature(feature::NUMBER_OF_QUEUES, 7 | 7 << 16).expect("set"), 1 | 1 << 16);
    let third = host.add_queue(3, 16);
    assert_eq!(status(third), Status::CONNECT_INVALID_PARAMETERS.dnr());
}

#[test]
fn log_pages_count_what_was_done_and_what_failed() {
    let bench = Bench::new(Kind::System);
    let mut host = bench.connect();
    let block = host.namespaces().expect("a list")[0].block as usize;
    host.read(1, 0, 2, &mut vec![0; 2 * block]).expect("read");
    host.write(1, 0, 1, &pattern(9, block)).expect("written");
    assert_eq!(status(host.read(9, 5, 1, &mut vec![0; block])), Status::INVALID_NAMESPACE.dnr());
    let errors = host.log_page(0x01, 0, 128).expect("a page");
    assert_eq!(errors[..8], 1u64.to_le_bytes(), "the first failure");
    assert_eq!(errors[8..10], 1u16.to_le_bytes(), "of queue 1");
    assert_eq!(errors[12..14], (Status::INVALID_NAMESPACE.dnr().bits() << 1).to_le_bytes());
    assert_eq!((errors[16], errors[24]), (5, 9), "its block, its namespace");
    assert_eq!(errors[64..], [0; 64], "and no other");
    let smart = host.log_page(0x02, 0, 512).expect("a page");
    assert_eq!((smart[32], smart[48], smart[64], smart[80]), (1, 1, 1, 1));
    assert_eq!(smart[176], 1, "errors");
    let rest = host.log_page(0x02, 64, 448).expect("a page, from an offset on");
    assert_eq!(rest, smart[64..]);
    let firmware = host.log_page(0x03, 0, 512).expect("a page");
    assert_eq!((firmware[0], &firmware[8..13]), (1, env!("CARGO_PKG_VERSION").as_bytes()));
    assert_eq!(status(host.log_page(0x42, 0, 512)), Status::INVALID_LOG_PAGE.dnr());
    assert_eq!(status(host.log_page(0x02, 516, 4)), Status::INVALID_FIELD.dnr());
    assert_eq!(status(host.log_page(0x02, 2, 4)), Status::INVALID_FIELD.dnr());
}

#[test]
fn the_page_of_effects_has_each_command_that_is_carried_out() {
    let bench = Bench::new(Kind::System);
    let mut host = bench.connect();
    let page = host.log_page(0x05, 0, 4096).expect("a page");
    let effects = |first: usize, opcode: u8| page[first + 4 * usize::from(opcode)];
    let is_refused = |result: Result<_, HostError>| {
        result.is_err_and(|error| error.status() == Some(Status::INVALID_OPCODE.dnr()))
    };
    // Above these there are none but fabrics commands, which the page does not have. An event would
    // be waited for.
    for opcode in (0..0x20).filter(|opcode| *opcode != opcode::ASYNC_EVENT_REQUEST) {
        let admin = host.admin.run(&Command::new(opcode, 0), Data::None, &mut []);
        assert_eq!(effects(0, opcode) & 1 == 0, is_refused(admin), "admin {opcode:#x}");
        let io = host.plain(&Command::new(opcode, 1));
        assert_eq!(effects(1024, opcode) & 1 == 0, is_refused(io), "{opcode:#x}");
    }
    let changing = [opcode::WRITE, opcode::WRITE_ZEROES, opcode::DATASET_MANAGEMENT];
    for opcode in [&[opcode::READ, opcode::FLUSH][..], &changing].concat() {
        assert_eq!(
            effects(1024, opcode) & 2 != 0,
            changing.contains(&opcode),
            "LBCC of {opcode:#x}"
        );
    }
}

#[test]
fn a_subsystem_for_some_hosts_is_hidden_from_others() {
    let bench = Bench::new(Kind::System);
    let device = soft::device(NicConfig {
        name: format!("nvmet-hosts-{}", std::process::id()),
        ..bench.machine.nic()
    });
    let device = device.expect("a NIC");
    let (ours, nic) = (device.open().expect("opens"), soft::open_another(&device).expect("opens"));
    let at = (ours.default_gid().unwrap().gid.to_ip(), 0).into();
    let friend = "nqn.2026-11.org.example:friend".to_owned();
    let subsystem = Subsystem::new(NQN, Vec::new()).for_hosts([friend.clone()]);
    let target = Target::start(&bench.machine, &ours, at, subsystem, 1).expect("it starts");
    let found = |who: &Who| {
        let who = Who { subsysnqn: DISCOVERY_NQN.to_owned(), ..who.clone() };
        let mut host = Host::connect(&nic, &who).expect("discovery is for all");
        let page = host.log_page(discovery::LOG_PAGE, 0, 2048).expect("a page");
        discovery::entries(&page).expect("a header").0
    };
    let stranger = Who::new(target.addr(), NQN);
    let refusal = Host::connect(&nic, &stranger).map(drop);
    assert_eq!(status(refusal), Status::CONNECT_INVALID_HOST.dnr());
    let friend = Who { hostnqn: friend, ..stranger.clone() };
    assert_eq!((found(&stranger), found(&friend)), (0, 1));
    Host::connect(&nic, &friend).expect("it may").shut_down().expect("it ends");
}

#[test]
fn a_namespace_has_the_uuid_that_was_chosen() {
    let uuid = *b"sixteen bytes...";
    let bench = Bench::on(Kind::System, |folder| {
        let mut namespaces = two_files(folder);
        namespaces[1] = namespaces[1].clone().with_uuid(uuid);
        namespaces
    });
    let mut host = bench.connect();
    let [one, two] = [1, 2].map(|nsid| host.identify(0x03, nsid).expect("descriptors"));
    assert_eq!((two[21 - 1], &two[24..40]), (3, &uuid[..]));
    assert_ne!(one[24..40], uuid);
}

#[test]
fn async_event_requests_are_held_up_to_the_limit_and_aborts_abort_nothing() {
    let bench = Bench::new(Kind::System);
    let mut host = Host::connect(&bench.host, &bench.who()).expect("it connects");
    let event = Command::new(opcode::ASYNC_EVENT_REQUEST, 0);
    for _ in 0..4 {
        host.admin.submit(&event, Data::None).expect("sent").expect("room");
    }
    let fifth = host.admin.submit(&event, Data::None).expect("sent").expect("room");
    let (cid, answer) = host.admin.wait().expect("answered");
    assert_eq!((cid, answer.completion.status()), (fifth, Status::ASYNC_EVENT_LIMIT.dnr()));
    let mut abort = Command::new(opcode::ABORT, 0);
    abort.cdw10 = (u32::from(cid) << 16).into();
    let answer = host.admin.run(&abort, Data::None, &mut []).expect("answered");
    assert_eq!(answer.completion.result.get() & 1, 1, "not aborted");
    assert_eq!(host.admin.busy(), 4, "the others are held");
    host.shut_down().expect("which ends nothing else");
}

#[test]
fn hosts_are_told_of_namespaces_that_come_go_and_change_their_size() {
    let bench = Bench::new(Kind::System);
    let mut host = bench.connect();
    let mut deaf = bench.connect();
    host.set_feature(feature::ASYNC_EVENT_CONFIG, 1 << 8).expect("set");
    let ask = Command::new(opcode::ASYNC_EVENT_REQUEST, 0);
    for host in [&mut host, &mut deaf] {
        host.admin.submit(&ask, Data::None).expect("sent").expect("room");
    }
    let told = |host: &mut Host| {
        let answer = host.admin.wait_timeout(Duration::from_secs(20)).expect("alive");
        let (_, answer) = answer.expect("there is an event");
        assert_eq!(answer.completion.result.get(), 0x04_0002, "a notice, and the page");
        // A command that is refused takes nothing.
        let mut wrong = Command::new(opcode::GET_LOG_PAGE, 0xffff_ffff);
        wrong.cdw10 = (1023 << 16 | 0x04).into();
        let short = Data::In { len: 2048, invalidate: true };
        let refusal = host.admin.run(&wrong, short, &mut []);
        assert_eq!(status(refusal), Status::DATA_SGL_LENGTH_INVALID.dnr());
        let page = host.log_page(0x04, 0, 4096).expect("a page");
        host.admin.submit(&ask, Data::None).expect("sent").expect("room");
        u32::from_le_bytes(page[..4].try_into().expect("four bytes"))
    };
    let numbers = |host: &mut Host| {
        let list = host.namespaces().expect("a list");
        list.iter().map(|one| one.nsid).collect::<Vec<_>>()
    };
    // It grows: a block that was beyond the end can be written.
    let one = std::fs::OpenOptions::new().write(true).open(bench.path("one")).expect("there");
    one.set_len(2 * SIZE).expect("room");
    assert!(!bench.target.revalidate(2).expect("the other one"));
    assert!(bench.target.revalidate(1).expect("a file"));
    assert_eq!(told(&mut host), 1);
    let info = host.namespaces().expect("a list")[0];
    assert_eq!(info.blocks * u64::from(info.block), 2 * SIZE);
    let bytes = pattern(3, info.block as usize);
    host.write(1, info.blocks - 1, 1, &bytes).expect("written");
    one.set_len(SIZE).expect("cut off");
    assert!(bench.target.revalidate(1).expect("a file"));
    assert_eq!(told(&mut host), 1);
    let refusal = host.write(1, info.blocks - 1, 1, &bytes);
    assert_eq!(status(refusal), Status::LBA_OUT_OF_RANGE.dnr());
    // It goes, and another one comes in its place.
    assert!(bench.target.remove_namespace(1) && !bench.target.remove_namespace(1));
    assert_eq!((told(&mut host), numbers(&mut host)), (1, vec![2]));
    let gone = host.read(1, 0, 1, &mut vec![0; bytes.len()]);
    assert_eq!(status(gone), Status::INVALID_NAMESPACE.dnr());
    let other = Namespace::open(bench.path("two")).expect("a file");
    assert_eq!(bench.target.add_namespace(other), Some(1));
    assert_eq!((told(&mut host), numbers(&mut host)), (1, vec![1, 2]));
    let again = host.namespaces().expect("a list")[0];
    assert_ne!(again.nguid, info.nguid, "it is another one");
    // A host that did not ask for it is not told, but finds it.
    assert_eq!(numbers(&mut deaf), [1, 2]);
    assert_eq!(deaf.admin.busy(), 1, "its request is held");
}

#[test]
fn a_host_that_is_silent_loses_its_controller_and_one_that_is_not_keeps_it() {
    let bench = Bench::new(Kind::System);
    let silent = Who { kato: 300, ..bench.who() };
    let mut host = Host::connect_io(&bench.host, &silent, 1, 16).expect("it connects");
    // Time itself is under test.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(900) {
        host.keep_alive().expect("it is there");
        std::thread::sleep(Duration::from_millis(50));
    }
    let is_over = host.admin.is_over(Duration::from_secs(10)).expect("a channel");
    assert!(is_over, "the admin queue ends");
    assert!(host.queues[0].is_over(Duration::from_secs(10)).expect("a channel"), "and the other");
    until("the controller is gone", || bench.target.controllers() == 0);
    bench.connect().shut_down().expect("another host is served");
}

#[test]
fn a_connection_with_an_invalid_request_is_rejected_with_the_reason() {
    let bench = Bench::new(Kind::System);
    let mut other_format = Request::new(0, 32);
    other_format.recfmt = 1.into();
    let mut short = Request::new(1, 32);
    short.hrqsize = 3.into();
    let mut nobody = Request::new(1, 32);
    nobody.cntlid = 77.into();
    for (request, expected) in [
        (other_format, Reject::InvalidRecfmt),
        (Request::new(MAX_QID + 1, 32), Reject::InvalidQid),
        (Request::new(0, ADMIN_DEPTH + 1), Reject::InvalidHsqsize),
        (Request::new(0, 1), Reject::InvalidHsqsize),
        (short, Reject::InvalidHrqsize),
        (nobody, Reject::InvalidCntlid),
    ] {
        let refusal = Queue::open(&bench.host, bench.target.addr(), &request);
        let refusal = refusal.map(drop).expect_err("it is refused");
        let HostError::Rejected { reason, sts } = refusal else { panic!("{refusal}") };
        assert_eq!((reason, sts), (RejReason::CONSUMER_DEFINED, expected as u16), "{request:?}");
    }
    bench.connect();
}

#[test]
fn a_malformed_connect_is_refused_and_the_result_names_the_field() {
    let bench = Bench::new(Kind::System);
    let (who, mut host) = (bench.who(), bench.connect());
    let invalid = Status::CONNECT_INVALID_PARAMETERS.dnr();
    let data = |cntlid, subsystem: &str, hostnqn: &str| {
        ConnectData::new(who.hostid, cntlid, subsystem, hostnqn)
    };
    let good = who.connect_data(ANY_CNTLID);
    let mut other_format = who.connect(0, 32);
    other_format.cdw10 = 1.into();
    let mut rows = vec![
        (0, who.connect(1, 32), good, invalid, Field::Qid.result()),
        (0, who.connect(0, 1), good, invalid, Field::SqSize.result()),
        (0, who.connect(0, 33), good, invalid, Field::SqSize.result()),
        (0, other_format, good, Status::CONNECT_INCOMPATIBLE.dnr(), 0),
        (0, who.connect(0, 32), who.connect_data(5), invalid, Field::Cntlid.result()),
        (1, who.connect(1, 32), who.connect_data(99), invalid, Field::Cntlid.result()),
    ];
    for (subsystem, hostnqn, field) in [
        ("nqn.2026-11.org.example:other", "nqn.host", Field::SubsysNqn),
        ("", "nqn.host", Field::SubsysNqn),
        (NQN, "", Field::HostNqn),
    ] {
        let wrong = data(ANY_CNTLID, subsystem, hostnqn);
        rows.push((0, who.connect(0, 32), wrong, invalid, field.result()));
    }
    // Of another host; and twice.
    let other = data(host.cntlid, NQN, "nqn.2014-08.org.nvmexpress:other");
    rows.push((2, who.connect(2, 32), other, Status::CONNECT_INVALID_HOST.dnr(), 0));
    let again = who.connect_data(host.cntlid);
    rows.push((1, who.connect(1, 32), again, Status::COMMAND_SEQUENCE_ERROR.dnr(), 0));
    for (qid, command, data, expected, result) in rows {
        let mut queue = Queue::open(&bench.host, who.to, &Request::new(qid, 32)).expect("open");
        for place in [true, false] {
            let bytes = data.as_bytes();
            let how = match place {
                true => Data::Capsule(bytes),
                false => Data::Out { bytes, invalidate: true },
            };
            let refusal = queue.run(&command, how, &mut []).expect_err("it is refused");
            let HostError::Status { status, result: said } = refusal else { panic!("{refusal}") };
            assert_eq!((status, said), (expected, result), "{command:?}");
        }
        // Half of the data, and no data.
        let bytes = data.as_bytes();
        let half = queue.run(&command, Data::Capsule(&bytes[..512]), &mut []);
        assert_eq!(status(half), Status::DATA_SGL_LENGTH_INVALID.dnr());
        // Before its Connect, a queue accepts nothing else.
        let early = queue.run(&Command::new(opcode::KEEP_ALIVE, 0), Data::None, &mut []);
        assert_eq!(status(early), Status::COMMAND_SEQUENCE_ERROR.dnr());
    }
    let again = host.admin.run(&who.connect(0, 32), Data::Capsule(good.as_bytes()), &mut []);
    assert_eq!(status(again), Status::COMMAND_SEQUENCE_ERROR.dnr());
    assert_eq!(bench.target.controllers(), 1, "none was made");
}

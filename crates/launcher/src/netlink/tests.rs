//! Requests as programs send them, and what they get.

use std::sync::Arc;

use view::{Counts, Cq, Gathered, Mr, Process, Qp};

use super::message::{Message, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use super::numbers::{NLDEV, attr, cmd};
use super::{DATAGRAM, Machine, answer};
use crate::sysfs::NicFacts;

/// A request as a program would send it.
pub(super) fn request(kind: u16, flags: u16, fill: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut message = Message::new(kind, flags | NLM_F_REQUEST, 7, 0);
    fill(&mut message);
    message.finish()
}

/// The attributes of a message or of an attribute.
pub(super) fn attributes(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let length = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        let kind = u16::from_ne_bytes([bytes[2], bytes[3]]);
        found.push((kind, bytes[4..length].to_vec()));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// A machine with one NIC and these processes.
struct Rig(Vec<NicFacts>, Arc<Gathered>);

impl Machine for Rig {
    fn nics(&self) -> &[NicFacts] {
        &self.0
    }

    fn objects(&self, _: usize) -> Arc<Gathered> {
        Arc::clone(&self.1)
    }

    /// Each port has counted as much as its number says.
    fn counters(&self, _: usize, port: u32) -> Counts {
        [("out_of_buffer".to_owned(), port.into())].into()
    }
}

fn rig(processes: Vec<Process>) -> Rig {
    let named = |process: Process| (format!("p{}", process.vf), 1000 + process.pid, process);
    let processes = processes.into_iter().map(named).collect();
    Rig(vec![NicFacts::example()], Arc::new(Gathered { processes, missing: Vec::new() }))
}

fn ask(rig: &Rig, command: u16, flags: u16, fill: impl FnOnce(&mut Message)) -> Vec<Vec<u8>> {
    answer(&request(NLDEV << 10 | command, flags, fill), 42, rig)
}

fn kind(message: &[u8]) -> u16 {
    u16::from_ne_bytes([message[4], message[5]])
}

fn error(message: &[u8]) -> i32 {
    assert_eq!(kind(message), 2, "NLMSG_ERROR");
    i32::from_ne_bytes(message[16..20].try_into().expect("4 bytes"))
}

fn find(attributes: &[(u16, Vec<u8>)], wanted: u16) -> Vec<u8> {
    let found = attributes.iter().find(|(kind, _)| *kind == wanted);
    found.unwrap_or_else(|| panic!("no attribute {wanted} in {attributes:?}")).1.clone()
}

fn number(attributes: &[(u16, Vec<u8>)], wanted: u16) -> u32 {
    u32::from_ne_bytes(find(attributes, wanted).try_into().expect("4 bytes"))
}

#[test]
fn devices_are_listed_and_the_list_ends() {
    let answers = ask(&rig(vec![]), cmd::GET, NLM_F_DUMP, |_| {});
    let [device, done] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(kind(done), 3, "NLMSG_DONE");
    assert_eq!(device[12..16], 42_u32.to_ne_bytes(), "the port of the program");
    assert_eq!(device[8..12], 7_u32.to_ne_bytes(), "its sequence number");
    let device = attributes(&device[16..]);
    assert_eq!(find(&device, attr::DEV_NAME), b"peerdma0\0");
    assert_eq!(number(&device, attr::PORT_INDEX), 1);
    assert_eq!(find(&device, attr::DEV_PROTOCOL), b"roce\0");
}

#[test]
fn one_answer_is_acknowledged_if_that_was_asked_for() {
    let rig = rig(vec![]);
    let by_index = |index| move |message: &mut Message| message.u32(attr::DEV_INDEX, index);
    let answers = ask(&rig, cmd::GET, NLM_F_ACK, by_index(0));
    let [_, acknowledgement] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(error(acknowledgement), 0);
    let answers = ask(&rig, cmd::GET, NLM_F_ACK, by_index(1));
    let [refusal] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(error(refusal), -libc::EINVAL);
    assert!(String::from_utf8_lossy(refusal).contains("no device with this index"));
}

#[test]
fn what_would_change_something_is_refused_in_words() {
    for command in [2, 3, 4, 7, 16, 18] {
        let answers = ask(&rig(vec![]), command, NLM_F_ACK, |_| {});
        assert_eq!(error(&answers[0]), -libc::EOPNOTSUPP, "{command}");
        assert!(String::from_utf8_lossy(&answers[0]).contains("configured in its file"));
    }
    let unknown = answer(&request(2 << 10 | 1, NLM_F_ACK, |_| {}), 42, &rig(vec![]));
    assert_eq!(error(&unknown[0]), -libc::EINVAL);
}

#[test]
fn every_object_of_every_process_is_listed_with_its_process() {
    let process = |vf: u16| Process {
        vf,
        pid: u32::from(vf),
        qps: (0..200).map(|n| Qp { qpn: u32::from(vf) << 14 | n, ..Qp::default() }).collect(),
        ..Process::default()
    };
    let rig = rig((0..3).map(process).collect());
    let pages = ask(&rig, cmd::RES_QP_GET, NLM_F_DUMP, |out| out.u32(attr::DEV_INDEX, 0));
    let (done, pages) = pages.split_last().expect("it ends");
    assert_eq!(kind(done), 3);
    assert!(pages.len() > 1 && pages.iter().all(|page| page.len() <= DATAGRAM + 4));
    let mut seen = Vec::new();
    for page in pages {
        let list = find(&attributes(&page[16..]), attr::RES_QP);
        for (kind, entry) in attributes(&list) {
            assert_eq!(kind, attr::RES_QP_ENTRY);
            let entry = attributes(&entry);
            let (qpn, pid) = (number(&entry, attr::RES_LQPN), number(&entry, attr::RES_PID));
            assert_eq!(pid, 1000 + (qpn >> 14), "the process that has it");
            seen.push(qpn);
        }
    }
    let all: Vec<u32> = (0..3).flat_map(|vf| (0..200).map(move |n| vf << 14 | n)).collect();
    assert_eq!(seen, all);
}

#[test]
fn an_object_is_found_by_its_number_which_no_other_process_has() {
    let process = |vf| Process {
        vf,
        cqs: vec![Cq { id: 5, capacity: u32::from(vf) + 16, ..Cq::default() }],
        mrs: vec![Mr { id: 1, key: Some(0x100), length: 4096, ..Mr::default() }],
        ..Process::default()
    };
    let rig = rig(vec![process(0), process(9)]);
    let by_number = |out: &mut Message| {
        out.u32(attr::DEV_INDEX, 0);
        out.u32(attr::RES_CQN, 9 << 20 | 5);
    };
    let answers = ask(&rig, cmd::RES_CQ_GET, 0, by_number);
    let [cq] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(number(&attributes(&cq[16..]), attr::RES_CQE), 25);
    let answers = ask(&rig, cmd::RES_MR_GET, 0, by_number);
    assert_eq!(error(&answers[0]), -libc::ENOENT, "its number was not given");
}

#[test]
fn objects_are_counted_by_kind() {
    let process = Process { cqs: vec![Cq::default(); 3], ..Process::default() };
    let rig = rig(vec![process.clone(), process]);
    let answers = ask(&rig, cmd::RES_GET, NLM_F_DUMP, |_| {});
    let list = find(&attributes(&answers[0][16..]), attr::RES_SUMMARY);
    let counts: Vec<(Vec<u8>, Vec<u8>)> = attributes(&list)
        .iter()
        .map(|(_, entry)| attributes(entry))
        .map(|entry| {
            let name = find(&entry, attr::RES_SUMMARY_ENTRY_NAME);
            (name, find(&entry, attr::RES_SUMMARY_ENTRY_CURR))
        })
        .collect();
    assert!(counts.contains(&(b"cq\0".to_vec(), 6_u64.to_ne_bytes().to_vec())), "{counts:?}");
}

#[test]
fn the_counters_of_a_port_fit_into_one_message() {
    let mut rig = rig(vec![]);
    rig.0[0].ports = 2;
    let answers = ask(&rig, cmd::STAT_GET, 0, |out| {
        out.u32(attr::DEV_INDEX, 0);
        out.u32(attr::PORT_INDEX, 2);
    });
    let [counters] = answers.as_slice() else { panic!("{answers:?}") };
    assert!(counters.len() <= DATAGRAM);
    let list = attributes(&find(&attributes(&counters[16..]), attr::STAT_HWCOUNTERS));
    assert_eq!(list.len(), crate::sysfs::hardware_counters().count(), "none is left out");
    let named = |(_, entry): &(u16, Vec<u8>)| {
        let entry = attributes(entry);
        find(&entry, attr::STAT_HWCOUNTER_ENTRY_NAME) == b"out_of_buffer\0"
            && find(&entry, attr::STAT_HWCOUNTER_ENTRY_VALUE) == 2_u64.to_ne_bytes()
    };
    assert!(list.iter().any(named));
}

#[test]
fn nonsense_is_answered_with_nothing_or_an_error() {
    let rig = rig(vec![Process::default()]);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..20_000 {
        let mut bytes = request(NLDEV << 10 | (round % 32) as u16, NLM_F_ACK, |out| {
            out.u32(attr::DEV_INDEX, 0);
            out.u32(attr::PORT_INDEX, 1);
        });
        for _ in 0..3 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = state as usize % bytes.len();
            bytes[at] = (state >> 32) as u8;
        }
        for message in answer(&bytes, 42, &rig) {
            assert!(message.len() >= 16 && message.len() <= DATAGRAM + 64, "{bytes:?}");
        }
    }
}

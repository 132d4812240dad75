//! I/O queues: blocks between hosts and files, over each kind of memory, and what is refused.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::{Bench, SIZE, pattern, status, until};
use gpu::{Gpu, GpuConfig};
use nvmet::host::{Data, Host, HostError, Who};
use nvmet::target::subsystem::Namespace;
use nvmet::wire::capsule::{COMMAND_LEN, FLAGS_SGL, opcode};
use nvmet::wire::{Command, Descriptor, Status};
use providers::{GpuMemory, Kind};

const PATIENCE: Duration = Duration::from_secs(20);
const EACH: [Kind; 4] = Kind::ALL;

fn block(host: &mut Host) -> usize {
    host.namespaces().expect("a list")[0].block as usize
}

#[test]
fn blocks_are_read_and_written_through_each_memory_and_none_is_bounced() {
    for kind in EACH {
        let bench = Bench::new(kind);
        let mut host = bench.connect();
        let block = block(&mut host);
        let (mut one, mut two) = (pattern(0, SIZE as usize), pattern(1, SIZE as usize));
        let most = 128 << 10;
        let mut moved = 0;
        // In the capsule and fetched; one block, and as many as a command can have.
        for (seed, at, len) in
            [(7, 0, block), (8, 3 * block, 16384), (9, 65536, 32768), (10, 1 << 20, most)]
        {
            let (slba, blocks) = ((at / block) as u64, (len / block) as u16);
            let (left, right) = (pattern(seed, len), pattern(seed + 100, len));
            host.write(1, slba, blocks, &left).expect("written");
            host.write(2, slba, blocks, &right).expect("written");
            one[at..at + len].copy_from_slice(&left);
            two[at..at + len].copy_from_slice(&right);
            moved += 2 * 2 * if len > 16384 { len as u64 } else { 0 };
        }
        host.plain(&Command::new(opcode::FLUSH, 1)).expect("flushed");
        assert!(bench.file("one") == one && bench.file("two") == two, "{kind:?}");
        for (nsid, expected) in [(1, &one), (2, &two)] {
            let mut seen = vec![0; SIZE as usize];
            for (piece, bytes) in seen.chunks_exact_mut(most).enumerate() {
                let slba = (piece * most / block) as u64;
                host.read(nsid, slba, (most / block) as u16, bytes).expect("read");
            }
            assert!(seen == *expected, "{kind:?} {nsid}");
            moved += 2 * SIZE;
        }
        host.shut_down().expect("it ends");
        // By the disk and by the NIC; tests of this program that run beside it count as well.
        let report = bench.target.report();
        let bytes = if kind == Kind::System { report.system } else { report.bus_address };
        assert!(bytes >= moved, "{kind:?}: {report:?}, expected {moved}");
        assert_eq!(report.bounced, 0, "{kind:?}: {report:?}");
    }
}

#[test]
fn many_commands_are_under_way_on_several_queues_at_once() {
    let bench = Bench::new(Kind::Cmb);
    let mut host = Host::connect_io(&bench.host, &bench.who(), 3, 32).expect("it connects");
    let block = block(&mut host);
    // More than the target has memory for at once.
    std::thread::scope(|scope| {
        for (at, queue) in host.queues.iter_mut().enumerate() {
            scope.spawn(move || {
                let len = 8 * block;
                let (mut sent, mut done) = (0u64, 0);
                let mut places = std::collections::BTreeMap::new();
                let slba = |n: u64| (at as u64 * 64 + n % 64) * 8;
                while done < 400 {
                    while sent < 400 {
                        let bytes = pattern(slba(sent), len);
                        let (data, opcode) = match sent / 64 % 2 {
                            0 => (
                                Data::Out { bytes: &bytes, invalidate: sent % 2 == 0 },
                                opcode::WRITE,
                            ),
                            _ => (Data::In { len, invalidate: sent % 2 == 0 }, opcode::READ),
                        };
                        // A place is written before it is read.
                        if sent % 64 == 0 && !places.is_empty() {
                            break;
                        }
                        let command = Command::io(opcode, 1, slba(sent), 8);
                        let Some(cid) = queue.submit(&command, data).expect("sent") else { break };
                        places.insert(cid, sent);
                        sent += 1;
                    }
                    let (cid, answer) = queue.wait().expect("answered");
                    let number = places.remove(&cid).expect("it was asked for");
                    assert_eq!(answer.completion.status(), Status::SUCCESS);
                    assert_eq!(answer.invalidated, number % 2 == 0, "as it was asked for");
                    if number / 64 % 2 == 1 {
                        let mut seen = vec![0; len];
                        queue.take(cid, &mut seen).expect("ours");
                        assert!(seen == pattern(slba(number), len), "{number}");
                    }
                    done += 1;
                }
            });
        }
    });
    assert_eq!(bench.target.memory().left(), 32, "all memory is free again");
}

#[test]
fn the_head_of_the_queue_wraps_around() {
    let bench = Bench::new(Kind::System);
    let mut host = Host::connect_io(&bench.host, &bench.who(), 1, 4).expect("it connects");
    let heads: Vec<u16> = (0..6)
        .map(|_| host.plain(&Command::new(opcode::FLUSH, 1)).expect("flushed"))
        .map(|answer| answer.completion.sq_head.get())
        .collect();
    assert_eq!(heads, [2, 3, 0, 1, 2, 3], "Connect was the first");
}

#[test]
fn zeroes_are_written_and_commands_that_oncs_lacks_are_refused() {
    let bench = Bench::new(Kind::System);
    let mut host = bench.connect();
    let block = block(&mut host);
    let zeroes = Command::io(opcode::WRITE_ZEROES, 1, 1, 1000);
    let lasting = Command { cdw12: (zeroes.cdw12.get() | 1 << 30).into(), ..zeroes };
    host.plain(&lasting).expect("written");
    let mut expected = pattern(0, SIZE as usize);
    expected[block..1001.min(SIZE as usize / block) * block].fill(0);
    assert!(bench.file("one") == expected);
    assert_eq!(status(host.plain(&Command::new(0x7e, 1))), Status::INVALID_OPCODE.dnr());
}

/// Dataset Management with these ranges (the first block, and how many) and more bytes after them;
/// all of it in the capsule, if it has room.
fn trim(
    host: &mut Host,
    ranges: &[(u64, u32)],
    more: usize,
    attributes: u32,
) -> Result<(), HostError> {
    let mut bytes = Vec::new();
    for (slba, blocks) in ranges {
        bytes.extend([0; 4]);
        bytes.extend(blocks.to_le_bytes());
        bytes.extend(slba.to_le_bytes());
    }
    bytes.resize(bytes.len() + more, 0xff);
    let mut command = Command::new(opcode::DATASET_MANAGEMENT, 1);
    command.cdw10 = (ranges.len() as u32 - 1).into();
    command.cdw11 = attributes.into();
    let data = match bytes.len() > 4096 {
        true => Data::Out { bytes: &bytes, invalidate: true },
        false => Data::Capsule(&bytes),
    };
    host.io()?.run(&command, data, &mut []).map(drop)
}

#[test]
fn ranges_that_are_deallocated_read_as_zeros() {
    const AD: u32 = 1 << 2;
    for kind in EACH {
        let bench = Bench::new(kind);
        let mut host = bench.connect();
        let block = block(&mut host);
        let last = SIZE / block as u64 - 1;
        let mut expected = pattern(0, SIZE as usize);
        trim(&mut host, &[(1, 2), (5, 0), (7, 1), (last, 1)], 0, AD).expect("deallocated");
        for blocks in [1..3, 7..8, last as usize..last as usize + 1] {
            expected[blocks.start * block..blocks.end * block].fill(0);
        }
        assert!(bench.file("one") == expected, "{kind:?}");
        // In the capsule, with more bytes than the ranges; and too many for a capsule.
        trim(&mut host, &[(20, 3)], 4080, AD).expect("deallocated");
        trim(&mut host, &[(30, 1); 256], 16 << 10, AD).expect("deallocated");
        expected[20 * block..23 * block].fill(0);
        expected[30 * block..31 * block].fill(0);
        assert!(bench.file("one") == expected, "{kind:?}");
        // Of advice nothing follows; of ranges beyond the end none is carried out.
        trim(&mut host, &[(40, 1)], 0, 3).expect("it is taken");
        for beyond in [(last, 2), (u64::MAX, 1), (last + 2, 0)] {
            let refusal = trim(&mut host, &[(40, 1), beyond], 0, AD);
            assert_eq!(status(refusal), Status::LBA_OUT_OF_RANGE.dnr(), "{beyond:?}");
        }
        assert!(bench.file("one") == expected, "{kind:?}");
        let short = Command { cdw11: AD.into(), ..Command::new(opcode::DATASET_MANAGEMENT, 1) };
        assert_eq!(status(host.plain(&short)), Status::DATA_SGL_LENGTH_INVALID.dnr());
        assert_eq!(bench.target.memory().left(), 32);
    }
}

/// A command of reservations, with keys that come in the capsule.
fn reserve(host: &mut Host, opcode: u8, cdw10: u32, keys: &[u64]) -> Result<(), HostError> {
    let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let command = Command { cdw10: cdw10.into(), ..Command::new(opcode, 1) };
    host.io()?.run(&command, Data::Capsule(&bytes), &mut []).map(drop)
}

#[test]
fn a_host_that_reserved_a_namespace_keeps_others_from_writing_it() {
    let bench = Bench::new(Kind::Cmb);
    let mut holder = bench.connect();
    let other = Who { hostid: [9; 16], ..bench.who() };
    let mut other = Host::connect_io(&bench.host, &other, 1, 16).expect("it connects");
    let bytes = vec![7; block(&mut holder)];
    let (register, acquire) = (opcode::RESERVATION_REGISTER, opcode::RESERVATION_ACQUIRE);
    let conflict = Status::RESERVATION_CONFLICT.dnr();
    let refusal = reserve(&mut holder, acquire, 1 << 8, &[5, 0]);
    assert_eq!(status(refusal), conflict, "it has not registered");
    reserve(&mut holder, register, 0, &[0, 5]).expect("registered");
    reserve(&mut holder, acquire, 1 << 8, &[5, 0]).expect("reserved for its writes");
    holder.write(1, 0, 1, &bytes).expect("it holds it");
    assert_eq!(status(other.write(1, 0, 1, &bytes)), conflict);
    other.write(2, 0, 1, &bytes).expect("another namespace");
    other.read(1, 0, 1, &mut bytes.clone()).expect("all may read");
    let flush = other.plain(&Command::new(opcode::FLUSH, 1));
    assert_eq!(status(flush), conflict);
    // The report: as long as the host asks for, with long identifiers alone.
    let mut report = Command::new(opcode::RESERVATION_REPORT, 1);
    report.cdw10 = (256 / 4 - 1).into();
    let page = Data::In { len: 256, invalidate: true };
    let refusal = other.io().expect("a queue").run(&report, page, &mut []);
    assert_eq!(status(refusal), Status::HOST_ID_INCONSISTENT.dnr());
    report.cdw11 = 1.into();
    let mut seen = [0xff; 256];
    let page = Data::In { len: 256, invalidate: true };
    other.io().expect("a queue").run(&report, page, &mut seen).expect("a report");
    assert_eq!((&seen[..7], &seen[64..67]), (&[1, 0, 0, 0, 1, 1, 0][..], &[255, 255, 1][..]));
    assert_eq!((seen[72], &seen[80..96]), (5, &bench.who().hostid[..]));
    assert_eq!(seen[128..], [0; 128]);
    // A host that connects again is the one that it was.
    holder.shut_down().expect("it ends");
    let mut holder = bench.connect();
    holder.write(1, 0, 1, &bytes).expect("it holds it");
    reserve(&mut holder, opcode::RESERVATION_RELEASE, 1 << 8, &[5]).expect("released");
    other.write(1, 0, 1, &bytes).expect("nobody has reserved it");
    for (opcode, cdw10) in [(register, 3), (register, 3 << 30), (acquire, 0), (acquire, 1 << 8 | 2)]
    {
        let refusal = reserve(&mut holder, opcode, cdw10, &[5, 5]);
        assert_eq!(status(refusal), Status::INVALID_FIELD.dnr(), "{opcode:#x} {cdw10:#x}");
    }
    let refusal = reserve(&mut holder, register, 0, &[0]);
    assert_eq!(status(refusal), Status::DATA_SGL_LENGTH_INVALID.dnr());
}

#[test]
fn blocks_beyond_the_end_and_namespaces_that_are_not_there_are_refused() {
    let bench = Bench::new(Kind::System);
    let mut host = bench.connect();
    let block = block(&mut host);
    let last = SIZE / block as u64 - 1;
    let mut bytes = vec![0; block];
    host.read(1, last, 1, &mut bytes).expect("the last one");
    for slba in [last + 1, u64::MAX, u64::MAX >> 9, 1 << 63] {
        assert_eq!(status(host.read(1, slba, 1, &mut bytes)), Status::LBA_OUT_OF_RANGE.dnr());
        assert_eq!(status(host.write(1, slba, 1, &bytes)), Status::LBA_OUT_OF_RANGE.dnr());
        let zeroes = Command::io(opcode::WRITE_ZEROES, 1, slba, 1);
        assert_eq!(status(host.plain(&zeroes)), Status::LBA_OUT_OF_RANGE.dnr());
    }
    let refusal = host.read(1, last, 2, &mut vec![0; 2 * block]);
    assert_eq!(status(refusal), Status::LBA_OUT_OF_RANGE.dnr());
    for nsid in [0, 3, 0xffff_ffff] {
        assert_eq!(status(host.read(nsid, 0, 1, &mut bytes)), Status::INVALID_NAMESPACE.dnr());
        let flush = Command::new(opcode::FLUSH, nsid);
        assert_eq!(status(host.plain(&flush)), Status::INVALID_NAMESPACE.dnr());
    }
    assert!(bench.file("one") == pattern(0, SIZE as usize), "nothing was written");
}

#[test]
fn wrong_lengths_and_descriptors_move_nothing() {
    let bench = Bench::new(Kind::System);
    let mut host = bench.connect();
    let block = block(&mut host);
    let queue = host.io().expect("one");
    let bytes = pattern(5, block);
    let (read, write) = (Command::io(opcode::READ, 1, 0, 1), Command::io(opcode::WRITE, 1, 0, 1));
    let length = Status::DATA_SGL_LENGTH_INVALID.dnr();
    // Shorter and longer than the blocks.
    for len in [0, block - 1, block + 1, 2 * block] {
        let refusal = queue.run(&read, Data::In { len: len.max(1), invalidate: true }, &mut []);
        assert_eq!(status(refusal), length, "{len}");
        let bytes = vec![1; len];
        assert_eq!(status(queue.run(&write, Data::Capsule(&bytes), &mut [])), length, "{len}");
    }
    let raw = |command: &Command, descriptor: [u8; 16]| Command { dptr: descriptor, ..*command };
    let in_capsule = |offset, len| Descriptor::InCapsule { offset, len }.to_bytes();
    let mut pages = [0; 16];
    pages[15] = 0x30;
    let len = block as u32;
    for (command, behind, expected) in [
        // More than the capsule brought.
        (raw(&write, in_capsule(0, len)), &bytes[..block - 1], length),
        (raw(&write, in_capsule(1, len)), &bytes[..], length),
        (raw(&write, in_capsule(u64::MAX, len)), &bytes[..], Status::SGL_OFFSET_INVALID.dnr()),
        (raw(&write, in_capsule(20000, len)), &bytes[..], Status::SGL_OFFSET_INVALID.dnr()),
        // Data for the host have no place in a capsule.
        (raw(&read, in_capsule(0, len)), &bytes[..], Status::INVALID_FIELD.dnr()),
        (raw(&read, pages), &[][..], Status::SGL_TYPE_INVALID.dnr()),
        (Command { flags: 0, ..write }, &[][..], Status::INVALID_FIELD.dnr()),
        (Command { flags: FLAGS_SGL | 1, ..write }, &[][..], Status::INVALID_FIELD.dnr()),
    ] {
        assert_eq!(
            status(queue.run(&command, Data::Raw(behind), &mut [])),
            expected,
            "{command:?}"
        );
    }
    assert!(bench.file("one") == pattern(0, SIZE as usize), "nothing was written");
    // A correct offset is kept.
    let mut behind = vec![0xee; 3];
    behind.extend_from_slice(&bytes);
    queue.run(&raw(&write, in_capsule(3, len)), Data::Raw(&behind), &mut []).expect("written");
    assert!(bench.file("one")[..block] == bytes);
    // More than MDTS.
    let many = Command::io(opcode::READ, 1, 0, (256 << 10 >> block.trailing_zeros()) as u16);
    let refusal = queue.run(&many, Data::In { len: 1 << 17, invalidate: true }, &mut []);
    assert_eq!(status(refusal), Status::INVALID_FIELD.dnr());
}

#[test]
fn a_wrong_key_ends_its_controller_and_no_other() {
    let bench = Bench::new(Kind::System);
    let mut other = bench.connect();
    let block = block(&mut other);
    for (opcode, invalidate) in
        [(opcode::READ, false), (opcode::WRITE, false), (opcode::FLUSH, true)]
    {
        let mut host = bench.connect();
        let queue = host.io().expect("one");
        let lie =
            Descriptor::Keyed { addr: 0x1000, len: block as u32, key: 0x1234_5678, invalidate };
        let command = Command { dptr: lie.to_bytes(), ..Command::io(opcode, 1, 0, 1) };
        queue.submit(&command, Data::Raw(&[])).expect("sent");
        let lost = queue.wait().expect_err("it does not survive that");
        assert!(matches!(lost, HostError::Lost(_)), "{lost}");
        // With a wrong key to invalidate, only the host's side of the connection fails: it must
        // leave.
        let is_told = !invalidate && host.admin.is_over(PATIENCE).expect("a channel");
        assert_eq!(is_told, !invalidate, "{opcode}");
        drop(host);
        until("the controller is gone", || bench.target.controllers() == 1);
    }
    let mut seen = vec![0; block];
    other.read(1, 0, 1, &mut seen).expect("it is served");
    assert!(seen == pattern(0, block), "and nothing was written");
    until("all memory is free again", || bench.target.memory().left() == 32);
}

#[test]
fn a_message_that_is_no_capsule_ends_the_connection() {
    let bench = Bench::new(Kind::System);
    let mut host = bench.connect();
    host.io().expect("one").send_raw(&[0; COMMAND_LEN - 1]).expect("sent");
    assert!(host.admin.is_over(PATIENCE).expect("a channel"));
    bench.connect();
}

#[test]
fn a_host_that_vanishes_leaves_nothing_behind() {
    let bench = Bench::new(Kind::Gpu);
    let mut host = Host::connect_io(&bench.host, &bench.who(), 2, 32).expect("it connects");
    let block = block(&mut host);
    for queue in &mut host.queues {
        for slba in 0..32 {
            let data = Data::In { len: 8 * block, invalidate: true };
            queue.submit(&Command::io(opcode::READ, 1, slba * 8, 8), data).expect("sent");
        }
    }
    drop(host);
    until("its controller is gone", || bench.target.controllers() == 0);
    until("all memory is free again", || bench.target.memory().left() == 32);
    bench.connect().shut_down().expect("the next one is served");
}

#[test]
fn a_file_that_shrank_is_an_unrecovered_read_error_and_gives_no_other_bytes() {
    let bench = Bench::new(Kind::System);
    let mut host = bench.connect();
    let block = block(&mut host);
    // The target's memory has another namespace's bytes by now.
    host.read(2, 0, (128 << 10 >> block.trailing_zeros()) as u16, &mut vec![0; 128 << 10])
        .expect("read");
    let file = std::fs::OpenOptions::new().write(true).open(bench.path("one")).expect("there");
    file.set_len(SIZE / 2 + block as u64).expect("cut off");
    let slba = SIZE / 2 / block as u64;
    for (slba, blocks) in [(slba + 1, 1), (slba + 1, 8), (slba, 2), (slba, 8)] {
        let (queue, len) = (host.io().expect("one"), usize::from(blocks) * block);
        let cid = queue.next_cid().expect("none is under way");
        queue.put(cid, &vec![0xaa; len]).expect("ours");
        let read = Command::io(opcode::READ, 1, slba, blocks);
        let refusal = queue.run(&read, Data::In { len, invalidate: true }, &mut []);
        assert_eq!(status(refusal), Status::UNRECOVERED_READ_ERROR);
        let mut seen = vec![0; len];
        queue.take(cid, &mut seen).expect("ours");
        assert!(seen.iter().all(|byte| *byte == 0xaa), "nothing was sent");
    }
    let smart = host.log_page(0x02, 0, 512).expect("a page");
    assert_eq!(smart[160], 4, "media errors");
}

#[test]
fn a_full_disk_is_capacity_exceeded_and_a_broken_one_a_media_error() {
    // One device that is always full, and one whose first page nobody can read or write.
    let bench = Bench::on(Kind::System, |_| {
        let open = |path| Namespace::with_size(path, 1 << 20).expect("it is there");
        vec![open("/dev/full"), open("/proc/self/mem")]
    });
    let mut host = bench.connect();
    let mut bytes = vec![0xaa; block(&mut host)];
    let full = Status::CAPACITY_EXCEEDED.dnr();
    assert_eq!(status(host.write(1, 0, 1, &bytes)), full, "in the capsule");
    assert_eq!(status(host.write(1, 0, 128, &vec![1; 128 * bytes.len()])), full, "fetched");
    assert_eq!(status(host.plain(&Command::io(opcode::WRITE_ZEROES, 1, 0, 8))), full);
    host.read(1, 0, 1, &mut bytes).expect("it reads as zeros");
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert_eq!(status(host.read(2, 0, 1, &mut bytes)), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(status(host.write(2, 0, 1, &bytes)), Status::WRITE_FAULT);
    let smart = host.log_page(0x02, 0, 512).expect("a page");
    assert_eq!(smart[160], 2, "media errors");
}

#[test]
fn a_file_that_cannot_be_written_is_write_protected() {
    let bench =
        Bench::on(Kind::System, |_| vec![Namespace::open("/proc/self/exe").expect("it is there")]);
    let mut host = bench.connect();
    let block = block(&mut host);
    assert_eq!(host.identify(0x00, 1).expect("a page")[99], 1, "NSATTR");
    let refusal = host.write(1, 0, 1, &pattern(1, block));
    assert_eq!(status(refusal), Status::NAMESPACE_WRITE_PROTECTED.dnr());
    let refusal = host.plain(&Command::io(opcode::WRITE_ZEROES, 1, 0, 1));
    assert_eq!(status(refusal), Status::NAMESPACE_WRITE_PROTECTED.dnr());
    host.read(1, 0, 1, &mut vec![0; block]).expect("read");
}

#[test]
fn a_write_with_fua_is_in_the_file_when_it_is_answered() {
    let bench = Bench::new(Kind::System);
    let mut host = bench.connect();
    let block = block(&mut host);
    let bytes = pattern(4, 2 * block);
    for opcode in [opcode::WRITE, opcode::READ] {
        let command = Command::io(opcode, 2, 4, 2);
        let command = Command { cdw12: (command.cdw12.get() | 1 << 30).into(), ..command };
        let mut seen = vec![0; bytes.len()];
        let data = match opcode {
            opcode::READ => Data::In { len: bytes.len(), invalidate: true },
            _ => Data::Out { bytes: &bytes, invalidate: true },
        };
        host.io().expect("one").run(&command, data, &mut seen).expect("done");
        assert!(opcode == opcode::WRITE || seen == bytes);
        assert!(bench.file("two")[4 * block..6 * block] == bytes);
    }
    // Data that cannot be made durable is no success.
    let bench = Bench::on(Kind::System, |_| {
        vec![Namespace::with_size("/dev/zero", 1 << 20).expect("it is there")]
    });
    let mut host = bench.connect();
    let write = Command::io(opcode::WRITE, 1, 0, 1);
    let lasting = Command { cdw12: (1u32 << 30).into(), ..write };
    let queue = host.io().expect("one");
    queue.run(&write, Data::Capsule(&[7; 512]), &mut []).expect("it takes everything");
    let refusal = queue.run(&lasting, Data::Capsule(&[7; 512]), &mut []);
    assert_eq!(status(refusal), Status::WRITE_FAULT);
    assert_eq!(status(host.plain(&Command::new(opcode::FLUSH, 1))), Status::WRITE_FAULT);
}

/// While a disk flushes, the other commands of the queue are answered.
#[test]
fn flush_zeros_and_fua_do_not_hold_their_queue() {
    let (open, gate) = std::sync::mpsc::channel();
    let gate = std::sync::Mutex::new(gate);
    let bench = Bench::on(Kind::System, |folder| {
        let path = folder.join("one");
        std::fs::write(&path, pattern(0, SIZE as usize)).expect("room");
        let slow = Namespace::open(&path).expect("just made").before_sync(move || {
            gate.lock().expect("no panic").recv_timeout(PATIENCE).expect("the test lets it go on");
        });
        vec![slow]
    });
    let mut host = bench.connect();
    let block = block(&mut host);
    let mut expected = pattern(0, SIZE as usize);
    let queue = host.io().expect("one");
    let lasting = |opcode, slba| {
        let command = Command::io(opcode, 1, slba, 1);
        Command { cdw12: (command.cdw12.get() | 1 << 30).into(), ..command }
    };
    let bytes = pattern(9, block);
    let slow = [
        (Command::new(opcode::FLUSH, 1), Data::None),
        (lasting(opcode::WRITE_ZEROES, 3), Data::None),
        (lasting(opcode::WRITE, 5), Data::Out { bytes: &bytes, invalidate: true }),
        (lasting(opcode::READ, 7), Data::In { len: block, invalidate: true }),
    ];
    let cids =
        slow.map(|(command, data)| queue.submit(&command, data).expect("sent").expect("room"));
    for slba in 0..20 {
        let mut seen = vec![0; block];
        let read = Command::io(opcode::READ, 1, 1000 + slba, 1);
        queue.run(&read, Data::In { len: block, invalidate: true }, &mut seen).expect("answered");
        let at = (1000 + slba as usize) * block;
        assert!(seen == expected[at..at + block], "{slba}");
    }
    for _ in cids {
        open.send(()).expect("the disk waits");
    }
    let mut left = std::collections::BTreeSet::from(cids);
    while !left.is_empty() {
        let (cid, answer) = queue.wait_timeout(PATIENCE).expect("alive").expect("answered in time");
        assert_eq!(answer.completion.status(), Status::SUCCESS);
        assert!(left.remove(&cid));
    }
    expected[3 * block..4 * block].fill(0);
    expected[5 * block..6 * block].copy_from_slice(&bytes);
    assert!(bench.file("one") == expected);
}

/// Reads and writes on two queues, eight commands at a time on each, until `disturb` has returned
/// and many more commands went well. Checks that what is read is right, that no command has another
/// status than Data Transfer Error, and that the connection stays. Returns how many had that one.
fn disturbed_under_load(bench: &mut Bench, disturb: impl FnOnce(&mut Bench)) -> usize {
    const LEN: usize = 64 << 10;
    let mut host = Host::connect_io(&bench.host, &bench.who(), 2, 16).expect("it connects");
    let block = block(&mut host);
    let (began, many) = std::sync::mpsc::channel();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let failed = std::thread::scope(|scope| {
        // One reads the first namespace, the other one writes the second.
        let workers = [opcode::READ, opcode::WRITE].map(|opcode| {
            let (mut queue, began, is_over) = (host.queues.remove(0), began.clone(), &is_over);
            scope.spawn(move || {
                let nsid = if opcode == opcode::READ { 1 } else { 2 };
                let expected = pattern(u64::from(nsid) - 1, SIZE as usize);
                let (mut places, mut number, mut failed, mut after) = ([0; 16], 0, 0, 0);
                while after < 40 {
                    while queue.busy() < 8 {
                        number += 1;
                        let place = number * 7 % 64 * LEN;
                        let (slba, blocks) = ((place / block) as u64, (LEN / block) as u16);
                        let data = match opcode {
                            opcode::READ => Data::In { len: LEN, invalidate: true },
                            _ => Data::Out { bytes: &expected[place..][..LEN], invalidate: true },
                        };
                        let command = Command::io(opcode, nsid, slba, blocks);
                        let cid = queue.submit(&command, data).expect("connected").expect("room");
                        places[usize::from(cid)] = place;
                    }
                    let (cid, answer) = queue.wait().expect("the connection stays");
                    match answer.completion.status() {
                        Status::SUCCESS => {
                            let (place, mut seen) = (places[usize::from(cid)], vec![0; LEN]);
                            queue.take(cid, &mut seen).expect("ours");
                            assert!(seen == expected[place..place + LEN], "{opcode} at {place}");
                            after += usize::from(is_over.load(SeqCst));
                        }
                        status => {
                            assert_eq!(status, Status::DATA_TRANSFER_ERROR);
                            failed += 1;
                        }
                    }
                    began.send(()).expect("it is awaited");
                }
                failed
            })
        });
        for _ in 0..50 {
            many.recv().expect("they read and write");
        }
        disturb(bench);
        is_over.store(true, SeqCst);
        workers.map(|worker| worker.join().expect("right bytes, and no other status"))
    });
    host.shut_down().expect("it ends well");
    until("all memory is free again", || bench.target.memory().left() == 32);
    assert!(bench.file("two") == pattern(1, SIZE as usize), "what was written");
    failed.iter().sum()
}

#[test]
fn a_provider_that_leaves_under_load_fails_commands_and_no_connection() {
    for kind in [Kind::Cmb, Kind::Gpu, Kind::Nic] {
        let mut bench = Bench::new(kind);
        let failed = disturbed_under_load(&mut bench, |bench| {
            bench.published.take().expect("published").remove("it was unplugged under load");
        });
        eprintln!("{kind:?}: {failed} commands failed");
        assert_eq!(bench.target.memory().provider(), "system memory", "{kind:?}");
    }
}

/// Its owner takes the memory away by itself: the orchestrator does not know of it.
#[test]
fn a_gpu_that_is_reset_and_goes_under_load_fails_commands_and_no_connection() {
    let mut owner = None;
    let mut bench = Bench::with(common::two_files, |machine, _| {
        let tree = Arc::clone(machine.orchestrator().p2pdma().tree());
        let (name, vram) = ("gpu0".to_owned(), 32 << 20);
        let config = GpuConfig { name, vram, shared: false, ..GpuConfig::default() };
        let gpu = Gpu::open_in(&config, tree).expect("a GPU");
        owner = Some(gpu.clone());
        let memory = Arc::new(GpuMemory::new(gpu).expect("in the tree"));
        Some(machine.orchestrator().publish(memory).expect("a device"))
    });
    let gpu = owner.expect("just opened");
    disturbed_under_load(&mut bench, |_| {
        for _ in 0..20 {
            assert_eq!(gpu.reset(), Vec::<String>::new(), "nobody keeps the memory");
        }
        assert_eq!(gpu.remove(), Vec::<String>::new(), "nobody keeps the memory");
    });
    assert_eq!(bench.target.memory().provider(), "system memory");
}

#[test]
fn a_provider_that_leaves_fails_commands_and_others_take_its_place() {
    for kind in [Kind::Cmb, Kind::Gpu] {
        let mut bench = Bench::new(kind);
        let mut host = bench.connect();
        let block = block(&mut host);
        let provider = bench.target.memory().provider();
        assert!(provider == "nvme0" || provider == "gpu0", "{provider}");
        let len = 128 << 10;
        let mut seen = vec![0; len];
        let blocks = (len / block) as u16;
        host.read(1, 0, blocks, &mut seen).expect("read");
        bench.published.take().expect("published").remove("it was unplugged");
        // A command that finds it gone fails with a status that allows a retry, which succeeds.
        let refusal = status(host.read(1, 0, blocks, &mut seen));
        assert_eq!(refusal, Status::DATA_TRANSFER_ERROR, "{kind:?}");
        assert!(refusal.may_retry());
        assert_eq!(bench.target.memory().provider(), "system memory");
        host.read(1, 0, blocks, &mut seen).expect("read");
        assert!(seen == pattern(0, len), "{kind:?}");
        host.write(1, 0, blocks, &pattern(3, len)).expect("written");
        assert!(bench.file("one")[..len] == pattern(3, len), "{kind:?}");
    }
}

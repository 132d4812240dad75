//! `peerdma run --pcap`: the recording of each carrier, read by tshark and by a reader of our own.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use interop::need::Need;
use interop::{Capture, Mode, Pair, Program, Recorded, Recording, Scratch, Veth, icrc, needs};

/// A pair whose two processes record into one file.
fn recorded(pair: Pair, file: &Path) -> Pair {
    pair.both(|program| program.env("PEERDMA_PCAP", file))
}

fn pingpong(program: &str, size: &str) -> Pair {
    Pair::new(program).args(["-g", "0", "-c", "-n", "50", "-s", size])
}

/// The number of packets in a file that match a filter of tshark.
#[track_caller]
fn count(file: &Path, filter: &str) -> usize {
    let out = Program::new("tshark")
        .args(["-r", file.to_str().expect("our own path"), "-Y", filter])
        .args(["-T", "fields", "-e", "frame.number"])
        .mode(Mode::Plain)
        .limit(Duration::from_secs(60))
        .output();
    out.success().stdout.lines().count()
}

/// The part of a packet that is the same for all recorders: everything after its UDP header.
fn roce(packet: &[u8]) -> Vec<u8> {
    let ip = if packet[0] >> 4 == 6 { 40 } else { 20 };
    packet[ip + 8..].to_vec()
}

/// The count of each packet.
fn tally<'a>(packets: impl Iterator<Item = &'a [u8]>) -> BTreeMap<Vec<u8>, usize> {
    let mut tally = BTreeMap::new();
    for packet in packets {
        *tally.entry(roce(packet)).or_default() += 1;
    }
    tally
}

fn sent_and_received(packets: &[Recorded]) -> [BTreeMap<Vec<u8>, usize>; 2] {
    [false, true].map(|inbound| {
        let wanted = packets.iter().filter(|packet| packet.inbound == inbound);
        tally(wanted.map(|packet| &packet.frame.ip[..]))
    })
}

#[test]
fn traffic_over_shared_memory_is_recorded_as_packets() {
    needs!(Need::Program("tshark"), Need::Program("ib_write_bw"));
    let scratch = Scratch::new();
    let perf =
        |program: &str, args: &[&str]| Pair::new(program).args(["-F", "-n", "20"]).args(args);
    for (index, pair, opcodes) in [
        (0, pingpong("ibv_rc_pingpong", "5003"), &[0x00, 0x01, 0x02, 0x11][..]),
        (1, pingpong("ibv_uc_pingpong", "5001"), &[0x20, 0x21, 0x22]),
        (2, pingpong("ibv_ud_pingpong", "1001"), &[0x64]),
        (3, pingpong("ibv_srq_pingpong", "4096"), &[0x00, 0x11]),
        // These would be direct operations, but are packets while a capture runs.
        (4, perf("ib_write_bw", &["-s", "10001"]), &[0x06, 0x07, 0x08, 0x11]),
        (5, perf("ib_read_bw", &["-s", "10002"]), &[0x0c, 0x0d, 0x0e, 0x0f]),
        (6, perf("ib_atomic_bw", &[]), &[0x14, 0x12]),
    ] {
        let file = scratch.file(&format!("{index}.pcapng"));
        recorded(pair, &file).run();
        let recording = Recording::read(&file);
        let total = recording.packets.len();
        assert_eq!(recording.interfaces.len(), 2, "one for each process");
        for (name, about) in &recording.interfaces {
            assert_eq!(name, "peerdma0");
            assert!(about.contains("(pid ") && about.contains("VF "), "{about}");
        }
        // Each received packet was sent by the other side, byte for byte. Only packets to a
        // receiver that had ended were not received.
        let [mut sent, received] = sent_and_received(&recording.packets);
        for (packet, count) in received {
            let left = sent
                .get_mut(&packet)
                .and_then(|sent| sent.checked_sub(count).map(|left| *sent = left));
            assert!(left.is_some(), "capture {index}: from nowhere: {:02x?}", &packet[..12]);
        }
        let left: usize = sent.values().sum();
        assert!(left < total / 10, "capture {index}: {left} of {total} packets were not received");
        for packet in &recording.packets {
            assert_eq!(icrc(&packet.frame), packet.frame.carried_icrc(), "{packet:?}");
            assert!(packet.comment.starts_with("QP 0x"), "{}", packet.comment);
            let opcode = roce(&packet.frame.ip)[0];
            let is_request = !(0x0d..=0x12).contains(&opcode);
            assert_eq!(packet.comment.contains("wr_id"), is_request && !packet.inbound);
        }
        let names_region =
            recording.packets.iter().any(|packet| packet.comment.contains(", MR 0x"));
        assert!(names_region, "capture {index}: no comment names an MR");
        assert_eq!(count(&file, "infiniband.bth"), total, "tshark finds a BTH in each");
        assert_eq!(count(&file, "_ws.malformed || _ws.short || udp.length.bad"), 0);
        for opcode in opcodes {
            let filter = format!("infiniband.bth.opcode == {opcode}");
            assert!(count(&file, &filter) > 0, "no opcode {opcode:#x} in capture {index}");
        }
    }
}

#[test]
fn datagrams_are_recorded_as_the_wire_carries_them() {
    needs!(
        Need::Root,
        Need::Namespaces,
        Need::Program("ip"),
        Need::Program("nsenter"),
        Need::Program("ethtool"),
        Need::Program("dumpcap"),
        Need::Program("ib_write_bw")
    );
    let scratch = Scratch::new();
    let veth = Veth::new();
    veth.without_offloads();
    let capture = Capture::start(&veth.left);
    let files = ["left.pcapng", "right.pcapng"].map(|name| scratch.file(name));
    let pair = Pair::new("ib_write_bw").args(["-F", "-n", "20", "-s", "10001"]);
    pair.across(&veth)
        .server(|program| program.env("PEERDMA_PCAP", &files[0]))
        .client(|program| program.env("PEERDMA_PCAP", &files[1]))
        .run();
    let wire = capture.stop();
    let wire = tally(wire.frames.iter().map(|frame| &frame.ip[..]));
    let recordings = files.map(|file| Recording::read(&file));
    let mut sent = BTreeMap::new();
    for recording in &recordings {
        let [own, received] = sent_and_received(&recording.packets);
        for (packet, count) in own {
            *sent.entry(packet).or_default() += count;
        }
        for (packet, count) in received {
            assert!(wire.get(&packet).is_some_and(|seen| *seen >= count), "from nowhere");
        }
        for packet in &recording.packets {
            assert_eq!(icrc(&packet.frame), packet.frame.carried_icrc(), "{packet:?}");
        }
    }
    assert!(sent == wire, "what was sent is what the wire carried");
    let total: usize = wire.values().sum();
    assert!(total > 60, "only {total} packets");
}

#[test]
fn a_process_records_what_it_sends_to_itself() {
    needs!(Need::Program("tshark"), Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let file = scratch.file("loop.pcapng");
    // It ends without closing its device.
    let program = interop::compile("pcap_loop", &scratch);
    Program::new(&program).env("PEERDMA_PCAP", &file).output().success().says("ok");
    let recording = Recording::read(&file);
    assert_eq!(recording.interfaces.len(), 1);
    assert!(recording.packets.iter().all(|packet| !packet.inbound), "each is recorded once");
    assert_eq!(count(&file, "infiniband.bth.opcode == 6"), 1, "one RDMA WRITE First");
    assert!(count(&file, "infiniband.bth.opcode == 7") >= 14, "its middle");
    assert_eq!(count(&file, "infiniband.bth.opcode == 8"), 1, "its end");
    assert_eq!(count(&file, "infiniband.bth.opcode == 17"), 1, "and its ACK");
    assert_eq!(count(&file, "_ws.malformed || _ws.short"), 0);
}

#[test]
fn long_packets_are_truncated_to_the_snap_length() {
    needs!(Need::Program("tshark"), Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let file = scratch.file("short.pcapng");
    let program = interop::compile("pcap_loop", &scratch);
    let peerdma = interop::Artefacts::find().peerdma();
    let run = |bytes: &str| {
        Program::new(&peerdma)
            .args([
                "run",
                "--pcap",
                file.to_str().expect("our own path"),
                "--pcap-bytes",
                bytes,
                "--",
            ])
            .args([program.to_str().expect("our own path")])
            .mode(Mode::Plain)
            .output()
    };
    run("128").success().says("ok");
    assert!(count(&file, "infiniband.bth.opcode == 7 && frame.cap_len == 128") >= 14);
    assert!(count(&file, "infiniband.bth.opcode == 7 && frame.len > 1000") >= 14);
    assert_eq!(count(&file, "infiniband.bth.opcode == 17 && frame.cap_len == frame.len"), 1);
    assert_eq!(count(&file, "frame.cap_len > 128"), 0);
    run("0").failure().says("--pcap-bytes");
    let wrong = Program::new(&program).env("PEERDMA_PCAP_BYTES", "many").output();
    wrong.failure().says("PEERDMA_PCAP_BYTES: many is not a number of bytes");
}

#[test]
fn run_replaces_the_file_or_reports_why_it_cannot() {
    needs!(Need::Program("ibv_devices"));
    let scratch = Scratch::new();
    let file = scratch.file("new.pcapng");
    std::fs::write(&file, "an older file").expect("our own directory");
    Program::new("ibv_devices").pcap(&file).output().success();
    let recording = Recording::read(&file);
    assert_eq!((recording.interfaces.len(), recording.packets.len()), (0, 0));
    let nowhere = scratch.file("no/such/directory");
    Program::new("ibv_devices")
        .pcap(&nowhere)
        .output()
        .failure()
        .says("--pcap")
        .says("No such file");
}

#[test]
fn a_killed_process_leaves_a_file_that_can_be_read() {
    needs!(Need::Program("ib_send_bw"), Need::Program("tshark"));
    let scratch = Scratch::new();
    let file = scratch.file("killed.pcapng");
    let args = ["-F", "-s", "4096", "-n", "1000000"];
    let mut pair = recorded(Pair::new("ib_send_bw").args(args), &file).start();
    pair.client.wait_busy(Duration::from_millis(50));
    pair.server.kill();
    pair.client.finish().failure();
    let recording = Recording::read(&file);
    assert!(!recording.packets.is_empty());
}

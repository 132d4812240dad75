//! Tests of the rig itself, without peerdma: it waits for conditions, leaves nothing behind, and
//! sees the wire.

use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use interop::need::Need;
use interop::{Capture, Mode, Pair, Port, Program, Veth, icrc, needs};

fn sh(script: &str) -> Program {
    Program::new("sh").args(["-c", script]).mode(Mode::Plain)
}

#[test]
fn output_and_status_are_collected() {
    let out = sh("echo 'key:   value'; echo no >&2; exit 3").output();
    out.failure().says("no");
    assert_eq!(out.field("key"), Some("value"));
    assert_eq!(out.status.code(), Some(3));
}

#[test]
fn a_program_that_hangs_is_killed_with_its_children() {
    let hanging = sh("sleep 1000 & sleep 1000; wait").limit(Duration::from_millis(200));
    let failed = catch_unwind(AssertUnwindSafe(|| hanging.output()));
    let words = *failed.expect_err("it had to fail").downcast::<String>().expect("a message");
    assert!(words.contains("its time was up"), "{words}");
}

#[test]
fn an_unannounced_daemon_fails_the_test() {
    needs!(Need::Program("setsid"));
    let failed = catch_unwind(|| sh("setsid -f sleep 1000 >/dev/null 2>&1").output());
    let words = *failed.expect_err("it had to fail").downcast::<String>().expect("a message");
    assert!(words.contains("left processes"), "{words}");
}

#[test]
fn kill_is_seen_as_a_signal() {
    let running = sh("sleep 1000").start();
    running.kill();
    assert_eq!(running.finish().status.signal(), Some(9));
}

#[test]
fn a_stopped_program_continues_when_resumed() {
    let running = sh("sleep 0.05; echo done").start();
    running.stop();
    running.resume();
    running.finish().success().says("done");
}

#[test]
fn a_client_starts_when_its_server_listens() {
    needs!(Need::Program("python3"));
    // Called as `-p PORT` and `-p PORT HOST`, like the programs under test.
    let script = "import socket, sys, time\n\
                  port = int(sys.argv[2])\n\
                  if len(sys.argv) == 3:\n\
                  \x20   time.sleep(0.2)\n\
                  \x20   s = socket.create_server(('', port))\n\
                  \x20   s.accept()[0].sendall(b'hello')\n\
                  else:\n\
                  \x20   print(socket.create_connection((sys.argv[3], port)).recv(5).decode())\n";
    let scratch = interop::Scratch::new();
    let path = scratch.file("peer.py");
    std::fs::write(&path, format!("#!/usr/bin/python3\n{script}")).expect("a writable scratch");
    let mut mode = std::fs::metadata(&path).expect("just written").permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    std::fs::set_permissions(&path, mode).expect("our own file");
    let done = Pair::new(path).mode(Mode::Plain).run();
    done.client.says("hello");
}

#[test]
fn ports_are_leased_once() {
    let (a, b) = (Port::lease(), Port::lease());
    assert_ne!(a.number(), b.number());
}

#[test]
fn a_capture_sees_packets_and_their_icrc() {
    needs!(
        Need::Root,
        Need::Namespaces,
        Need::Program("ip"),
        Need::Program("nsenter"),
        Need::Program("setpriv"),
        Need::Program("ethtool"),
        Need::Program("dumpcap"),
        Need::Program("python3"),
    );
    // A SEND Only of 8 bytes, with an ICRC by zlib: a third implementation. IP_PMTUDISC_DO gives DF
    // and id 0.
    let script = "import socket, struct, zlib\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        s.setsockopt(socket.IPPROTO_IP, 10, 2)\n\
        s.bind(('10.77.0.1', 4791))\n\
        ip = socket.inet_aton\n\
        bth = bytearray(struct.pack('>BBHII', 4, 0x40, 0xffff, 0x77, 5)) + b'12345678'\n\
        def packet(bth):\n\
        \x20   n = 8 + len(bth) + 4\n\
        \x20   h = struct.pack('>BBHHHBBH', 0x45, 0xff, 20 + n, 0, 0x4000, 0xff, 17, 0xffff)\n\
        \x20   h += ip('10.77.0.1') + ip('10.77.0.2') + struct.pack('>HHHH', 4791, 4791, n, 0xffff)\n\
        \x20   masked = bytearray(bth); masked[4] = 0xff\n\
        \x20   return bytes(bth) + struct.pack('<I', zlib.crc32(b'\\xff' * 8 + h + bytes(masked)))\n\
        s.sendto(packet(bth), ('10.77.0.2', 4791))\n\
        s.sendto(packet(bth)[:-1] + b'\\0', ('10.77.0.2', 4791))\n";
    let veth = Veth::new();
    veth.without_offloads();
    let capture = Capture::start(&veth.right);
    Program::new("/usr/bin/python3")
        .args(["-c", script])
        .mode(Mode::Plain)
        .in_netns(&veth.left)
        .output()
        .success();
    let frames = capture.stop().frames;
    assert_eq!(frames.len(), 2);
    assert_eq!(icrc(&frames[0]), frames[0].carried_icrc());
    assert_eq!(icrc(&frames[1]), icrc(&frames[0]), "the same packet");
}

//! `peerdma run --fault`: programs get, on demand, failures that healthy hardware does not show.

use std::path::{Path, PathBuf};

use interop::need::Need;
use interop::{Mode, Output, Pair, Program, Scratch, Veth, compile, needs};

fn plan(scratch: &Scratch, name: &str, text: &str) -> PathBuf {
    let path = scratch.file(name);
    std::fs::write(&path, text).expect("a file of our own");
    path
}

/// Runs `faulty ARGS` under a plan.
#[track_caller]
fn faulty(scratch: &Scratch, args: &[&str], text: &str) -> Output {
    let plan = plan(scratch, "plan.toml", text);
    Program::new(scratch.file("faulty")).args(args).env("PEERDMA_FAULT", plan).output()
}

#[track_caller]
fn scratch() -> Scratch {
    let scratch = Scratch::new();
    compile("faulty", &scratch);
    scratch
}

/// The two reports of a pair.
fn report(file: &Path) -> String {
    std::fs::read_to_string(file).expect("a report")
}

/// Data is correct and complete despite all faults of packets, on both carriers.
#[test]
fn a_reliable_connection_survives_a_bad_network() {
    needs!(Need::Program("ibv_rc_pingpong"), Need::Program("ip"));
    let scratch = Scratch::new();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/bad-network.toml");
    let example = std::fs::read_to_string(example).expect("it is there");
    // Each side sends 2400 requests. The last ones are not hit: the program ends as soon as it has
    // its last message, and a peer whose last acknowledgement was lost would retry in vain.
    let plan =
        plan(&scratch, "bad.toml", &example.replace("[[fault]]", "[[fault]]\nnth = '1-1500'"));
    let veth = Veth::new();
    for (carrier, hosts) in [("memory", None), ("wire", Some(&veth))] {
        let reports = scratch.file(carrier);
        let mut pair =
            Pair::new("ibv_rc_pingpong").args(["-g", "0", "-c", "-n", "300", "-s", "8000"]).both(
                |program| program.env("PEERDMA_FAULT", &plan).env("PEERDMA_FAULT_REPORT", &reports),
            );
        if let Some(veth) = hosts {
            pair = pair.across(veth);
        }
        let done = pair.run();
        done.client.says("300 iters in");
        let said = report(&reports);
        assert_eq!(said.matches("(seed 11)").count(), 2, "one of each process: {said}");
        for name in ["loss: drop fired", "flips: corrupt fired", "echo: duplicate fired"] {
            assert!(said.contains(name), "{carrier}: no {name:?} in {said}");
        }
        assert!(said.contains("of ") && said.contains("PSN"), "{said}");
    }
}

/// A plan that loses all packets after the first ones leads to the error of the standard.
#[test]
fn a_peer_that_does_not_answer_is_retry_exceeded() {
    needs!(Need::Program("ibv_rc_pingpong"));
    let scratch = Scratch::new();
    let plan =
        plan(&scratch, "cut.toml", "[[fault]]\nname = 'the cut'\ndo = 'drop'\nnth = '20-'\n");
    let pair = Pair::new("ibv_rc_pingpong")
        .args(["-g", "0", "-n", "1000"])
        .client(|program| program.env("PEERDMA_FAULT", &plan))
        .start();
    let client = pair.client.finish();
    client.failure().says("Failed status transport retry counter exceeded (12)");
    client.says("the cut: drop fired");
    pair.server.kill();
    pair.server.finish();
}

#[test]
fn payloads_corrupted_with_a_valid_checksum() {
    needs!(Need::Program("gcc"));
    let scratch = scratch();
    let out = faulty(
        &scratch,
        &["write", "20"],
        "[[fault]]\ndo = 'junk'\nopcode = 'write'\nnth = '9-12'\nqp = 1",
    );
    // A WRITE of 4096 bytes is four packets at this MTU: the plan hits the third WRITE.
    out.success().says("20 done, 1 with wrong bytes").says("junk: fired 4 times");
    // The same WRITE by its PSNs, of which the first is 7.
    let out = faulty(
        &scratch,
        &["write", "20"],
        "[[fault]]\ndo = 'junk'\nopcode = 'write'\npsn = '0xf-0x12'",
    );
    out.success().says("20 done, 1 with wrong bytes");
    out.says("junk: fired 4 times, of 4 packets")
        .says("RC_RDMA_WRITE_LAST, QP")
        .says("PSN 0x000012");
}

/// The options of the command do the same as the variables.
#[test]
fn a_plan_and_its_report_are_named_on_the_command_line() {
    needs!(Need::Program("gcc"));
    let scratch = scratch();
    let plan =
        plan(&scratch, "plan.toml", "[[fault]]\ndo = 'junk'\nopcode = 'write'\nnth = 1\nqp = 1");
    let fired = scratch.file("fired");
    let peerdma = interop::Artefacts::find().peerdma();
    let out = Program::new(&peerdma)
        .args(["run", "--fault"])
        .args([plan.as_os_str(), "--fault-report".as_ref(), fired.as_os_str(), "--".as_ref()])
        .args([scratch.file("faulty").as_os_str(), "write".as_ref(), "3".as_ref()])
        .mode(Mode::Plain)
        .output();
    out.success().says("3 done, 1 with wrong bytes");
    assert!(!out.stderr.contains("junk"), "the report goes to the file alone: {out}");
    let said = report(&fired);
    assert!(
        said.starts_with(&format!("fault plan {} (seed 0) in faulty, pid ", plan.display())),
        "{said}"
    );
    assert_eq!(said.matches("\n  junk: fired once, of 12 packets").count(), 1, "{said}");
}

#[test]
fn a_receiver_that_is_not_ready() {
    needs!(Need::Program("gcc"));
    let scratch = scratch();
    let out = faulty(
        &scratch,
        &["send", "3"],
        "[[fault]]\ndo = 'not-ready'\nway = 'in'\nopcode = 'send'\ntimes = 5",
    );
    out.success().says("3 done, 0 with wrong bytes").says("not-ready: fired 5 times");
}

#[test]
fn a_request_that_is_refused() {
    needs!(Need::Program("gcc"));
    let scratch = scratch();
    for operation in ["write", "read"] {
        let out = faulty(
            &scratch,
            &[operation, "9"],
            &format!(
                "[[fault]]\ndo = 'refuse'\nway = 'in'\nopcode = '{operation}'\nfrom = '0s'\nevery = 6"
            ),
        );
        out.failure().says("status 10 remote access error, wr_id 1").says("refuse: fired once");
    }
}

#[test]
fn a_queue_pair_and_a_completion_queue_that_fail() {
    needs!(Need::Program("gcc"));
    let scratch = scratch();
    let out = faulty(
        &scratch,
        &["write", "2000", "1"],
        "[[fault]]\ndo = 'qp-error'\nqp = 1\nfrom = '50ms'",
    );
    out.failure()
        .says("status 5 Work Request Flushed Error")
        .says("event local work queue catastrophic error")
        .says("qp-error: fired once");
    let out = faulty(
        &scratch,
        &["write", "9"],
        "[[fault]]\ndo = 'cq-overrun'\nopcode = 'RC_RDMA_WRITE_FIRST'\nnth = 3\nqp = 1",
    );
    // The completion that found no room is lost, and the queue is unusable.
    out.failure().says("poll_cq").says("event CQ error").says("3 done");
}

#[test]
fn a_port_that_goes_down_and_comes_back() {
    needs!(Need::Program("gcc"));
    let scratch = scratch();
    let out = faulty(
        &scratch,
        &["write", "600", "1"],
        "[[fault]]\nname = 'flap'\ndo = 'port-down'\nfrom = '100ms'\nfor = '150ms'",
    );
    out.success()
        .says("event port error\nport down\nevent port active\nport active")
        .says("600 done, 0 with wrong bytes")
        .says("flap: port-down fired once");
}

/// The port is down for longer than the usual retries take: a QP with a longer ACK timeout
/// continues afterwards, one with a shorter timeout gets RETRY_EXC while the port is down.
#[test]
fn a_port_that_is_down_for_three_seconds() {
    needs!(Need::Program("gcc"));
    let scratch = scratch();
    let plan = plan(
        &scratch,
        "cable.toml",
        "[[fault]]\nname = 'the cable'\ndo = 'port-down'\nfrom = '100ms'\nfor = '3s'",
    );
    let writing = |timeout: &str| {
        Program::new(scratch.file("faulty"))
            .args(["write", "600", "1"])
            .env("PEERDMA_FAULT", &plan)
            .env("LOOP_TIMEOUT", timeout)
            .output()
    };
    // 1.07 s, seven times again.
    let patient = writing("18");
    patient.success().says("event port error\nport down\nevent port active\nport active");
    patient.says("600 done, 0 with wrong bytes").says("the cable: port-down fired once");
    assert!(milliseconds(&patient) >= 3000, "{patient}");
    // 8 ms.
    let impatient = writing("11");
    impatient.failure().says("event port error\nport down");
    impatient.says("status 12 transport retry counter exceeded, wr_id 1");
    impatient.never_says("event port active");
}

#[test]
fn a_region_that_is_revoked_while_in_use() {
    needs!(Need::Program("gcc"));
    let scratch = scratch();
    let out = faulty(
        &scratch,
        &["write", "9"],
        "[[fault]]\ndo = 'revoke'\nmr = 1\nopcode = 'RC_RDMA_WRITE_LAST'\nnth = 4\nqp = 1",
    );
    out.failure().says("status 10 remote access error, wr_id 1").says("revoke: fired once");
}

/// Requests between the packet and the time are served.
#[test]
fn a_region_that_is_revoked_after_a_delay() {
    needs!(Need::Program("gcc"));
    let scratch = scratch();
    let out = faulty(
        &scratch,
        &["apart", "100000", "1"],
        "[[fault]]\ndo = 'revoke'\nmr = 2\nby = '300ms'\nopcode = 'RC_RDMA_WRITE_LAST'\nnth = 4\nqp = 1\ntimes = 1",
    );
    out.failure().says("status 10 remote access error, wr_id 1").says("revoke: fired once, of ");
    let took = milliseconds(&out);
    assert!(took >= 300, "300 ms and what was before: {took} ms\n{out}");
    let done = out.stdout.lines().find_map(|line| line.split_once(" done, 0 with wrong bytes"));
    let done = done.and_then(|(done, _)| done.parse::<u64>().ok()).expect("a count");
    assert!(done > 5, "the four, those that came until then, and the one that failed: {out}");

    // A program that ends before is not affected.
    let out = faulty(
        &scratch,
        &["apart", "9"],
        "[[fault]]\ndo = 'revoke'\nby = '10m'\nopcode = 'RC_RDMA_WRITE_LAST'\nnth = 4\nqp = 1",
    );
    out.success().says("9 done, 0 with wrong bytes");
    out.says("revoke: fired once (1 still to come), of 9 packets that met its conditions");
}

#[test]
fn delays_have_the_planned_length() {
    needs!(Need::Program("gcc"));
    let scratch = scratch();
    let out = faulty(
        &scratch,
        &["write", "4"],
        "[[fault]]\ndo = 'delay'\nby = '40ms'\nopcode = 'ack'\nqp = 2",
    );
    let out = out.success();
    let took = milliseconds(out);
    assert!(took >= 160, "four ACKs, each 40 ms late: {took} ms\n{out}");
}

/// The duration that `faulty` reports.
#[track_caller]
fn milliseconds(out: &Output) -> u64 {
    let took = out.stdout.split_once(" bytes, ").and_then(|(_, rest)| rest.split(' ').next());
    took.and_then(|took| took.parse().ok()).expect("a time")
}

#[test]
fn page_faults_have_the_planned_delay() {
    needs!(Need::Program("gcc"));
    let scratch = scratch();
    let out = faulty(&scratch, &["paged", "1"], "[[fault]]\ndo = 'slow-faults'\nby = '60ms'");
    let out = out.success().says("1 done, 0 with wrong bytes").says("slow-faults: fired");
    let took = milliseconds(out);
    assert!(took >= 120, "a page read and a page written, 60 ms each: {took} ms\n{out}");
}

#[test]
fn an_invalid_plan_is_refused_before_the_program_starts() {
    let scratch = Scratch::new();
    let plan = plan(&scratch, "wrong.toml", "[[fault]]\nname = 'x'\ndo = 'delay'\n");
    let peerdma = interop::Artefacts::find().peerdma();
    let out = Program::new(&peerdma)
        .args(["run", "--fault"])
        .args([plan.as_os_str()])
        .args(["--", "echo", "started"])
        .mode(Mode::Plain)
        .output();
    out.failure().says("fault 1 (x): does not say how long: by = \"10ms\"");
    assert!(!out.stdout.contains("started"), "{out}");
}

/// The same file and seed hit the same packets.
#[test]
fn a_plan_hits_the_same_packets_again() {
    needs!(Need::Program("gcc"));
    let scratch = scratch();
    let text = "seed = 5\n[[fault]]\ndo = 'drop'\nopcode = 'write'\nprobability = 0.02\ntimes = 3";
    let last = || {
        let out = faulty(&scratch, &["write", "100"], text);
        let line = out.success().stderr.lines().find(|line| line.contains("drop: fired"));
        let line = line.expect("a report").to_owned();
        let (head, _) = line.split_once("; first").expect("a time");
        head.to_owned()
    };
    let first = last();
    assert!(first.contains("fired 3 times"), "{first}");
    assert_eq!(first, last());
}

/// Packets of the connection manager get the same faults, in both directions: connections are still
/// established and closed.
#[test]
fn connections_are_established_over_a_bad_network() {
    needs!(Need::Program("rping"), Need::Program("ip"));
    let scratch = Scratch::new();
    let mut text = String::new();
    for (way, rules) in [
        ("out", [("nth = 1", "duplicate"), ("nth = 2", "delay'\nby = '30ms")]),
        ("in", [("nth = 1", "delay'\nby = '20ms"), ("nth = 2", "duplicate")]),
    ] {
        for (nth, what) in rules {
            text += &format!(
                "[[fault]]\nname = '{way} {nth}'\ndo = '{what}'\nopcode = 'cm'\nway = '{way}'\n{nth}\n"
            );
        }
    }
    let plan = plan(&scratch, "cm.toml", &text);
    let veth = Veth::new();
    let port = interop::Port::lease();
    let rping = |place: &str, host: &interop::Netns| {
        let args = ["-a", "10.77.0.1", "-v", "-C", "10", "-p", &port.number().to_string()];
        Program::new("rping")
            .args([place])
            .args(args)
            .env("PEERDMA_FAULT", &plan)
            .env("PEERDMA_LOG", "peerdma::cm=info")
            .in_netns(host)
    };
    let mut server = rping("-s", &veth.left).start();
    server.wait_says("listening");
    let client = rping("-c", &veth.right).output();
    let server = server.finish();
    client.success();
    for (out, fired) in [(&client, 4), (&server, 3)] {
        let count = out.stderr.lines().filter(|line| line.contains("fired once")).count();
        assert!(count >= fired, "{out}");
    }
}

/// Runs `peerdma explain ARGS`.
fn explain(args: &[&str]) -> Program {
    let peerdma = interop::Artefacts::find().peerdma();
    Program::new(&peerdma).args(["explain"]).args(args).mode(Mode::Plain)
}

#[test]
fn each_failed_work_request_is_explained_in_a_sentence() {
    needs!(Need::Program("gcc"));
    let scratch = scratch();
    let program = scratch.file("faulty");
    let program = program.to_str().expect("our own path");
    for (operation, text, said) in [
        (
            "write",
            "do = 'refuse'\nway = 'in'\nopcode = 'write'\nnth = 9",
            &[
                "explain: a work request failed",
                "REM_ACCESS_ERR (10): RDMA WRITE of 4096 bytes, wr_id 0x1, to key 0x",
                "(this process): the peer refused access",
                "; sent as PSN 0x00000f to 0x000012, last acknowledged PSN 0x00000e",
                "REM_ACCESS_ERR is usually one of these:",
                "`--trace FILE` shows what led to it",
                "`peerdma top` shows the queue pairs",
            ][..],
        ),
        (
            "send",
            "do = 'drop'\nopcode = 'send'\nnth = '4-'",
            &[
                "RETRY_EXC_ERR (12): SEND of 4096 bytes, wr_id 0x1, QP 0x",
                "no acknowledgement came within the timeout",
                "7 of 7 retries used, ACK timeout 67.1ms",
            ],
        ),
        ("read", "do = 'drop'\ntimes = 0", &["explain: no work request failed"]),
    ] {
        let plan = plan(&scratch, "plan.toml", &format!("[[fault]]\n{text}"));
        let out = explain(&["--", program, operation, "3"]).env("PEERDMA_FAULT", plan).output();
        for said in said {
            out.says(said);
        }
        assert_eq!(out.status.success(), operation == "read", "as the program returned: {out}");
    }
}

#[test]
fn a_status_is_explained_by_number_and_name() {
    explain(&["12"]).output().success().says("IBV_WC_RETRY_EXC_ERR (12)").says("UDP port 4791");
    explain(&["rem_access", "6"]).output().success().says("(10)").says("the peer refused access:");
    explain(&["12", "129"]).output().success().says("none of peerdma's");
    explain(&["77"]).output().failure().says("is no completion status");
}

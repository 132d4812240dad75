//! Peers that die, peers that are stopped, memory that is unmapped, wrong arguments.

use std::time::Duration;

use interop::need::Need;
use interop::{Artefacts, Mode, Pair, Program, Scratch, compile, needs, perftest};

/// Processor time by which a polling program is past connecting, in the middle of its run.
const BUSY: Duration = Duration::from_millis(300);

/// A run that would take minutes if it were not disturbed.
fn endless() -> Pair {
    Pair::new("ibv_rc_pingpong").args(["-g", "0", "-n", "100000000"]).limit(Duration::from_secs(90))
}

/// A stream that would take a minute. Unlike in a ping-pong, its sender always has something
/// unacknowledged: a program that only waits for a message from a dead peer waits for ever, as on
/// any NIC.
fn stream(program: &str) -> Pair {
    Pair::new(program).args(["-F", "-D", "60", "-s", "65536"]).limit(Duration::from_secs(90))
}

#[test]
fn the_client_of_a_killed_server_gets_retry_exceeded() {
    needs!(Need::Program("ib_send_bw"));
    let mut pair = stream("ib_send_bw").start();
    pair.client.wait_busy(BUSY);
    pair.server.kill();
    pair.client.finish().failure().says("Failed status 12");
}

#[test]
fn the_server_of_a_killed_client_gets_retry_exceeded() {
    needs!(Need::Program("ib_write_bw"));
    let mut pair = stream("ib_write_bw").args(["-b"]).start();
    pair.server.wait_busy(BUSY);
    pair.client.kill();
    pair.server.finish().failure().says("Failed status 12");
}

#[test]
fn one_sided_operations_to_a_killed_server_fail() {
    needs!(Need::Program("ib_write_bw"));
    let mut pair = stream("ib_write_bw").start();
    pair.client.wait_busy(BUSY);
    pair.server.kill();
    let out = pair.client.finish();
    out.failure().says("Failed status 12");
}

/// A sleeping program is woken, too: only the engine's own thread runs in its process.
#[test]
fn a_program_that_sleeps_for_events_is_woken_when_its_peer_dies() {
    needs!(Need::Program("ib_send_bw"));
    let args = ["-F", "-n", "10000000", "-s", "65536", "-e"];
    let mut pair = Pair::new("ib_send_bw").args(args).limit(Duration::from_secs(90)).start();
    pair.client.wait_busy(BUSY);
    // Stopped first, so that the client is asleep in ibv_get_cq_event when its peer dies.
    pair.server.stop();
    pair.client.wait_idle();
    pair.server.kill();
    pair.client.finish().failure().says("Failed status 12");
}

#[test]
fn a_sender_that_filled_its_ring_gets_retry_exceeded() {
    needs!(Need::Program("ib_send_bw"));
    let mut pair = stream("ib_send_bw").start();
    pair.client.wait_busy(BUSY);
    pair.server.stop();
    // The condition under test is time itself: the ring is full and stays so for longer than the
    // ACK timeout.
    std::thread::sleep(Duration::from_secs(2));
    assert!(pair.client.is_alive(), "a stopped peer is not dead");
    pair.server.kill();
    pair.client.finish().failure().says("Failed status 12");
}

#[test]
fn after_a_peers_death_requests_are_flushed_and_objects_destroyed() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = compile("killed", &scratch);
    for side in ["poll", "events", "full", "rnr"] {
        Program::new(&program).args([side]).output().success().says("ok");
    }
}

#[test]
fn a_stopped_server_is_not_a_dead_one() {
    needs!(Need::Program("ib_send_bw"));
    // A stream, as a ping-pong of this length takes minutes on a machine whose cores are all busy.
    let mut pair = Pair::new("ib_send_bw").args(["-F", "-s", "65536", "-n", "50000"]).start();
    pair.client.wait_busy(Duration::from_millis(50));
    pair.server.stop();
    // The condition under test is time itself: far longer than the ACK timeout of 67 ms with its 7
    // retries.
    std::thread::sleep(Duration::from_secs(3));
    let was_alive = pair.client.is_alive();
    pair.server.resume();
    let done = pair.finish();
    done.client.success();
    done.server.success();
    assert_eq!(perftest::rows(&done.client).len(), 1, "{}", done.client);
    assert!(was_alive, "the run was over before the stop: nothing was tested");
}

#[test]
fn one_sided_operations_survive_a_stopped_server() {
    needs!(Need::Program("ib_write_bw"));
    let args = ["-F", "-n", "20000", "-s", "65536", "-N"];
    let mut pair = Pair::new("ib_write_bw").args(args).start();
    pair.client.wait_busy(Duration::from_millis(50));
    pair.server.stop();
    std::thread::sleep(Duration::from_secs(3));
    pair.server.resume();
    let done = pair.finish();
    done.client.success();
    assert_eq!(perftest::rows(&done.client).len(), 1, "{}", done.client);
}

#[test]
fn the_device_is_usable_after_a_crash() {
    needs!(Need::Program("ibv_rc_pingpong"));
    for _ in 0..3 {
        let mut pair = endless().start();
        pair.client.wait_busy(Duration::from_millis(50));
        pair.server.kill();
        pair.client.kill();
        drop(pair);
        Pair::new("ibv_rc_pingpong").args(["-g", "0", "-n", "50", "-c"]).run();
    }
}

#[test]
fn unmapped_memory_is_an_error_and_not_a_signal() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = compile("unmapped", &scratch);
    for side in ["source", "target"] {
        let program = Program::new(&program).args([side]).env("PEERDMA_LOG", "warn");
        program.output().success().says("ok").says("a region's memory is gone");
    }
}

#[test]
fn wrong_arguments_get_the_errno_of_the_field() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    Program::new(compile("badargs", &scratch)).output().success().says("ok");
}

#[test]
fn peerdma_log_gives_the_reason() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let out = Program::new(compile("badargs", &scratch)).env("PEERDMA_LOG", "debug").output();
    out.success();
    assert!(!out.stderr.is_empty(), "each refusal is explained:\n{out}");
}

#[test]
fn nothing_is_left_after_all_programs_have_ended_or_were_killed() {
    needs!(
        Need::Root,
        Need::Namespaces,
        Need::Program("ibv_rc_pingpong"),
        Need::Program("ib_write_bw")
    );
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/sh/leftovers.sh");
    let own = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", script];
    let world = Program::new("unshare").mode(Mode::Plain).args(own);
    let out = world.args([Artefacts::find().peerdma()]).output();
    assert_eq!(out.success().stdout, "that is all\n", "{out}");
}

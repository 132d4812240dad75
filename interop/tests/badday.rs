//! Peers that die, peers that only sleep, memory that vanishes, arguments that are wrong.

use std::time::Duration;

use interop::need::Need;
use interop::{Pair, Program, Scratch, compile, needs, perftest};

/// Enough processor time to be past connecting: a program that polls burns it in the middle of its run.
const BUSY: Duration = Duration::from_millis(300);

/// Runs that would take minutes if nothing happened to them.
fn endless() -> Pair {
    Pair::new("ibv_rc_pingpong").args(["-g", "0", "-n", "100000000"]).limit(Duration::from_secs(90))
}

#[test]
fn the_client_of_a_killed_server_gets_retry_exceeded() {
    needs!(Need::Program("ibv_rc_pingpong"));
    let mut pair = endless().start();
    pair.client.wait_busy(BUSY);
    pair.server.kill();
    let out = pair.client.finish();
    // Its status is RETRY_EXC_ERR, and the program ends by itself.
    out.failure().says("Failed status transport retry counter exceeded (12)");
}

#[test]
fn the_server_of_a_killed_client_gets_retry_exceeded() {
    needs!(Need::Program("ibv_rc_pingpong"));
    let mut pair = endless().start();
    pair.server.wait_busy(BUSY);
    pair.client.kill();
    let out = pair.server.finish();
    out.failure().says("Failed status transport retry counter exceeded (12)");
}

#[test]
fn one_sided_operations_to_a_killed_server_fail() {
    needs!(Need::Program("ib_write_bw"));
    let args = ["-F", "-D", "60", "-s", "65536"];
    let mut pair = Pair::new("ib_write_bw").args(args).limit(Duration::from_secs(90)).start();
    pair.client.wait_busy(BUSY);
    pair.server.kill();
    let out = pair.client.finish();
    out.failure().says("Failed status 12");
}

#[test]
fn a_stopped_server_is_not_a_dead_one() {
    needs!(Need::Program("ibv_rc_pingpong"));
    let iterations = ["-n", "100000"];
    let mut pair =
        Pair::new("ibv_rc_pingpong").args(["-g", "0", "-s", "4096"]).args(iterations).start();
    pair.client.wait_busy(Duration::from_millis(50));
    pair.server.stop();
    // The condition under test is time itself: far longer than the ACK timeout of 67 ms with its 7 retries.
    std::thread::sleep(Duration::from_secs(3));
    let was_alive = pair.client.is_alive();
    pair.server.resume();
    let done = pair.finish();
    done.client.success().says("100000 iters in");
    done.server.success();
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
fn unmapped_memory_is_an_error_and_no_signal() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = compile("unmapped", &scratch);
    for side in ["source", "target"] {
        Program::new(&program).args([side]).output().success().says("ok");
    }
}

#[test]
fn wrong_arguments_get_the_errno_of_the_field() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    Program::new(compile("badargs", &scratch)).output().success().says("ok");
}

#[test]
fn peerdma_log_says_why() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let out = Program::new(compile("badargs", &scratch)).env("PEERDMA_LOG", "debug").output();
    out.success();
    assert!(!out.stderr.is_empty(), "each refusal is explained:\n{out}");
}

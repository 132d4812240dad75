//! fork, daemon and Python's multiprocessing, in the orders in which programs use them.

use std::time::Duration;

use interop::need::Need;
use interop::{Program, Scratch, compile, needs};

#[track_caller]
fn fork_case(name: &str) {
    let scratch = Scratch::new();
    let program = compile("fork", &scratch);
    Program::new(program).args([name]).output().success().says("ok");
}

#[test]
fn a_child_that_does_not_use_verbs() {
    needs!(Need::Header("infiniband/verbs.h"));
    fork_case("child_idle");
}

#[test]
fn parent_and_child_both_use_verbs() {
    needs!(Need::Header("infiniband/verbs.h"));
    fork_case("both");
}

#[test]
fn inherited_objects_are_dead_in_the_child() {
    needs!(Need::Header("infiniband/verbs.h"));
    fork_case("husks");
}

#[test]
fn the_parent_exits_and_its_child_continues() {
    needs!(Need::Header("infiniband/verbs.h"));
    fork_case("orphan");
}

#[test]
fn forks_while_other_threads_open_and_close_devices() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = compile("fork_storm", &scratch);
    Program::new(program)
        .args(["300"])
        .limit(Duration::from_secs(300))
        .output()
        .success()
        .says("ok");
}

#[track_caller]
fn daemon(extra: &[&str]) {
    let scratch = Scratch::new();
    let program = compile("daemon", &scratch);
    let result = scratch.file("result");
    let mut running = Program::new(program).args([&result]).args(extra).leaves_daemon().start();
    let out = running.end();
    out.success();
    running.wait_orphans();
    let said = std::fs::read_to_string(&result).expect("the daemon's file");
    assert_eq!(said, "ok", "{out}");
}

#[test]
fn a_daemon_that_closed_its_device_first() {
    needs!(Need::Header("infiniband/verbs.h"));
    daemon(&["careful"]);
}

#[test]
fn a_daemon_that_did_not() {
    needs!(Need::Header("infiniband/verbs.h"));
    daemon(&[]);
}

#[track_caller]
fn multiprocessing(method: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/py/loopback.py");
    Program::new("/usr/bin/python3").args([script, method]).output().success().says("ok");
}

#[test]
fn python_multiprocessing_by_fork() {
    needs!(Need::Python("pyverbs.device"));
    multiprocessing("fork");
}

#[test]
fn python_multiprocessing_by_spawn() {
    needs!(Need::Python("pyverbs.device"));
    multiprocessing("spawn");
}

//! Peers that are gone, and processes that reuse their pid.

use interop::need::Need;
use interop::{Program, Scratch, compile, needs};

#[track_caller]
fn successor(how: &str) {
    let scratch = Scratch::new();
    let program = compile("successor", &scratch);
    Program::new(program).args([how]).output().success().says("ok");
}

#[test]
fn a_program_that_a_peer_executes_is_not_written_to() {
    needs!(Need::Header("infiniband/verbs.h"));
    successor("exec");
}

#[test]
fn a_process_with_the_pid_of_a_dead_peer_is_not_written_to() {
    needs!(Need::Header("infiniband/verbs.h"), Need::Namespaces);
    successor("pid");
}

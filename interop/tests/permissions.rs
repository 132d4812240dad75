//! One host with all kinds of permission: same user, other user, no privileges, other pid
//! namespace. The data is always correct.

use interop::need::Need;
use interop::{Pair, Program, needs, perftest};

/// Runs programs that move bytes in different ways, each with its data checked or counted.
#[track_caller]
fn all_ways(change: impl Fn(Pair) -> Pair) {
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        let size = if program == "ibv_ud_pingpong" { "1000" } else { "70000" };
        let pair = Pair::new(program).args(["-g", "0", "-c", "-n", "100", "-s", size]);
        let done = change(pair).run();
        done.client.says("100 iters in").never_says("invalid data");
        done.server.never_says("invalid data");
    }
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw"] {
        let done = change(Pair::new(program).args(["-F", "-n", "100"])).run();
        assert_eq!(perftest::rows(&done.client).len(), 1, "{}", done.client);
    }
}

/// Runs a program of one-sided operations. Returns the client's log messages about the path.
#[track_caller]
fn path(change: impl Fn(Pair) -> Pair) -> Vec<String> {
    let pair = Pair::new("ib_write_bw").args(["-F", "-n", "5000"]);
    let done = change(pair.both(|program| program.env("PEERDMA_LOG", "peerdma::path=info"))).run();
    let lines = done.client.stderr.lines().filter(|line| line.contains("one-sided operations go"));
    lines.map(str::to_owned).collect()
}

/// Requires that the log names the path, and the reason.
#[track_caller]
fn takes(change: impl Fn(Pair) -> Pair, words: &str) {
    let said = path(change);
    assert!(said.len() == 1 && said[0].contains(words), "wanted {words:?}, the log says {said:?}");
}

const RING: &str = "one-sided operations go through the ring: ";

fn needs_perftest() -> [Need; 2] {
    [Need::Program("ibv_rc_pingpong"), Need::Program("ib_write_bw")]
}

#[test]
fn same_user() {
    let [a, b] = needs_perftest();
    needs!(a, b);
    all_ways(|pair| pair);
    takes(|pair| pair, "one-sided operations go directly");
}

#[test]
fn an_unprivileged_user_on_both_sides() {
    let [a, b] = needs_perftest();
    needs!(a, b, Need::Root, Need::Program("setpriv"));
    all_ways(|pair| pair.both(Program::as_nobody));
    takes(|pair| pair.both(Program::as_nobody), "one-sided operations go directly");
}

#[test]
fn root_serves_another_user() {
    let [a, b] = needs_perftest();
    needs!(a, b, Need::Root, Need::Program("setpriv"));
    all_ways(|pair| pair.client(Program::as_nobody));
    takes(|pair| pair.client(Program::as_nobody), &format!("{RING}it belongs to another user"));
}

#[test]
fn another_user_serves_root() {
    let [a, b] = needs_perftest();
    needs!(a, b, Need::Root, Need::Program("setpriv"));
    all_ways(|pair| pair.server(Program::as_nobody));
    takes(|pair| pair.server(Program::as_nobody), &format!("{RING}it belongs to another user"));
}

#[test]
fn each_side_in_its_own_pid_namespace() {
    let [a, b] = needs_perftest();
    needs!(a, b, Need::Root, Need::Namespaces);
    all_ways(|pair| pair.both(Program::in_pid_namespace));
    takes(|pair| pair.both(Program::in_pid_namespace), RING);
}

#[test]
fn one_side_in_a_pid_namespace() {
    let [a, b] = needs_perftest();
    needs!(a, b, Need::Root, Need::Namespaces);
    all_ways(|pair| pair.client(Program::in_pid_namespace));
    takes(
        |pair| pair.client(Program::in_pid_namespace),
        &format!("{RING}it lives in another pid namespace"),
    );
}

//! A sandbox that forbids netlink, as systemd's `RestrictAddressFamilies=`: the netdev of a NIC is
//! found by other means, and the log tells that.

use std::path::PathBuf;

use interop::need::Need;
use interop::{Mode, Output, Pair, Program, Scratch, Veth, compile, needs};

const IP: &str = "unix,inet,inet6";
const SAID: &str = "rtnetlink does not list";

/// What a test needs to start a program in a sandbox.
const COMPILER: Need = Need::Header("linux/seccomp.h");

fn sandbox() -> (PathBuf, Scratch) {
    let scratch = Scratch::new();
    (compile("families", &scratch), scratch)
}

/// The lines of `ibv_devinfo -v` that depend on netdevs. IPv6 addresses may have another order, and
/// a link-local one may become usable in the meantime.
fn facts(out: &Output) -> Vec<&str> {
    let keys = ["node_guid", "state", "active_mtu", "GID[  0]"];
    let mut facts: Vec<_> = keys.iter().filter_map(|key| out.field(key)).collect();
    assert_eq!(facts.len(), keys.len(), "{out}");
    let gids =
        out.stdout.lines().filter_map(|line| line.trim().strip_prefix("GID[")?.split_once("]:"));
    let mut gids: Vec<_> = gids.map(|(_, gid)| gid.trim()).collect();
    gids.retain(|gid| !gid.starts_with("fe80"));
    gids.sort_unstable();
    facts.extend(gids);
    facts
}

/// Requires that the log reports it exactly once.
#[track_caller]
fn says_once(out: &Output) {
    assert_eq!(out.stderr.matches(SAID).count(), 1, "{out}");
    assert!(out.stderr.contains("WARN") && out.stderr.contains("`peerdma doctor`"), "{out}");
}

#[test]
fn a_device_is_there_without_netlink_and_is_the_same() {
    needs!(Need::Program("ibv_devinfo"), COMPILER);
    let (program, _scratch) = sandbox();
    let with = Program::new("ibv_devinfo").args(["-v"]).env("PEERDMA_LOG", "warn").output();
    with.success().never_says(SAID);
    let without =
        Program::new(&program).args([IP, "ibv_devinfo", "-v"]).env("PEERDMA_LOG", "warn").output();
    says_once(without.success());
    assert_eq!(facts(&with), facts(&without), "{with}\n{without}");
}

#[test]
fn a_device_is_there_without_any_network() {
    needs!(Need::Program("ibv_devinfo"), COMPILER);
    let (program, _scratch) = sandbox();
    let out = Program::new(&program)
        .args(["unix", "ibv_devinfo", "-v"])
        .env("PEERDMA_LOG", "warn")
        .output();
    says_once(out.success().says("PORT_ACTIVE (4)").says("no packets to or from other hosts"));
}

#[test]
fn a_pair_without_netlink_on_one_host_and_over_the_wire() {
    needs!(
        Need::Root,
        Need::Namespaces,
        Need::Program("ip"),
        Need::Program("ibv_rc_pingpong"),
        COMPILER
    );
    let (program, _scratch) = sandbox();
    // A pair adds its arguments before all others, but these belong to the program in the sandbox.
    let pair = |scratch: &Scratch| {
        let script = format!("#!/bin/sh\nexec {} {IP} ibv_rc_pingpong \"$@\"\n", program.display());
        let script = scratch.write("pingpong", &script, 0, 0o755);
        Pair::new(script).args(["-g", "0", "-c", "-n", "100"])
    };
    let (scratch, veth) = (Scratch::new(), Veth::new());
    for pair in [pair(&scratch), pair(&scratch).across(&veth)] {
        let done = pair.both(|program| program.env("PEERDMA_LOG", "warn")).run();
        done.client.says("100 iters in").never_says("invalid data");
        says_once(&done.client);
        says_once(&done.server);
    }
}

#[test]
fn a_port_that_goes_down_is_noticed_without_netlink() {
    needs!(
        Need::Root,
        Need::Namespaces,
        Need::Program("ip"),
        Need::Program("ibv_asyncwatch"),
        Need::Program("stdbuf"),
        COMPILER
    );
    let (program, _scratch) = sandbox();
    // It buffers its output to a pipe, and never flushes.
    let watch = Program::new(&program).args([IP, "stdbuf", "-oL", "ibv_asyncwatch"]);
    Veth::new().goes_down_and_up(watch);
}

/// Runs a program as a container does that also refuses a system call, and returns what is logged.
fn in_a_container(also: &str, program: &[&str], log: &str) -> Output {
    let container = concat!(env!("CARGO_MANIFEST_DIR"), "/py/container.py");
    let peerdma = interop::Artefacts::find().peerdma();
    Program::new("/usr/bin/python3")
        .mode(Mode::Plain)
        .args([container, "--also", also])
        .args([peerdma])
        .args(program)
        .env("PEERDMA_LOG", log)
        .output()
}

/// The kernel says EPERM, whatever forbade it: each of our refusals ends with what can tell.
const DOCTOR: &str = "(`peerdma doctor` shows what this host permits)";

#[test]
fn what_a_container_refuses_is_reported_and_names_doctor() {
    needs!(Need::Program("python3"), Need::Program("ibv_devinfo"));
    // Works as before, by another way.
    let demo = in_a_container("process_vm_readv", &["demo"], "info");
    demo.success().says("bytes");
    let reason = demo.stderr.lines().find(|line| line.contains("go through the ring"));
    assert!(reason.is_some_and(|line| line.contains(DOCTOR)), "{demo}");
    let storage = in_a_container("membarrier", &["demo", "--storage"], "info");
    for refused in ["no io_uring", "membarrier"] {
        let reason = storage.stderr.lines().find(|line| line.contains(refused));
        assert!(reason.is_some_and(|line| line.contains(DOCTOR)), "{storage}");
    }
    // Without memory files there is no device.
    let none = in_a_container("memfd_create", &["run", "--", "ibv_devinfo"], "info");
    none.failure();
    let reason = none.stderr.lines().find(|line| line.contains("memfd_create"));
    assert!(reason.is_some_and(|line| line.contains(DOCTOR)), "{none}");
}

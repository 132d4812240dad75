//! Verbs that no program in Debian uses: small C programs check them against the manual pages.

use std::time::Duration;

use interop::need::Need;
use interop::{Program, Running, Scratch, compile, compile_with, needs};

#[test]
fn a_program_with_address_sanitizer_moves_data_and_leaks_nothing() {
    needs!(Need::Header("infiniband/verbs.h"), Need::Library("libasan.so"));
    let scratch = Scratch::new();
    let options = ["-pthread", "-fsanitize=address"];
    let program = Program::new(compile_with("fork", &scratch, &options, &["-libverbs"]));
    program.args(["both"]).output().success().says("ok");
}

#[test]
fn tags_are_matched() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = Program::new(compile("tags", &scratch));
    program.args(["1"]).output().success().says("tags match");
}

/// The same by packets of 1024 bytes, so that a match is known before its message has arrived.
#[test]
fn tags_are_matched_on_the_wire() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let config = scratch.file("force_udp.toml");
    std::fs::write(&config, "[[nic]]\nforce_udp = true\n").expect("a writable scratch");
    let program = Program::new(compile("tags", &scratch)).env("PEERDMA_CONFIG", &config);
    program.args(["3"]).output().success().says("tags match");
}

/// A NIC without tag matching refuses it, and reports that in its capabilities.
#[test]
fn other_nics_match_no_tags() {
    needs!(Need::Program("ibv_devinfo"));
    let scratch = Scratch::new();
    let config = scratch.file("rxe.toml");
    std::fs::write(&config, "[[nic]]\npreset = \"rxe\"\n").expect("a writable scratch");
    let devinfo = || Program::new("ibv_devinfo").args(["-v"]);
    devinfo().output().success().says("IBV_TM_CAP_RC");
    let rxe = devinfo().env("PEERDMA_CONFIG", &config).output();
    rxe.success().says("max_qp_wr").never_says("IBV_TM_CAP_RC");
}

#[test]
fn a_qp_of_xrc_is_opened_twice() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = Program::new(compile("open_qp", &scratch));
    let domain = scratch.file("domain");
    program.args([&domain]).output().success().says("two handles, one QP");
}

/// Programs that only wait for events leave all work to their background threads: none is
/// forgotten, even if many of them share two cores. Twelve processes have 96 pairs, and each pair
/// takes turns 400 times.
#[test]
fn pairs_that_wait_for_events_are_never_forgotten() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = compile("events", &scratch);
    let start = |seed: u32| {
        let qp_type = if seed.is_multiple_of(2) { "uc" } else { "rc" };
        let how = if seed.is_multiple_of(3) { "poll" } else { "block" };
        Program::new(&program)
            .args(["16", "400", &seed.to_string(), qp_type, how])
            .limit(Duration::from_secs(120))
            .start()
    };
    let running: Vec<Running> = (1..=6).map(start).collect();
    for pairs in running {
        let out = pairs.finish();
        out.success().says("first: 16 pairs, 400 rounds").says("second: 16 pairs, 400 rounds");
    }
}

/// The same without other programs, whose packets might wake them.
#[test]
fn two_lonely_pairs_that_wait_for_events_are_not_forgotten() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = compile("events", &scratch);
    for how in ["poll", "block"] {
        let pairs = Program::new(&program).args(["2", "2000", "1", "uc", how]);
        let out = pairs.limit(Duration::from_secs(60)).output();
        out.success().says("first: 2 pairs, 2000 rounds").says("second: 2 pairs, 2000 rounds");
    }
}

/// The same by datagrams.
#[test]
fn pairs_that_wait_for_events_are_never_forgotten_on_the_wire() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = compile("events", &scratch);
    let config = scratch.file("force_udp.toml");
    std::fs::write(&config, "[[nic]]\nforce_udp = true\n").expect("a writable scratch");
    for how in ["poll", "block"] {
        let pairs = Program::new(&program).env("PEERDMA_CONFIG", &config);
        let pairs = pairs.args(["16", "100", "7", "rc", how]);
        let out = pairs.limit(Duration::from_secs(120)).output();
        out.success().says("first: 16 pairs, 100 rounds").says("second: 16 pairs, 100 rounds");
    }
}

/// A wait ends by signals as a read would, and its thread can be cancelled.
#[test]
fn waits_end_by_signals_and_by_cancellation() {
    needs!(Need::Header("infiniband/verbs.h"), Need::Header("rdma/rdma_cma.h"));
    let scratch = Scratch::new();
    let program = Program::new(compile("waits", &scratch));
    program
        .limit(Duration::from_secs(60))
        .output()
        .success()
        .says("all waits ended as they should");
}

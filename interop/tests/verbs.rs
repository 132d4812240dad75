//! Verbs that no program of Debian's uses: small C programs check what the manual pages say of them.

use interop::need::Need;
use interop::{Program, Scratch, compile, needs};

#[test]
fn tags_are_matched() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = Program::new(compile("tags", &scratch));
    program.args(["1"]).output().success().says("tags match");
}

/// The same by packets of 1024 bytes, so that a match is known before its message is here.
#[test]
fn tags_are_matched_on_the_wire() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let config = scratch.file("force_udp.toml");
    std::fs::write(&config, "[[nic]]\nforce_udp = true\n").expect("a writable scratch");
    let program = Program::new(compile("tags", &scratch)).env("PEERDMA_CONFIG", &config);
    program.args(["3"]).output().success().says("tags match");
}

/// What a NIC has no tag matching for is refused, and its capabilities say so before.
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

//! The pingpongs of ibverbs-utils: each transport, polling and sleeping, and the options of
//! `ibv_rc_pingpong`.

use interop::need::Need;
use interop::{Mode, Pair, needs};

/// Runs a pingpong with `-n 200` and checks its last two lines.
#[track_caller]
fn pingpong(pair: Pair, size: u64) {
    let done = pair.run();
    // Per side: iterations * size, sent and received.
    let bytes = format!("{} bytes in", 200 * size * 2);
    for side in [&done.client, &done.server] {
        side.says("200 iters in").says(&bytes).never_says("invalid data");
    }
}

fn base(program: &str) -> Pair {
    Pair::new(program).args(["-n", "200", "-g", "0", "-c"])
}

/// One test per line: name, program, size of a message, further arguments.
macro_rules! pingpongs {
    ($($name:ident: $program:literal, $size:literal $(, $arg:literal)*;)+) => {$(
        #[test]
        fn $name() {
            needs!(Need::Program($program));
            let size: u64 = $size;
            pingpong(base($program).args(["-s", &size.to_string() $(, $arg)*]), size);
        }
    )+};
}

pingpongs! {
    rc: "ibv_rc_pingpong", 4096;
    rc_events: "ibv_rc_pingpong", 4096, "-e";
    rc_one_byte: "ibv_rc_pingpong", 1;
    rc_odd_size: "ibv_rc_pingpong", 12345;
    rc_a_megabyte: "ibv_rc_pingpong", 1048576;
    rc_mtu_256: "ibv_rc_pingpong", 70000, "-m", "256";
    rc_mtu_4096: "ibv_rc_pingpong", 70000, "-m", "4096";
    rc_few_receives: "ibv_rc_pingpong", 4096, "-r", "3";
    rc_device_memory: "ibv_rc_pingpong", 4096, "-j";
    rc_device_memory_events: "ibv_rc_pingpong", 4096, "-j", "-e";
    rc_new_send: "ibv_rc_pingpong", 4096, "-N";
    rc_new_send_events: "ibv_rc_pingpong", 4096, "-N", "-e";
    rc_new_send_device_memory: "ibv_rc_pingpong", 4096, "-N", "-j";
    uc: "ibv_uc_pingpong", 4096;
    uc_events: "ibv_uc_pingpong", 4096, "-e";
    uc_odd_size: "ibv_uc_pingpong", 12345;
    uc_mtu_256: "ibv_uc_pingpong", 20000, "-m", "256";
    ud: "ibv_ud_pingpong", 1024;
    ud_events: "ibv_ud_pingpong", 1024, "-e";
    ud_odd_size: "ibv_ud_pingpong", 999;
    srq: "ibv_srq_pingpong", 4096;
    srq_events: "ibv_srq_pingpong", 4096, "-e";
    srq_odd_size: "ibv_srq_pingpong", 12345;
    srq_one_queue_pair: "ibv_srq_pingpong", 4096, "-q", "1";
}

#[test]
fn xrc() {
    needs!(Need::Program("ibv_xsrq_pingpong"));
    for size in ["4096", "100001"] {
        let done = Pair::new("ibv_xsrq_pingpong").args(["-g", "0", "-n", "200", "-s", size]).run();
        done.client.says("success");
        done.server.says("success");
    }
}

#[test]
fn xrc_events() {
    needs!(Need::Program("ibv_xsrq_pingpong"));
    Pair::new("ibv_xsrq_pingpong").args(["-g", "0", "-e"]).run().client.says("success");
}

#[test]
fn rc_timestamps() {
    needs!(Need::Program("ibv_rc_pingpong"));
    let done = base("ibv_rc_pingpong").args(["-t"]).run();
    done.client
        .says("Max receive completion clock cycles")
        .says("Average receive completion clock cycles");
}

#[test]
fn the_default_run_of_each() {
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_srq_pingpong", "ibv_ud_pingpong"] {
        needs!(Need::Program(program));
        // The first command that users type has only the GID index, which RoCE needs.
        Pair::new(program).args(["-g", "0"]).run().client.says("iters in");
    }
}

#[test]
fn by_the_library_path_alone() {
    needs!(Need::Program("ibv_rc_pingpong"));
    pingpong(base("ibv_rc_pingpong").mode(Mode::Library), 4096);
}

#[test]
fn by_preload_alone() {
    needs!(Need::Program("ibv_rc_pingpong"));
    pingpong(base("ibv_rc_pingpong").mode(Mode::Preload), 4096);
}

#[test]
fn the_two_sides_may_be_launched_differently() {
    needs!(Need::Program("ibv_rc_pingpong"));
    pingpong(base("ibv_rc_pingpong").server(|s| s.mode(Mode::Library)), 4096);
}

#[test]
fn several_pairs_at_once() {
    needs!(Need::Program("ibv_rc_pingpong"));
    let pairs: Vec<_> = (0..4).map(|_| base("ibv_rc_pingpong").args(["-e"]).start()).collect();
    for pair in pairs {
        let done = pair.finish();
        done.client.success().says("200 iters in");
        done.server.success();
    }
}

#[test]
fn a_gid_index_that_does_not_exist_is_refused() {
    needs!(Need::Program("ibv_rc_pingpong"));
    let out = interop::Program::new("ibv_rc_pingpong").args(["-g", "300", "127.0.0.1"]).output();
    out.failure().says("can't read sgid of index 300");
}

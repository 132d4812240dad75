//! Programs that close the library's descriptors, or open files of their own at the same numbers:
//! the library touches none of those.

use interop::need::Need;
use interop::{Program, Scratch, compile, needs, own_address};

#[track_caller]
fn stolen(how: &str) {
    for udp in [false, true] {
        let scratch = Scratch::new();
        let program = compile("stolen", &scratch);
        let program = Program::new(program).args([how]);
        let config = scratch.file("config.toml");
        std::fs::write(&config, format!("[[nic]]\nforce_udp = {udp}\n"))
            .expect("a writable scratch");
        let out = program.env("PEERDMA_CONFIG", &config).env("PEERDMA_LOG", "error").output();
        out.success().says("ok").says("the program closed descriptors of the device");
    }
}

#[test]
fn files_that_a_daemon_opens_after_it_closed_everything() {
    needs!(Need::Header("infiniband/verbs.h"));
    stolen("closed");
}

#[test]
fn files_in_the_place_of_each_descriptor() {
    needs!(Need::Header("infiniband/verbs.h"));
    stolen("files");
}

#[test]
fn connections_in_the_place_of_each_descriptor() {
    needs!(Need::Header("infiniband/verbs.h"));
    stolen("sockets");
}

#[test]
fn files_without_an_inode_in_the_place_of_each_descriptor() {
    needs!(Need::Header("infiniband/verbs.h"));
    stolen("kinds");
}

#[test]
fn files_in_the_place_of_a_capture() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = Program::new(compile("stolen", &scratch)).pcap(&scratch.file("packets.pcapng"));
    for how in ["closed", "files"] {
        program.clone().args([how]).output().success().says("ok");
    }
}

/// Runs the program for an object of a GPU, with the preset that provides it.
#[track_caller]
fn stolen_of_a_gpu(what: &str, preset: &str) {
    let scratch = Scratch::new();
    let program = Program::new(compile("stolen_gpu", &scratch)).gpu(preset);
    for how in ["closed", "files", "sockets", "ended", "kinds"] {
        program.clone().args([what, how]).output().success().says("ok");
    }
}

#[test]
fn memory_of_a_gpu_whose_files_a_program_closed_or_replaced() {
    needs!(Need::Header("infiniband/verbs.h"), Need::Header("libdrm/drm.h"));
    stolen_of_a_gpu("cuda", "nvidia");
}

#[test]
fn nodes_of_a_gpu_whose_files_a_program_closed_or_replaced() {
    needs!(Need::Header("infiniband/verbs.h"), Need::Header("libdrm/drm.h"));
    for preset in ["amdgpu", "xe"] {
        stolen_of_a_gpu("render", preset);
    }
    stolen_of_a_gpu("accel", "habanalabs");
}

/// Rsockets have more descriptors than the device's: for connection events, for completions, for
/// waking waiters, and for UDP datagrams.
#[test]
fn files_in_the_place_of_the_descriptors_of_rsockets() {
    needs!(Need::Program("gcc"), Need::Header("rdma/rsocket.h"));
    for how in ["closed", "files", "sockets", "ended", "kinds"] {
        let scratch = Scratch::new();
        let program = Program::new(compile("stolen_rsockets", &scratch));
        program.args([&*own_address(), how]).output().success().says("ok");
    }
}

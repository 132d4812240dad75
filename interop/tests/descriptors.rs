//! Programs that close the library's descriptors, or have files of their own at the same numbers:
//! nothing of theirs is touched.

use interop::need::Need;
use interop::{Program, Scratch, compile, needs};

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
fn what_has_no_inode_in_the_place_of_each_descriptor() {
    needs!(Need::Header("infiniband/verbs.h"));
    stolen("kinds");
}

//! CUDA memory that is more than one contiguous allocation, under a C program and its NIC.

use interop::need::Need;
use interop::{Output, Program, Scratch, compile, needs};

/// Runs a mode of the program, on a machine with a GPU and a NIC of these configuration keys.
fn run(mode: &str, gpu: &str, nic: &str) -> Output {
    let scratch = Scratch::new();
    let config = scratch.file("peerdma.toml");
    let text = format!(
        "[[nic]]\nname = \"peerdma0\"\n{nic}\n\
         [[gpu]]\nname = \"memory0\"\nshared = false\nvram = \"256M\"\n{gpu}\n"
    );
    std::fs::write(&config, text).expect("a scratch directory is writable");
    let program = Program::new(compile("cuda_memory", &scratch)).gpu("nvidia").args([mode]);
    program.env("PEERDMA_CONFIG", &config).output()
}

#[test]
fn boxes_are_copied_and_filled_by_driver_and_runtime() {
    needs!(Need::Header("infiniband/verbs.h"));
    run("boxes", "", "").success().says("ok");
}

#[test]
fn a_range_over_several_mapped_allocations_is_one_dma_buf() {
    needs!(Need::Header("infiniband/verbs.h"));
    for nic in ["dynamic", "revocable", "pinned"] {
        run("joined", "", &format!("importer = \"{nic}\"")).success().says("ok");
    }
}

#[test]
fn memory_of_a_pool_is_a_dma_buf_if_the_pool_was_made_for_peers() {
    needs!(Need::Header("infiniband/verbs.h"));
    run("pool", "", "peermem = true").success().says("ok");
}

#[test]
fn a_nic_that_cannot_stop_keeps_what_it_registered_by_address() {
    needs!(Need::Header("infiniband/verbs.h"));
    run("lasting", "", "peermem = true\nimporter = \"pinned\"").success().says("ok");
}

#[test]
fn packed_small_allocations_are_registered_by_a_program_that_rounds_to_pages() {
    needs!(Need::Header("infiniband/verbs.h"));
    run("packed", "pack = true", "peermem = true").success().says("ok");
}

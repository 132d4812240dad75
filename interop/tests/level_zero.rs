//! Level Zero programs over the software GPU, by the system's loader: results of the driver, and
//! its memory under verbs.

use interop::need::Need;
use interop::{Program, Scratch, compile_with, needs};

/// The header of the loader.
const HEADER: Need = Need::Header("level_zero/ze_api.h");

/// A compiled program, to be run with GPUs of Intel's driver.
fn program(name: &str, scratch: &Scratch) -> Program {
    let libraries = ["-lze_loader", "-Wl,--as-needed", "-libverbs", "-ldl"];
    Program::new(compile_with(name, scratch, &["-pthread"], &libraries)).gpu("xe")
}

#[test]
fn the_driver_answers_each_mistake_with_its_number() {
    needs!(HEADER);
    let scratch = Scratch::new();
    let program = program("ze_rules", &scratch).env("PEERDMA_LOG", "peerdma::level-zero=warn");
    let output = program.output();
    // A child process dereferences a device pointer, and the message names the memory.
    output
        .success()
        .says("0x100000 bytes of GPU xe0")
        .says("zeModuleCreate: not served")
        .says("ok");
}

#[test]
fn the_validation_layer_finds_no_fault_in_a_correct_program() {
    needs!(HEADER);
    let scratch = Scratch::new();
    let program = program("ze_ipc", &scratch).env("ZE_ENABLE_VALIDATION_LAYER", "1");
    program.env("ZE_ENABLE_PARAMETER_VALIDATION", "1").output().success().says("ok");
}

#[test]
fn memory_and_events_of_a_process_are_opened_in_another_by_a_descriptor_alone() {
    needs!(HEADER);
    let scratch = Scratch::new();
    program("ze_ipc", &scratch).output().success().says("ok");
}

#[test]
fn a_peer_writes_into_an_allocation_by_its_dma_buf() {
    needs!(HEADER, Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    program("ze_rdma", &scratch).output().success().says("ok");
    program("ze_rdma", &scratch).gpu("i915").output().success().says("ok");
}

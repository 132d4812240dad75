//! CUDA programs over the software GPU: results of the driver, and its memory under verbs.

use interop::need::Need;
use interop::{Program, Scratch, compile, needs};

/// A compiled program, to be run with GPUs of NVIDIA's driver.
fn program(name: &str, scratch: &Scratch) -> Program {
    Program::new(compile(name, scratch)).gpu("nvidia")
}

#[test]
fn the_driver_answers_each_mistake_with_its_number() {
    needs!(Need::Program("gcc"));
    let scratch = Scratch::new();
    let output = program("cuda_rules", &scratch).output();
    // A child process dereferences a device pointer, and the message names the memory.
    output.success().says("0x100000 bytes of GPU nvidia0").says("ok");
}

#[test]
fn memory_and_events_of_a_process_are_opened_in_another() {
    needs!(Need::Program("gcc"));
    let scratch = Scratch::new();
    program("cuda_ipc", &scratch).output().success().says("ok");
}

#[test]
fn a_peer_writes_into_a_part_of_an_allocation_by_its_dma_buf() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    program("cuda_rdma", &scratch).args(["dmabuf"]).output().success().says("ok");
}

#[test]
fn a_device_pointer_is_registered_by_its_address_if_the_nic_has_peermem() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = program("cuda_rdma", &scratch);
    program.clone().args(["peermem"]).output().success().says("ok");
    let config = scratch.file("peerdma.toml");
    let text = "[[nic]]\nname = \"peerdma0\"\n[[gpu]]\nname = \"cuda\"\nshared = false\n";
    std::fs::write(&config, text).expect("a scratch directory is writable");
    let program = program.env("PEERDMA_CONFIG", &config);
    let program = program.env("PEERDMA_LOG", "peerdma::refusal=info");
    program.args(["refused"]).output().success().says("GPU memory cuda.bo1").says("ok");
}

#[test]
fn memory_of_a_killed_process_is_free_for_another() {
    needs!(Need::Program("gcc"));
    let scratch = Scratch::new();
    program("cuda_killed", &scratch).output().success().says("ok");
}

#[test]
fn each_user_has_gpus_of_its_own() {
    needs!(Need::Header("infiniband/verbs.h"), Need::Root);
    let scratch = Scratch::new();
    let program = program("cuda_rdma", &scratch).args(["dmabuf"]);
    let ours = program.start();
    program.clone().as_nobody().output().success().says("ok");
    ours.finish().success().says("ok");
}

#[test]
fn the_configuration_and_cuda_visible_devices_decide_which_gpus_a_program_sees() {
    needs!(Need::Program("gcc"));
    let scratch = Scratch::new();
    let count = program("cuda_count", &scratch);
    count.output().success().says("2: peerdma nvidia0, peerdma nvidia1");
    let visible = |list: &str| count.clone().env("CUDA_VISIBLE_DEVICES", list).output();
    visible("1").success().says("1: peerdma nvidia1");
    visible("1,0").success().says("2: peerdma nvidia1, peerdma nvidia0");
    visible("0,7,1").success().says("1: peerdma nvidia0");
    visible("").success().says("error 100");
    visible("-1").success().says("error 100");
    let config = scratch.file("peerdma.toml");
    std::fs::write(&config, "[[gpu]]\nvram = 1\n").expect("a scratch directory is writable");
    count.env("PEERDMA_CONFIG", &config).output().failure().says("whole pages");
}

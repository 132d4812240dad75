//! Programs of HSA over the software GPU: what the runtime answers, and its memory under verbs.

use interop::need::Need;
use interop::{Program, Scratch, compile_with, needs};

/// The header of the runtime.
const HEADER: Need = Need::Header("hsa/hsa.h");

/// Compiled, to be run with GPUs of AMD's ways.
fn program(name: &str, scratch: &Scratch) -> Program {
    let libraries = ["-lhsa-runtime64", "-Wl,--as-needed", "-libverbs", "-ldl"];
    Program::new(compile_with(name, scratch, &["-pthread"], &libraries)).gpu("amdgpu")
}

#[test]
fn the_runtime_answers_each_mistake_with_its_number() {
    needs!(HEADER);
    let scratch = Scratch::new();
    let program = program("hsa_rules", &scratch).env("PEERDMA_LOG", "peerdma::hsa=warn");
    let output = program.output();
    // A child of it follows a device pointer, and is told whose memory that was.
    output
        .success()
        .says("0x100000 bytes of GPU amdgpu0")
        .says("hsa_queue_create: not served")
        .says("hsa_executable_create_alt: not served: the software GPU has memory and no cores")
        .says("ok");
}

#[test]
fn memory_of_a_process_is_attached_in_another() {
    needs!(HEADER);
    let scratch = Scratch::new();
    program("hsa_ipc", &scratch).output().success().says("ok");
}

#[test]
fn a_peer_writes_into_a_part_of_an_allocation_by_its_dma_buf_and_offset() {
    needs!(HEADER, Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    program("hsa_rdma", &scratch).output().success().says("ok");
}

#[test]
fn the_cpu_reaches_memory_of_a_gpu_whose_configuration_says_so() {
    needs!(HEADER);
    let scratch = Scratch::new();
    let config = scratch.file("peerdma.toml");
    let gpu = |name| format!("[[gpu]]\nname = \"{name}\"\nvram = \"64M\"\nhost_access = true\n");
    std::fs::write(&config, gpu("near") + &gpu("far")).expect("a scratch directory is writable");
    let program = program("hsa_host", &scratch).env("PEERDMA_CONFIG", &config);
    program.output().success().says("ok");
}

#[test]
fn programs_are_told_that_the_kernel_takes_memory_of_gpus_for_nics() {
    let look = r#"cat "/boot/config-$(uname -r)" /proc/kallsyms"#;
    let output = Program::new("sh").args(["-c", look]).gpu("amdgpu").output();
    output.success().says("CONFIG_DMABUF_MOVE_NOTIFY=y").says("CONFIG_PCI_P2PDMA=y");
    let program = Program::new("sh").args(["-c", look]).gpu("amdgpu");
    program.env("PEERDMA_DOOR", "preload").output().success().says("CONFIG_PCI_P2PDMA=y");
}

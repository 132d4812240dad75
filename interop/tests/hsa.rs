//! HSA programs over the software GPU: results of the runtime, and its memory under verbs.

use interop::need::Need;
use interop::{Output, Program, Scratch, compile_with, needs};

/// The header of the runtime.
const HEADER: Need = Need::Header("hsa/hsa.h");

/// A compiled program, to be run with GPUs of AMD's driver.
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
    // A child process dereferences a device pointer, and the message names the memory.
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
fn the_cpu_accesses_memory_of_a_gpu_with_host_access() {
    needs!(HEADER);
    let scratch = Scratch::new();
    let config = scratch.file("peerdma.toml");
    let gpu = |name| format!("[[gpu]]\nname = \"{name}\"\nvram = \"64M\"\nhost_access = true\n");
    std::fs::write(&config, gpu("near") + &gpu("far")).expect("a scratch directory is writable");
    let program = program("hsa_host", &scratch).env("PEERDMA_CONFIG", &config);
    program.output().success().says("ok");
}

/// Runs a program whose GPU `gpu0` and NIC follow a fault plan.
fn under(plan: &str, importer: &str, args: &[&str]) -> Output {
    let scratch = Scratch::new();
    let [config, file] = ["peerdma.toml", "plan.toml"].map(|name| scratch.file(name));
    let nic = format!("[[nic]]\nname = \"peerdma0\"\nimporter = \"{importer}\"\n");
    let gpu = |name| {
        format!("[[gpu]]\nname = \"{name}\"\nshared = false\nvram = \"64M\"\ngtt = \"64M\"\n")
    };
    std::fs::write(&config, nic + &gpu("gpu0") + &gpu("gpu1")).expect("a file of our own");
    std::fs::write(&file, plan).expect("a file of our own");
    let program = program("hsa_weather", &scratch).args(args).env("PEERDMA_CONFIG", config);
    program.env("PEERDMA_FAULT", file).output()
}

#[test]
fn memory_moves_by_a_plan_when_the_runtime_is_called() {
    needs!(HEADER, Need::Header("infiniband/verbs.h"));
    let plan = "seed = 3\n\
        [[fault]]\nname = 'call'\ndo = 'evict'\noperation = 'hsa_memory_copy'\nprobability = 0.2\n\
        [[fault]]\nname = 'back'\ndo = 'move'\nto = 'vram'\nopcode = 'RC_RDMA_WRITE_FIRST'\nqp = 1\nevery = 2\n\
        [[fault]]\nname = 'clock'\ndo = 'evict'\nevery = '2ms'\n";
    let out = under(plan, "dynamic", &["storm", "200"]);
    out.success().says("ok").says("call: evict fired").says("of 200 operations");
    out.says("back: move fired").says("buffers evicted").says("(hsa_memory_copy)");
    // This includes functions without a status.
    let plan = "[[fault]]\nname = 'wait'\ndo = 'evict'\noperation = 'hsa_signal_wait_scacquire'\n";
    let out = under(plan, "dynamic", &["waits", "9"]);
    out.success().says("wait: evict fired 9 times, of 9 operations");
}

#[test]
fn a_reset_and_a_revocation_by_a_plan_end_the_key() {
    needs!(HEADER, Need::Header("infiniband/verbs.h"));
    let plan = "[[fault]]\nname = 'thief'\ndo = 'revoke'\ngpu = 'gpu0'\nbuffer = 1\n\
        opcode = 'RC_RDMA_WRITE_LAST'\nqp = 1\nnth = 10\n";
    let out = under(plan, "revocable", &["dead", "1000000"]);
    out.success().says("remote access error").says("thief: revoke fired once");
    let plan =
        "[[fault]]\ndo = 'reset'\ngpu = 'gpu0'\noperation = 'hsa_amd_portable_close_dmabuf'\n";
    let out = under(plan, "revocable", &["dead", "1000000"]);
    out.success().says("remote access error").says("1 GPU reset");
}

#[test]
fn programs_see_that_the_kernel_imports_memory_of_gpus_for_nics() {
    let look = r#"cat "/boot/config-$(uname -r)" /proc/kallsyms"#;
    let output = Program::new("sh").args(["-c", look]).gpu("amdgpu").output();
    output.success().says("CONFIG_DMABUF_MOVE_NOTIFY=y").says("CONFIG_PCI_P2PDMA=y");
    let program = Program::new("sh").args(["-c", look]).gpu("amdgpu");
    program.env("PEERDMA_DOOR", "preload").output().success().says("CONFIG_PCI_P2PDMA=y");
}

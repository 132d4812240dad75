//! Render nodes: programs of the kernel's DRM find the software GPU behind them.

use std::process::Command;

use interop::need::Need;
use interop::{Artefacts, Mode, Program, Scratch, compile, needs};

fn run(preset: &str, arg: &str) {
    needs!(Need::Header("infiniband/verbs.h"), Need::Header("libdrm/drm.h"));
    let scratch = Scratch::new();
    let program = Program::new(compile("drm_node", &scratch)).gpu(preset).args([arg]);
    program.output().success().says("ok");
}

#[test]
fn buffers_of_amdgpu_are_mapped_exported_and_written() {
    run("amdgpu", "amdgpu");
}

#[test]
fn buffers_of_i915_are_mapped_exported_and_written() {
    run("i915", "i915");
}

#[test]
fn buffers_of_xe_are_mapped_exported_and_written() {
    run("xe", "xe");
}

#[test]
fn handles_descriptors_and_children_follow_the_rules() {
    run("amdgpu", "rules");
}

#[test]
fn another_process_registers_and_writes_an_exported_buffer() {
    run("amdgpu", "shared");
}

#[test]
fn prime_imports_buffers_of_another_gpu_and_of_another_process() {
    needs!(Need::Header("infiniband/verbs.h"), Need::Header("libdrm/drm.h"));
    let scratch = Scratch::new();
    let config = scratch.file("peerdma.toml");
    let text =
        "[[gpu]]\nname = \"left\"\nvram = \"16M\"\n[[gpu]]\nname = \"right\"\nvram = \"16M\"\n";
    std::fs::write(&config, text).expect("a scratch directory is writable");
    let program = Program::new(compile("drm_node", &scratch)).env("PEERDMA_CONFIG", &config);
    program.gpu("amdgpu").args(["imports"]).output().success().says("ok");
}

#[test]
fn a_mapped_buffer_is_registered_by_its_address_if_the_nic_uses_peer_memory_clients() {
    needs!(Need::Header("infiniband/verbs.h"), Need::Header("libdrm/drm.h"));
    let scratch = Scratch::new();
    let program = Program::new(compile("peermem", &scratch)).gpu("amdgpu");
    program
        .clone()
        .env("PEERDMA_LOG", "peerdma::refusal=info")
        .args(["refused"])
        .output()
        .success()
        .says("amdgpu0.bo1");
    let config = scratch.file("peerdma.toml");
    std::fs::write(&config, "[[nic]]\npeermem = true\n").expect("a scratch directory is writable");
    program.env("PEERDMA_CONFIG", &config).args(["served"]).output().success().says("ok");
}

#[test]
fn the_configuration_names_gpus_and_the_option_selects_their_driver() {
    needs!(Need::Header("infiniband/verbs.h"), Need::Header("libdrm/drm.h"));
    let scratch = Scratch::new();
    let config = scratch.file("peerdma.toml");
    let text = "[[gpu]]\nname = \"drmtest\"\npreset = \"i915\"\nshared = false\nvram = \"16M\"\n";
    std::fs::write(&config, text).expect("a scratch directory is writable");
    let program = Program::new(compile("drm_node", &scratch)).env("PEERDMA_CONFIG", &config);
    program.clone().gpu("").args(["i915"]).output().success();
    program.clone().gpu("xe").args(["xe"]).output().success();
    program.gpu("").args(["xe"]).output().failure();
}

/// Like the kernel's exporter of device memory, which has no mmap; without --gpu, and also in
/// another process.
#[test]
fn device_memory_is_a_dma_buf_that_cannot_be_mapped() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = Program::new(compile("dmabuf_uapi", &scratch)).args(["dm"]);
    let out = program.output();
    let said = &out.success().stdout;
    for who in ["", "a copy: ", "another process: "] {
        for line in ["map all: EINVAL", "map to read: EINVAL", "map the last page: EINVAL"] {
            let line = format!("{who}{line}");
            assert!(said.lines().any(|said| said == line), "{line:?} is not in:\n{said}");
        }
    }
    out.says("another process: seek to the end: 0")
        .says("another process: poll for both: 105")
        .says("another process: begin both: 0")
        .says("another process: its fences as a file: 0");
}

/// Without `peerdma run` the file has its size, but reads and mappings fail instead of giving wrong
/// bytes.
#[test]
fn without_the_hooks_access_to_a_buffers_file_fails() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = compile("dmabuf_uapi", &scratch);
    let out = Program::new(program).mode(Mode::Library).args(["dm"]).output();
    let said = &out.stdout;
    for line in
        ["seek to the end: 0", "map all: EACCES", "map to read: EACCES", "map a copy: EACCES"]
    {
        assert!(said.lines().any(|said| said == line), "{line:?} is not in:\n{out}");
    }
}

#[test]
fn without_the_option_there_is_no_node() {
    let look = |words: &[&str]| {
        let mut command = Command::new(Artefacts::find().peerdma());
        command.arg("run").args(words).args(["--", "sh", "-c", "echo ${PEERDMA_DRM_NODE:-none}"]);
        let out = command.output().expect("peerdma starts");
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    };
    assert_eq!(look(&[]), "none");
    assert!(look(&["--gpu"]).starts_with("/dev/dri/renderD"));
}

#[test]
fn a_driver_without_nodes_is_refused_in_words() {
    let scratch = Scratch::new();
    let config = scratch.file("peerdma.toml");
    std::fs::write(&config, "[[gpu]]\npreset = \"nvidia\"\n").expect("a scratch is writable");
    let mut command = Command::new(Artefacts::find().peerdma());
    command.env("PEERDMA_CONFIG", config).args(["run", "--gpu", "--", "true"]);
    let out = command.output().expect("peerdma starts");
    assert!(!out.status.success());
    assert!(String::from_utf8_lossy(&out.stderr).contains("has no node"));
}

#[test]
fn a_report_tells_how_the_memory_was_accessed() {
    needs!(Need::Header("infiniband/verbs.h"), Need::Header("libdrm/drm.h"));
    let scratch = Scratch::new();
    let (program, report) = (compile("drm_node", &scratch), scratch.file("report"));
    let mut command = Command::new(Artefacts::find().peerdma());
    command.args(["run", "--gpu=amdgpu"]).arg(format!("--report={}", report.display()));
    let out = command.arg("--").arg(program).arg("amdgpu").output().expect("peerdma starts");
    assert!(out.status.success(), "{out:?}");
    let text = std::fs::read_to_string(report).expect("a report was written");
    let count = |word: &str| -> u64 {
        let (_, rest) = text.split_once(&format!("  {word} ")).expect("the report has a number");
        rest.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
    };
    assert!(text.starts_with("peerdma report: drm_node ("), "{text}");
    assert!(count("bus address") > 0, "{text}");
    assert_eq!((count("bounced"), count("stale accesses")), (0, 0), "{text}");
}

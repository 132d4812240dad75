//! CUDA's runtime libraries and NVML over the software GPU.

use std::fmt::Write as _;
use std::process::Command;

use interop::need::Need;
use interop::{Program, Scratch, compile, compile_with, needs};

/// Runs one part of `cuda_runtime.c` with GPUs of NVIDIA's driver.
fn run(part: &str) {
    needs!(Need::Program("gcc"));
    let scratch = Scratch::new();
    let program = Program::new(compile("cuda_runtime", &scratch)).gpu("nvidia").args([part]);
    program.output().success().says("ok");
}

#[test]
fn runtime_12_allocates_copies_and_remembers_errors() {
    run("12");
}

#[test]
fn runtime_13_allocates_copies_and_remembers_errors() {
    run("13");
}

#[test]
fn each_runtime_has_its_names_under_its_own_version() {
    run("versions");
}

#[test]
fn nvml_needs_no_cuda_and_agrees_with_it() {
    run("nvml");
}

#[test]
fn functions_that_hooks_patch_begin_with_relocatable_instructions() {
    run("hooks");
}

#[test]
fn hooks_of_the_driver_see_what_the_runtime_allocates_and_frees() {
    run("seen");
}

/// Runs a script with GPUs of NVIDIA's driver, and with a configuration if one is given.
fn script(text: &str, config: &str) -> interop::Output {
    let scratch = Scratch::new();
    let file = scratch.file("peerdma.toml");
    std::fs::write(&file, config).expect("a scratch directory is writable");
    let program = Program::new("sh").args(["-c", text]).gpu("nvidia");
    let program = if config.is_empty() { program } else { program.env("PEERDMA_CONFIG", &file) };
    let out = program.output();
    out.success();
    out
}

#[test]
fn a_gpu_and_the_nic_beside_it_are_below_one_switch_in_sysfs() {
    let out = script(
        "nic=$(realpath /sys/class/infiniband/peerdma1/device); \
         for function in $(ls /sys/bus/pci/devices); do \
             gpu=$(realpath /sys/bus/pci/devices/$function); \
             case $(cat $gpu/vendor) in 0x10de) \
                 test ${nic%/*/*} = ${gpu%/*/*} && echo beside $function;; \
             esac; \
         done",
        "",
    );
    assert_eq!(out.stdout.lines().count(), 1, "{}", out.stdout);
    out.says("beside 0001:09:00.0");
}

#[test]
fn the_peer_memory_module_is_loaded_if_a_nic_uses_it() {
    let look = "(cat /sys/module/nvidia_peermem/version /sys/kernel/mm/memory_peers/nv_mem/version; \
                 grep nvidia_peermem /proc/modules; grep peer_memory /proc/kallsyms) 2> /dev/null | wc -l";
    script(look, "").says("4");
    let gpu = "[[gpu]]\nname = \"alone\"\nshared = false\n";
    script(look, &format!("[[nic]]\npeermem = true\n{gpu}")).says("4");
    script(look, &format!("[[nic]]\npeermem = false\n{gpu}")).says("0");
}

#[test]
fn a_runtime_refuses_a_driver_that_is_older_than_it() {
    needs!(Need::Program("gcc"));
    let scratch = Scratch::new();
    let config = scratch.file("peerdma.toml");
    std::fs::write(&config, "[[gpu]]\nname = \"old\"\ncuda_version = 12080\nshared = false\n")
        .expect("a scratch directory is writable");
    let program = Program::new(compile("cuda_runtime", &scratch)).gpu("nvidia");
    program.env("PEERDMA_CONFIG", &config).args(["old"]).output().success().says("ok");
}

/// A stub library with this soname and version node, for linking programs.
fn stub(version: u32, scratch: &Scratch) -> std::path::PathBuf {
    let soname = format!("libcudart.so.{version}");
    let names = ["cudaMalloc", "cudaFree", "cudaRuntimeGetVersion"];
    let code = names.iter().fold(String::new(), |mut code, name| {
        writeln!(code, "int {name}(void) {{ return -1; }}").expect("a string takes all");
        code
    });
    let (source, map) = (scratch.file("stub.c"), scratch.file("stub.map"));
    std::fs::write(&source, code).expect("a scratch directory is writable");
    std::fs::write(&map, format!("{soname} {{ global: *; }};\n")).expect("as before");
    let library = scratch.file(&soname);
    let out = Command::new("gcc")
        .args(["-shared", "-fPIC"])
        .arg(format!("-Wl,-soname,{soname},--version-script={}", map.display()))
        .arg("-o")
        .arg(&library)
        .arg(source)
        .output()
        .expect("the compiler starts: the test asked for it");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    library
}

#[test]
fn programs_linked_with_a_runtime_bind_to_its_version() {
    needs!(Need::Program("gcc"));
    for version in [12, 13] {
        let scratch = Scratch::new();
        let library = stub(version, &scratch);
        let version = format!("-DVERSION={version}");
        let library = library.to_str().expect("scratch directories have plain names");
        let program = compile_with("cuda_linked", &scratch, &[&version, "-Wl,-z,now"], &[library]);
        std::fs::remove_file(library).expect("it is there");
        Program::new(program).gpu("nvidia").output().success().says("ok");
    }
}

//! Exporters without a render node, in C programs: their memory, imported by a NIC of each class.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use interop::need::Need;
use interop::{Artefacts, Output, Program, Scratch, compile, needs};

/// A machine with a NIC of each of these importer classes, and an exporter; `under` is the place of
/// the NICs.
fn machine(scratch: &Scratch, preset: &str, under: &str, classes: &[&str]) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // The memory is shared by the processes of the user, so it needs a unique name.
    let name = format!("memory{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let mut text = format!(
        "[[gpu]]\nname = \"{name}\"\npreset = \"{preset}\"\nvram = \"32M\"\n\n\
         [[pci.host_bridge]]\nname = \"here\"\n\n[[pci.host_bridge]]\nname = \"elsewhere\"\n\n\
         [[pci.switch]]\nname = \"switch\"\nunder = \"here\"\n\n\
         [[pci.device]]\nname = \"{name}\"\nunder = \"switch\"\n"
    );
    for class in classes {
        text += &format!(
            "\n[[nic]]\nname = \"{class}\"\nimporter = \"{class}\"\n\n\
             [[pci.device]]\nname = \"{class}\"\nunder = \"{under}\"\n"
        );
    }
    let config = scratch.file("peerdma.toml");
    fs::write(&config, text).expect("a scratch directory is writable");
    config
}

fn run(program: &str, config: &Path, preset: &str, arg: &str, scratch: &Scratch) -> Output {
    let program = Program::new(compile(program, scratch)).env("PEERDMA_CONFIG", config);
    let log = "peerdma::refusal=info,peerdma::drm=debug";
    program.env("PEERDMA_LOG", log).gpu(preset).args([arg]).output()
}

fn habana(under: &str, arg: &str) -> Output {
    let scratch = Scratch::new();
    let config = machine(&scratch, "habanalabs", under, &["dynamic", "revocable", "pinned"]);
    run("habana", &config, "habanalabs", arg, &scratch)
}

fn vfio(under: &str, classes: &[&str], arg: &str) -> Output {
    let scratch = Scratch::new();
    let config = machine(&scratch, "vfio", under, classes);
    run("vfio_device", &config, "vfio", arg, &scratch)
}

/// The classes from which memory can be revoked.
const REVOCABLE: [&str; 2] = ["dynamic", "revocable"];

#[test]
fn a_c_program_finds_the_same_matrix_as_this_process() {
    needs!(Need::Header("infiniband/verbs.h"));
    let mut command = Command::new(Artefacts::find().peerdma());
    let out = command.args(["matrix", "--by-c"]).output().expect("peerdma starts");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    assert!(said.contains("The C program finds the same."), "{said}");
    let (by_c, _) = said.split_once("Measured by this process:").expect("both are printed");
    for exporter in ["amdgpu", "xe", "i915", "habanalabs", "vfio-pci", "nvidia", "uverbs"] {
        let rows = by_c.lines().filter(|line| line.starts_with(&format!("{exporter} "))).count();
        assert_eq!(rows, 2, "{exporter}, with a path and without:\n{by_c}");
    }
}

#[test]
fn every_class_of_nic_reaches_the_memory_of_an_accelerator() {
    needs!(Need::Header("infiniband/verbs.h"));
    habana("switch", "traffic").success().says("ok");
}

#[test]
fn without_a_path_the_map_of_an_accelerators_memory_is_not_permitted() {
    needs!(Need::Header("infiniband/verbs.h"));
    let out = habana("elsewhere", "unreached");
    out.success().says("refuses to map");
}

#[test]
fn an_accelerators_memory_is_refused_by_the_rules() {
    needs!(Need::Header("infiniband/verbs.h"));
    let out = habana("switch", "rules");
    out.success().says("somebody has it open").says("is exported").says("more than is mapped");
}

#[test]
fn nics_with_revocation_reach_the_memory_of_a_vfio_device() {
    needs!(Need::Header("infiniband/verbs.h"));
    vfio("switch", &REVOCABLE, "traffic").success().says("ok");
}

#[test]
fn without_a_path_the_map_of_a_vfio_devices_memory_is_invalid() {
    needs!(Need::Header("infiniband/verbs.h"));
    vfio("elsewhere", &REVOCABLE, "unreached").success().says("refuses to map");
}

#[test]
fn a_vfio_device_refuses_a_nic_without_revocation() {
    needs!(Need::Header("infiniband/verbs.h"));
    vfio("switch", &["pinned"], "pinned").success().says("refuses to attach");
}

#[test]
fn a_vfio_devices_memory_is_revoked_by_disable_and_reset_and_for_good_by_close() {
    needs!(Need::Header("infiniband/verbs.h"));
    let out = vfio("switch", &REVOCABLE, "taken");
    out.success().says("memory of the device was disabled");
}

#[test]
fn a_vfio_device_is_bound_exported_and_read_by_the_rules() {
    needs!(Need::Header("infiniband/verbs.h"));
    let out = vfio("switch", &REVOCABLE, "rules");
    out.success().says("not bound to an iommufd").says("somebody else has the device");
}

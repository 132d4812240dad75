//! Exporters without a render node, as programs in C have them: their memory in the hands of a NIC
//! of each class.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use interop::need::Need;
use interop::{Output, Program, Scratch, compile, needs};

/// Three NICs, one of each class of importer, and an exporter; `under` is where the NICs are.
fn machine(scratch: &Scratch, preset: &str, under: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Shared by the processes of the user, so it has a name of its own.
    let name = format!("memory{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let mut text = format!(
        "[[gpu]]\nname = \"{name}\"\npreset = \"{preset}\"\nvram = \"32M\"\n\n\
         [[pci.host_bridge]]\nname = \"here\"\n\n[[pci.host_bridge]]\nname = \"elsewhere\"\n\n\
         [[pci.switch]]\nname = \"switch\"\nunder = \"here\"\n\n\
         [[pci.device]]\nname = \"{name}\"\nunder = \"switch\"\n"
    );
    for class in ["dynamic", "revocable", "pinned"] {
        text += &format!(
            "\n[[nic]]\nname = \"{class}\"\nimporter = \"{class}\"\n\n\
             [[pci.device]]\nname = \"{class}\"\nunder = \"{under}\"\n"
        );
    }
    let config = scratch.file("peerdma.toml");
    fs::write(&config, text).expect("a scratch directory is writable");
    config
}

fn run(program: &str, preset: &str, under: &str, arg: &str) -> Output {
    let scratch = Scratch::new();
    let config = machine(&scratch, preset, under);
    let program = Program::new(compile(program, &scratch)).env("PEERDMA_CONFIG", config);
    let log = "peerdma::refusal=info,peerdma::drm=debug";
    program.env("PEERDMA_LOG", log).gpu(preset).args([arg]).output()
}

#[test]
fn every_class_of_nic_reaches_the_memory_of_an_accelerator() {
    needs!(Need::Header("infiniband/verbs.h"));
    run("habana", "habanalabs", "switch", "traffic").success().says("ok");
}

#[test]
fn without_a_path_the_map_of_an_accelerators_memory_is_not_permitted() {
    needs!(Need::Header("infiniband/verbs.h"));
    let out = run("habana", "habanalabs", "elsewhere", "unreached");
    out.success().says("refuses to map");
}

#[test]
fn an_accelerators_memory_is_refused_by_the_rules() {
    needs!(Need::Header("infiniband/verbs.h"));
    let out = run("habana", "habanalabs", "switch", "rules");
    out.success().says("somebody has it open").says("is exported").says("more than is mapped");
}

//! What a user sees of peer memory: the matrix, the list of buffers, the configuration file.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Scratch, stdout};
use device::config::Config;
use dmabuf::{DeviceAddr, DmaBuf, Memory};
use gpu::Machine;
use verbs::soft::{self, NicConfig};

/// The program, with the default machine.
fn peerdma(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerdma"));
    command.args(args).env_remove("PEERDMA_CONFIG").env_remove("PEERDMA_NIC");
    command
}

fn in_tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[test]
fn every_cell_of_the_matrix_is_as_the_rules_say() {
    let table = stdout(&mut peerdma(&["matrix"]));
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split("  ").collect()).collect();
    let starts = |name: &str| rows.iter().filter(|row| row[0] == name).count();
    let exporters =
        ["memory", "amdgpu", "xe", "i915", "habanalabs", "vfio-pci", "nvidia", "uverbs"];
    assert_eq!(exporters.map(starts), [1, 2, 2, 2, 2, 2, 2, 2], "{table}");
    assert!(table.contains("Every cell is as docs/semantics.md 2.6 says."), "{table}");
}

#[test]
fn a_cell_that_deviates_is_marked_and_fails_the_program() {
    let scratch = Scratch::new("matrix");
    let rules = fs::read_to_string(in_tree("crates/peerdma/src/cli/matrix/expected.txt")).unwrap();
    let other = scratch.path().join("expected.txt");
    fs::write(&other, rules.replacen("map EPERM", "map EINVAL", 1)).unwrap();
    let output = peerdma(&["matrix", "--expected"]).arg(&other).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("map EPERM ! map EINVAL"), "{text}");
    assert!(text.contains("DEVIATION: habanalabs, reached, static"), "{text}");
}

#[test]
fn the_list_of_buffers_names_who_has_them() {
    let name = format!("listed-{}", std::process::id());
    let held = DmaBuf::export_from(&Memory::Memfd, 12 << 10, &name).unwrap();
    let list = stdout(&mut peerdma(&["dmabuf"]));
    let line = list.lines().find(|line| line.contains(&name)).expect("a line for it");
    assert!(line.trim_start().starts_with("12288 "), "{line}");
    assert!(line.contains(&format!("{} (", std::process::id())), "{line}");
    drop(held);
    assert!(!stdout(&mut peerdma(&["dmabuf"])).contains(&name));
}

/// A NIC has files of its own, which are not buffers.
#[test]
fn the_list_of_buffers_has_no_files_of_the_nic() {
    let config =
        NicConfig { name: format!("files-{}", std::process::id()), ..NicConfig::default() };
    let context = soft::device(config).unwrap().open().unwrap();
    let dm = context.alloc_dm(4096).unwrap();
    let mine = |list: &str| {
        let holder = format!("{} (", std::process::id());
        list.lines().filter(|line| line.contains(&holder) && !line.contains("listed-")).count()
    };
    let list = stdout(&mut peerdma(&["dmabuf"]));
    assert_eq!(mine(&list), 0, "{list}");
    let exported = dm.export().unwrap();
    let list = stdout(&mut peerdma(&["dmabuf"]));
    assert_eq!(mine(&list), 1, "{list}");
    drop(exported);
}

/// NICs are found by one crate and GPUs by another: each must find the other's devices where the
/// other says they are.
#[test]
fn the_example_is_read_the_same_way_by_nic_and_gpu() {
    let text = fs::read_to_string(in_tree("examples/peer-memory.toml")).unwrap();
    for text in [text.as_str(), "", "[[gpu]]\nname = \"only\"", "[[nic]]\nname = \"only\""] {
        let nics = Config::parse(text).unwrap().nics;
        let machine = Machine::parse(text).unwrap();
        for nic in &nics {
            let bdf = machine.tree().by_name(&nic.name).expect("a NIC is in the tree");
            assert_eq!(nic.address, Some(DeviceAddr(bdf.to_bits())), "{text}");
        }
        assert!(machine.gpus().iter().all(|gpu| machine.tree().by_name(&gpu.name).is_some()));
    }
    let machine = Machine::parse(&text).unwrap();
    let at = |name: &str| machine.tree().by_name(name).unwrap();
    let path = |gpu: &str, nic: &str| machine.tree().path(at(gpu), at(nic)).map_type;
    assert_eq!(path("gpu0", "nic0"), pci::MapType::BusAddr);
    assert_eq!(path("gpu0", "nic1"), pci::MapType::NotSupported);
}

//! The Linux kernel judges crate `pci`: of random machines, what its p2pdma says of each pair of
//! functions beside what the crate says of the same `/sys`. docs/TOPO.md has the results.

use std::collections::BTreeMap;
use std::time::Duration;

use interop::need::{Need, full};
use interop::{Hardware, Output, Scratch, Vm, built, module, needs};

/// The numbers of a line of `KEY=NUMBER`.
fn numbers(out: &Output) -> BTreeMap<&str, u64> {
    let words = out.stdout.split_whitespace().filter_map(|word| word.split_once('='));
    words
        .filter_map(|(key, value)| Some((key, value.trim_end_matches(',').parse().ok()?)))
        .collect()
}

#[test]
fn the_kernel_agrees_about_every_pair_of_functions_of_random_machines() {
    needs!(Need::Vm, Need::Modules, Need::Program("setpriv"));
    let scratch = Scratch::new();
    let judge = module(&scratch, &["p2pdma_judge.c"]).expect("our own module");
    let programs = built(["build", "-p", "peerdma-pci", "--example", "judge"]);
    let program = programs.into_iter().next().expect("cargo builds it");
    let (machines, rounds) = if full() { (24, "24") } else { (4, "12") };
    let mut wrong = Vec::new();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 1..=machines {
        let hardware = Hardware::random(seed);
        eprintln!("seed {seed}: {}", hardware.args.join(" "));
        let has_iommu = u8::from(hardware.has_iommu).to_string();
        let out = Vm::new("topology")
            .program("setpriv")
            .module("pci-pf-stub")
            .file(&judge, "/p2pdma_judge.ko")
            .file(&program, "/bin/judge")
            .variable("seed", &seed.to_string())
            .variable("rounds", rounds)
            .variable("has_iommu", &has_iommu)
            .variable("intel_iommu", if hardware.has_iommu { "on" } else { "off" })
            .qemu(&hardware.args)
            .limit(Duration::from_secs(600))
            .run();
        if !out.all.status.success() {
            eprintln!("seed {seed}: {}", out.all);
            wrong.push(seed);
            continue;
        }
        *sums.entry("machines".to_owned()).or_default() += 1;
        for name in ["machine", "judge"] {
            for (key, number) in numbers(out.section(name)) {
                *sums.entry(key.to_owned()).or_default() += number;
            }
        }
        if hardware.has_iommu {
            out.section("hidden").says("on the safe side");
        }
    }
    eprintln!("{sums:?}");
    assert!(wrong.is_empty(), "seeds {wrong:?}: what differs stands above");
    for key in ["bus", "host", "refused", "shown", "queries", "texts", "pools", "virtual"] {
        assert!(sums[key] > 0, "no {key} in {sums:?}");
    }
}

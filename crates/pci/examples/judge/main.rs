//! Compares what this crate says of a machine with what its kernel says.
//!
//! ```text
//!   judge SEED ROUNDS     as root
//!   judge --hidden        as a user that may not read the configuration space of bridges
//! ```
//!
//! The kernel's answers are those of a module, `interop/vm/guest/p2pdma_judge.c`. Each round sets
//! ACS and the IDs of host bridges anew, at random, reads the tree from `/sys`, and compares the
//! map type and the distance of each pair of functions. Then come pools in BARs, the distance to
//! several clients, the nearest provider, and the texts of the attribute that enables peer-to-peer
//! memory. It ends with a difference, if there is one, and else with counts.

mod kernel;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use kernel::{Kernel, pairs};
use pci::{
    AddResourceError, BarKind, Bdf, Cpu, Enable, Function, FunctionKind, MapType, P2pdma, PciTree,
    Topology,
};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// What a host bridge may be taken for: some are on the allowlist, some only for traffic that stays
/// below them, some are not there.
const HOST_BRIDGES: [(u16, u16); 12] = [
    (0x8086, 0x3c00),
    (0x8086, 0x3c01),
    (0x8086, 0x2f00),
    (0x8086, 0x2f01),
    (0x8086, 0x2030),
    (0x8086, 0x2020),
    (0x8086, 0x09a2),
    (0x8086, 0x0b25),
    (0x1ae0, 0x1234),
    (0x8086, 0x29c0),
    (0x1b36, 0x000c),
    (0x1022, 0x1480),
];

/// The granularity in which the kernel makes pages of a BAR.
const SECTION: u64 = 2 << 20;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<String> {
    match args {
        [hidden] if hidden == "--hidden" => without_privilege(),
        [seed, rounds] => compare(seed.parse()?, rounds.parse()?),
        _ => Err("judge SEED ROUNDS | judge --hidden".into()),
    }
}

/// The tree, and the processor by both files that tell it.
fn tree() -> Result<PciTree> {
    let cpu = Cpu::from_modalias(&std::fs::read_to_string("/sys/devices/system/cpu/modalias")?);
    let other = Cpu::from_cpuinfo(&std::fs::read_to_string("/proc/cpuinfo")?);
    if cpu != Some(other) {
        return Err(format!("the processor is {cpu:?} in sysfs and {other:?} in /proc").into());
    }
    Ok(PciTree::from_sysfs(Path::new("/sys"), other)?)
}

fn compare(seed: u64, rounds: u32) -> Result<String> {
    let mut random = Random(seed);
    let mut kernel = Kernel::open()?;
    let mut cells = Cells::default();
    let mut pools = Pools::default();
    pools.provide(&mut kernel, &P2pdma::new(Arc::new(tree()?)), &mut random)?;
    for round in 0..rounds {
        if round > 0 {
            shuffle(&mut kernel, &tree()?, &mut random)?;
        }
        let tree = Arc::new(tree()?);
        let at = |error| format!("seed {seed}, round {round}: {error}");
        cells.compare(&tree).map_err(at)?;
        let p2pdma = P2pdma::new(Arc::clone(&tree));
        pools.apply(&mut kernel, &p2pdma, &mut random)?;
        cells.queries(&mut kernel, &p2pdma, &mut random).map_err(at)?;
        cells.texts(&mut kernel, &p2pdma, &mut random).map_err(at)?;
    }
    Ok(format!("seed {seed}: {cells}, {pools}"))
}

/// Sets ACS wherever it is, and the IDs of host bridges.
fn shuffle(kernel: &mut Kernel, tree: &PciTree, random: &mut Random) -> Result {
    // In some rounds few bridges redirect, in others most.
    let share = random.below(4);
    for function in tree.functions() {
        let bits = if random.below(4) < share { random.below(0x80) } else { 0 };
        kernel.ask(&format!("acs {} {bits}", function.bdf))?;
    }
    let roots: BTreeSet<_> = tree.functions().map(|function| function.root).collect();
    for root in roots {
        let below = tree.functions().filter(|one| one.root == root && one.upstream.is_none());
        // Not only of the one that the rule asks: the others must not matter.
        for function in below {
            if random.below(2) == 0 {
                continue;
            }
            let (vendor, device) = random.of(&HOST_BRIDGES);
            kernel.ask(&format!("ids {} {vendor} {device}", function.bdf))?;
        }
    }
    Ok(())
}

/// What a user without privilege is told must be true, if not the whole truth.
fn without_privilege() -> Result<String> {
    let tree = tree()?;
    let redirecting = Topology::from_sysfs(Path::new("/sys"))?.redirecting();
    if redirecting.is_some() {
        return Err("this user sees the configuration space of bridges".into());
    }
    let (mut same, mut less) = (0, 0);
    for (provider, client, map_type, distance) in pairs()? {
        let path = tree.path(provider, client);
        let is_weaker = match (path.map_type, map_type) {
            (ours, kernels) if ours == kernels => false,
            (MapType::NotSupported, _) | (MapType::ThruHostBridge, MapType::BusAddr) => true,
            (ours, kernels) => {
                return Err(format!("{path}: {ours:?}, and the kernel: {kernels:?}").into());
            }
        };
        if path.distance != distance {
            return Err(format!("{path}: {}, and the kernel: {distance}", path.distance).into());
        }
        if is_weaker { less += 1 } else { same += 1 }
    }
    Ok(format!("without privilege: {same} cells as the kernel, {less} on the safe side"))
}

/// What was compared.
#[derive(Debug, Default)]
struct Cells {
    by_bus: u64,
    by_host_bridge: u64,
    refused: u64,
    shown: u64,
    queries: u64,
    texts: u64,
}

impl Cells {
    /// Each pair of functions.
    fn compare(&mut self, tree: &Arc<PciTree>) -> Result<(), String> {
        let topology = Topology::from_sysfs(Path::new("/sys")).ok();
        let devices: BTreeMap<_, _> = topology
            .iter()
            .flat_map(|topology| topology.devices())
            .map(|device| (device.bdf, device))
            .collect();
        let functions = tree.functions().count();
        let mut count = 0;
        for (provider, client, map_type, distance) in pairs().map_err(|error| error.to_string())? {
            let path = tree.path(provider, client);
            if (path.map_type, path.distance) != (map_type, distance) {
                return Err(format!(
                    "{provider} for {client}: {:?}, {}, and the kernel: {map_type:?}, {distance} \
                     ({path})\n{}",
                    path.map_type,
                    path.distance,
                    described(tree, &[provider, client]),
                ));
            }
            match map_type {
                MapType::BusAddr => self.by_bus += 1,
                MapType::ThruHostBridge => self.by_host_bridge += 1,
                _ => self.refused += 1,
            }
            count += 1;
            let (Some(topology), Some(one), Some(other)) =
                (&topology, devices.get(&provider), devices.get(&client))
            else {
                continue;
            };
            let shown = topology.peer_to_peer(one, other);
            if one.memory.is_reachable() && shown.map_type() != map_type {
                return Err(format!("topo shows {shown:?}, and the kernel: {map_type:?}"));
            }
            self.shown += 1;
        }
        if count != functions * functions {
            return Err(format!("{count} pairs of {functions} functions"));
        }
        Ok(())
    }

    /// `pci_p2pdma_distance_many` and `pci_p2pmem_find_many`, for some sets of clients.
    fn queries(
        &mut self,
        kernel: &mut Kernel,
        p2pdma: &P2pdma,
        random: &mut Random,
    ) -> Result<(), String> {
        let all: Vec<Bdf> = p2pdma.tree().functions().map(|function| function.bdf).collect();
        for _ in 0..20 {
            let clients: Vec<Bdf> = (0..random.below(5)).map(|_| random.of(&all)).collect();
            let words: String = clients.iter().map(|client| format!(" {client}")).collect();
            let provider = random.of(&all);
            let theirs = kernel.number(&format!("many {provider}{words}"))?;
            let ours = p2pdma.distance_many(provider, &clients).map_or(-1, i64::from);
            if ours != theirs {
                return Err(format!("{provider} for{words}: {ours}, and the kernel: {theirs}"));
            }
            let mut count = 0;
            let first = p2pdma.find_many(&clients, |many| {
                count = many;
                0
            });
            let nearest = (0..count).map(|index| p2pdma.find_many(&clients, |_| index));
            let nearest: BTreeSet<_> = nearest.chain([first]).collect();
            let theirs = kernel.ask(&format!("find{words}"))?;
            if !nearest.contains(&theirs.parse::<Bdf>().ok()) {
                return Err(format!("nearest to{words}: {nearest:?}, and the kernel: {theirs}"));
            }
            self.queries += 2;
        }
        Ok(())
    }

    /// `pci_p2pdma_enable_store`.
    fn texts(
        &mut self,
        kernel: &mut Kernel,
        p2pdma: &P2pdma,
        random: &mut Random,
    ) -> Result<(), String> {
        let functions: Vec<_> = p2pdma.tree().functions().map(|one| one.bdf.to_string()).collect();
        let device = random.of(&functions.iter().collect::<Vec<_>>()).clone();
        let upper = device.to_uppercase();
        let rest = ["0", "1", "0\n", "y", "N\n", "on", "off", "oN\n", "true", "t", "", "2", "00"];
        let others = ["1:00", "0000:ff:1f.7", "none", "on the", "\n", "o", "fx", "0 ", " 1"];
        let forms = [format!("{device}\n"), format!("{device} "), format!("0000{device}"), upper];
        let texts = rest.iter().chain(&others).map(|text| (*text).to_owned());
        for text in texts.chain(forms).chain(functions) {
            let theirs = kernel.ask(&format!("enable {text}"))?;
            let ours = match p2pdma.enable_store(&text) {
                Ok(Enable::No) => "no".to_owned(),
                Ok(Enable::Any) => "any".to_owned(),
                Ok(Enable::Device(bdf)) => bdf.to_string(),
                Err(_) => "-19".to_owned(),
            };
            if ours != theirs {
                return Err(format!("the text {text:?}: {ours}, and the kernel: {theirs}"));
            }
            self.texts += 1;
        }
        Ok(())
    }
}

impl std::fmt::Display for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { by_bus, by_host_bridge, refused, shown, queries, texts } = self;
        let cells = by_bus + by_host_bridge + refused;
        write!(
            f,
            "cells={cells} bus={by_bus} host={by_host_bridge} refused={refused} shown={shown} \
             queries={queries} texts={texts}"
        )
    }
}

/// Pools in BARs, as the kernel has accepted them.
#[derive(Debug, Default)]
struct Pools {
    accepted: Vec<(Bdf, u8, u64, u64)>,
    refused: u64,
}

impl Pools {
    fn provide(&mut self, kernel: &mut Kernel, p2pdma: &P2pdma, random: &mut Random) -> Result {
        let tree = Arc::clone(p2pdma.tree());
        let endpoints = tree.functions().filter(|one| one.kind == FunctionKind::Endpoint);
        for function in endpoints {
            for bar in 0..6 {
                self.refusals(kernel, p2pdma, function, bar, random)?;
                let Some(memory) = function.bars.iter().find(|one| one.index == bar) else {
                    continue;
                };
                let is_whole = memory.size.is_multiple_of(SECTION);
                if memory.kind != BarKind::Memory || !is_whole || random.below(2) == 0 {
                    continue;
                }
                let offset = random.below(memory.size / SECTION) * SECTION;
                let size = random.of(&[0, SECTION]);
                self.add(kernel, p2pdma, (function.bdf, bar, size, offset))?;
            }
        }
        Ok(())
    }

    /// What is refused changes nothing.
    fn refusals(
        &mut self,
        kernel: &mut Kernel,
        p2pdma: &P2pdma,
        function: &Function,
        bar: u8,
        random: &mut Random,
    ) -> Result {
        let size = function.bars.iter().find(|one| one.index == bar).map_or(0, |one| one.size);
        let (size, offset) =
            random.of(&[(0, size), (size + 4096, 0), (1 << 40, 4096), (4096, size)]);
        self.add(kernel, p2pdma, (function.bdf, bar, size, offset))
    }

    fn add(
        &mut self,
        kernel: &mut Kernel,
        p2pdma: &P2pdma,
        (bdf, bar, size, offset): (Bdf, u8, u64, u64),
    ) -> Result {
        let theirs = kernel.number(&format!("provide {bdf} {bar} {size} {offset}"))?;
        let ours = match p2pdma.add_resource(bdf, bar, size, offset) {
            Ok(()) => 0,
            Err(AddResourceError::Init(_)) => -95,
            Err(_) => -22,
        };
        if ours != theirs {
            let what = format!("{size:#x} bytes at {offset:#x} of BAR {bar} of {bdf}");
            return Err(format!("{what}: {ours}, and the kernel: {theirs}").into());
        }
        match ours {
            0 => self.accepted.push((bdf, bar, size, offset)),
            _ => self.refused += 1,
        }
        Ok(())
    }

    /// The same pools in another tree, some of them published.
    fn apply(&mut self, kernel: &mut Kernel, p2pdma: &P2pdma, random: &mut Random) -> Result {
        for (bdf, bar, size, offset) in &self.accepted {
            p2pdma.add_resource(*bdf, *bar, *size, *offset)?;
            let is_published = random.below(3) > 0;
            p2pdma.publish(*bdf, is_published);
            kernel.ask(&format!("publish {bdf} {}", u8::from(is_published)))?;
        }
        for bdf in self.accepted.iter().map(|pool| pool.0).collect::<BTreeSet<_>>() {
            let view = p2pdma.view(bdf).ok_or("no provider")?;
            let published = u64::from(view.published);
            for (name, ours) in
                [("size", view.size), ("available", view.available), ("published", published)]
            {
                let path = format!("/sys/bus/pci/devices/{bdf}/p2pmem/{name}");
                let theirs = std::fs::read_to_string(&path)?;
                if theirs.trim() != ours.to_string() {
                    return Err(format!("{path}: {ours}, and the kernel: {theirs}").into());
                }
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for Pools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pools={} not_pools={}", self.accepted.len(), self.refused)
    }
}

/// The functions on the way from some to their root, with their ACS.
fn described(tree: &PciTree, ends: &[Bdf]) -> String {
    let line = |function: &Function| {
        let Function { bdf, kind, root, ids, acs, .. } = function;
        format!("  {bdf} {kind:?} {ids} below {root}, ACS {acs:?}\n")
    };
    ends.iter().flat_map(|end| tree.chain(*end)).map(line).collect()
}

/// Numbers that depend on the seed alone (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        // CAST: below the length of a slice.
        all[self.below(all.len() as u64) as usize]
    }
}

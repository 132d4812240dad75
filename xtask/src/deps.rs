//! `cargo xtask deps-check`: which crate may call which.
//!
//! The table is the diagram of docs/ARCHITECTURE.md in a form that a program can check. An edge
//! that is not in it is an error, even if it is harmless: to move a wall is a decision, made here
//! and explained there.

use crate::metadata::{Package, check_fuzz_lock, workspace};
use crate::sh::Outcome;

/// A crate, and the crates of the workspace that it may name in its `[dependencies]`.
const MAY_USE: &[(&str, &[&str])] = &[
    ("iba", &[]),
    ("environment", &[]),
    ("sandbox", &[]),
    ("cgroup", &[]),
    ("pci", &[]),
    ("doctor", &["cgroup", "pci"]),
    ("threads", &["sandbox"]),
    ("descriptors", &["threads"]),
    ("records", &["descriptors"]),
    ("pcap", &["records"]),
    ("perfetto", &["records"]),
    ("wire", &["iba"]),
    ("dmabuf", &["descriptors", "pci", "sandbox", "threads"]),
    ("umem", &["descriptors", "dmabuf", "sandbox", "threads"]),
    ("transport", &["iba", "wire"]),
    ("cm", &["iba", "wire"]),
    ("rsocket", &[]),
    ("fault", &["iba", "wire"]),
    // For `umem::Foreign`: a ring shared with a peer is also foreign memory.
    ("link", &["descriptors", "iba", "sandbox", "umem", "threads"]),
    // What engines say of themselves, and how all of them are asked.
    ("view", &["link"]),
    (
        "device",
        &[
            "cgroup",
            "descriptors",
            "environment",
            "iba",
            "wire",
            "umem",
            "dmabuf",
            "pci",
            "transport",
            "cm",
            "fault",
            "link",
            "pcap",
            "perfetto",
            "sandbox",
            "threads",
            "view",
        ],
    ),
    // Its memory is foreign memory: importers write it at any moment.
    ("gpu", &["cgroup", "descriptors", "environment", "umem", "dmabuf", "pci", "fault", "threads"]),
    // A client of peer-to-peer DMA; the dma-buf tells it whose memory it is.
    ("storage", &["dmabuf", "pci", "sandbox", "threads", "umem"]),
    // It gives out dma-bufs of providers without knowing their devices.
    ("orchestrator", &["dmabuf", "pci", "umem"]),
    ("umd", &["descriptors", "umem", "dmabuf", "pci", "gpu", "sandbox", "threads"]),
    ("cuda", &["environment", "umem", "dmabuf", "pci", "gpu", "umd"]),
    ("levelzero", &["descriptors", "environment", "umem", "gpu", "umd"]),
    ("hsa", &["environment", "umem", "gpu", "umd"]),
    ("stubs", &[]),
    ("verbs-abi", &[]),
    // Work requests have the form that both providers take.
    ("sysverbs", &["iba", "transport", "umem", "verbs-abi"]),
    ("cudalib", &["stubs"]),
    ("hsalib", &["stubs"]),
    ("zelib", &["stubs"]),
    // The device behind it is borrowed memory.
    ("hmm", &["sandbox", "threads", "umem"]),
    // Where devices and the orchestrator meet: it puts devices behind a trait.
    ("providers", &["dmabuf", "gpu", "orchestrator", "pci", "storage", "verbs"]),
    // A NIC imports its fds, but it knows no NIC.
    ("nodes", &["descriptors", "dmabuf", "environment", "gpu", "pci", "threads"]),
    // It describes both to a program, and makes neither.
    (
        "launcher",
        &[
            "cuda",
            "descriptors",
            "device",
            "environment",
            "fault",
            "gpu",
            "hsa",
            "levelzero",
            "pcap",
            "pci",
            "perfetto",
            "sandbox",
            "view",
        ],
    ),
    (
        "verbs",
        &[
            "descriptors",
            "environment",
            "iba",
            "umem",
            "dmabuf",
            "transport",
            "device",
            "sysverbs",
            "threads",
            "verbs-abi",
        ],
    ),
    // The only place that holds both a GPU and a NIC: a process has one of each, joined only by
    // fds.
    (
        "peerdma",
        &[
            "descriptors",
            "doctor",
            "environment",
            "iba",
            "umem",
            "dmabuf",
            "pci",
            "fault",
            "link",
            "pcap",
            "perfetto",
            "threads",
            "transport",
            "device",
            "gpu",
            "cuda",
            "levelzero",
            "hsa",
            "launcher",
            "nodes",
            "verbs",
            "verbs-abi",
            "orchestrator",
            "providers",
            "storage",
            "rsocket",
            "view",
        ],
    ),
    ("preload", &[]),
    ("rspreload", &["environment", "threads"]),
    ("heap", &["threads"]),
    ("fabric-sim", &["iba", "wire", "transport", "umem"]),
    ("interop", &[]),
    // A program: it holds a NIC, a disk and a GPU, and reports which bytes took which path.
    ("nvmet", &["dmabuf", "orchestrator", "providers", "storage", "umem", "verbs"]),
    (
        "bench",
        &[
            "hmm",
            "nvmet",
            "iba",
            "wire",
            "umem",
            "dmabuf",
            "transport",
            "link",
            "device",
            "gpu",
            "providers",
            "storage",
            "verbs",
            "verbs-abi",
        ],
    ),
    ("xtask", &[]),
];

/// Crates that only tests may use, anywhere.
const FOR_TESTS: &[&str] = &["fabric-sim"];
/// Crates that the tests and examples of one crate may use in addition: a program holds both a NIC
/// and a GPU, and so do they.
const TESTS_OF: &[(&str, &str)] = &[
    ("nvmet", "gpu"),
    ("providers", "umem"),
    ("storage", "gpu"),
    ("verbs", "gpu"),
    ("verbs", "hmm"),
];

/// Checks every edge of the workspace.
pub(crate) fn run() -> Outcome {
    check_fuzz_lock()?;
    let packages = workspace()?;
    let mut wrong = Vec::new();
    for package in &packages {
        wrong.extend(check(package));
    }
    if !wrong.is_empty() {
        return Err(format!("edges that must not exist:\n  {}", wrong.join("\n  ")));
    }
    let edges: usize =
        packages.iter().map(|p| p.dependencies.iter().filter(|d| d.local).count()).sum();
    println!("deps: {} crates, {edges} edges, all pointing down", packages.len());
    Ok(())
}

fn check(package: &Package) -> Vec<String> {
    let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == package.name) else {
        return vec![format!("{} is not in the table of xtask/src/deps.rs", package.name)];
    };
    let used = package.dependencies.iter().filter(|dep| dep.local);
    used.filter(|dep| {
        let tests = dep.kind.as_deref() == Some("dev");
        // A test may use its own crate again, with other features, and everything below it.
        let fine = allowed.contains(&dep.name.as_str())
            || tests
                && (FOR_TESTS.contains(&dep.name.as_str())
                    || TESTS_OF.contains(&(package.name.as_str(), dep.name.as_str()))
                    || dep.name == package.name);
        !fine
    })
    .map(|dep| {
        let kind = dep.kind.as_deref().map(|kind| format!(" ({kind})")).unwrap_or_default();
        format!("{} -> {}{kind}", package.name, dep.name)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reaches(from: &str, to: &str) -> bool {
        let (_, uses) = MAY_USE.iter().find(|(name, _)| *name == from).expect("in the table");
        uses.iter().any(|next| *next == to || reaches(next, to))
    }

    #[test]
    fn the_table_has_no_cycle() {
        // reaches() would not end otherwise: the stack overflows and the test fails.
        for (name, _) in MAY_USE {
            assert!(!reaches(name, name), "{name} reaches itself");
        }
    }

    #[test]
    fn gpu_and_device_meet_only_at_a_dma_buf() {
        assert!(!reaches("gpu", "device"));
        assert!(!reaches("device", "gpu"));
        for apart in ["storage", "orchestrator"] {
            assert!(!reaches(apart, "gpu") && !reaches(apart, "device"), "{apart}");
        }
        let (_, uses) = MAY_USE.iter().find(|(name, _)| *name == "gpu").expect("in the table");
        assert!(!uses.contains(&"iba"), "a GPU knows nothing of RDMA; a fault plan covers both");
        assert!(!reaches("dmabuf", "iba"), "nor does a dma-buf");
    }
}

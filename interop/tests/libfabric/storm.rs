//! GPU memory moves all the time under libfabric's own tests, which compare each byte.

use std::path::Path;

use interop::need::Need;
use interop::{Program, Scratch, Veth, by_nic, needs, sum};

use crate::{BYTES, fabtest, xe};

/// Acts triggered by packets of the NIC and by copies of the program, so that their number follows
/// its work and not the speed of the machine. And some by time.
const PLAN: &str = "seed = 5\n\
    [[fault]]\nname = 'clock'\ndo = 'evict'\nevery = '100ms'\nprobability = 0.5\n\
    [[fault]]\nname = 'back'\ndo = 'move'\nto = 'vram'\nopcode = ['write', 'read-response', 'send']\nevery = 150\n\
    [[fault]]\nname = 'call'\ndo = 'evict'\noperation = ['cuMemcpy', 'cuMemcpyHtoD', 'cuMemcpyDtoH', 'zeCommandListAppendMemoryCopy']\nprobability = 0.2\ntimes = 5\n\
    [[fault]]\nname = 'packet'\ndo = 'move'\nto = 'gtt'\nopcode = ['write', 'read-response', 'send']\nevery = 100\n";

/// Evictions that follow the READ responses alone: moves of much memory take long, and one that
/// moves by the clock may never be there.
const BY_ANSWERS: &str = "[[fault]]\nname = 'packet'\ndo = 'evict'\nopcode = ['read-response']\n\
    every = 3000\n";

/// A storm over a GPU of a driver, and its report.
struct Storm {
    scratch: Scratch,
    driver: &'static str,
}

impl Storm {
    /// A unique name of the GPU keeps other GPUs of this host out of it.
    fn over(driver: &'static str, name: &str, plan: &str) -> Self {
        let scratch = Scratch::new();
        let gpu = format!("name = '{name}'\npreset = '{driver}'\nvram = '512M'\ngtt = '512M'\n");
        let nic = "[[nic]]\nname = 'peerdma0'\npreset = 'mlx5'\n";
        for (name, text) in
            [("peerdma.toml", &*format!("{nic}[[gpu]]\n{gpu}")), ("plan.toml", plan)]
        {
            std::fs::write(scratch.file(name), text).expect("a file of our own");
        }
        Self { scratch, driver }
    }

    fn under(&self, program: Program) -> Program {
        let file = |name: &str| self.scratch.file(name);
        let program = program.env("PEERDMA_CONFIG", file("peerdma.toml"));
        let program = program.env("PEERDMA_FAULT", file("plan.toml"));
        let program = program.env("PEERDMA_FAULT_REPORT", file("acts.txt"));
        program.env("PEERDMA_REPORT", file("report.txt"))
    }

    fn said(&self, name: &str) -> String {
        std::fs::read_to_string(self.scratch.file(name)).unwrap_or_default()
    }

    /// Requires that the NIC accessed GPU memory directly, and never at an old place. Returns the
    /// number of moves.
    #[track_caller]
    fn moves(&self, test: &str, report: &Path) -> u64 {
        let (text, driver) = (self.said("report.txt"), self.driver);
        let moved = by_nic(report) + sum(&text, "system memory ");
        assert!(moved >= BYTES, "{test} on {driver}: {moved} bytes by the NIC: {text}");
        assert_eq!(sum(&text, "stale accesses "), 0, "{test} on {driver}: {text}");
        sum(&text, "moves ") + sum(&text, "evictions ")
    }
}

/// Runs a test between two hosts under a storm. The test compares the data (`-v`).
#[track_caller]
fn under(storm: &Storm, memory: &str, runtime: &str, (test, provider): (&str, &str)) -> u64 {
    let veth = Veth::new();
    let sides = [(&veth.left, veth.left_address()), (&veth.right, veth.right_address())];
    // All outstanding messages are in one buffer, and a move copies all of it.
    let args = ["-p", provider, "-D", memory, "-v", "-W", "4", "-I", "200"];
    let done = fabtest(test, &args, sides, |program| storm.under(program.gpu(runtime)));
    for side in [&done.server, &done.client] {
        assert!(side.status.success(), "{test}: {}\n{side}", storm.said("acts.txt"));
    }
    storm.moves(test, &storm.scratch.file("report.txt"))
}

#[test]
fn libfabric_follows_cuda_memory_that_moves() {
    needs!(Need::Libfabric, Need::Root, Need::Namespaces, Need::Program("ip"));
    for test in [("fi_rdm_tagged_bw", "verbs;ofi_rxm"), ("fi_msg_bw", "verbs")] {
        let storm = Storm::over("amdgpu", &format!("storm-{}", test.0), PLAN);
        let moves = under(&storm, "cuda", "nvidia", test);
        assert!(moves > 20, "{}: {moves} moves: {}", test.0, storm.said("acts.txt"));
    }
}

/// libfabric maps Level Zero's memory for copies of its own (`ze_dev_register`, hmem_ze.c:1142):
/// memory that the CPU has mapped does not move.
#[test]
fn level_zero_memory_stays_while_libfabric_has_it_mapped() {
    needs!(Need::Libfabric, Need::Root, Need::Namespaces, Need::Program("ip"));
    for driver in ["xe", "i915"] {
        let storm = Storm::over(driver, &format!("storm-fi-{driver}"), PLAN);
        under(&storm, "ze", driver, ("fi_rdm_tagged_bw", "verbs;ofi_rxm"));
        let acts = storm.said("acts.txt");
        assert!(acts.contains("is pinned and cannot move"), "{driver}: {acts}");
    }
}

/// The same memory, registered by plain verbs. (i915 pins exported buffers.)
#[test]
fn verbs_follow_level_zero_memory_that_moves() {
    needs!(Need::Libfabric, Need::Root, Need::Namespaces, Need::Program("ip"));
    let veth = Veth::new();
    let storm = Storm::over("xe", "storm-ze-xe", PLAN);
    // One request at a time: the size of its buffers grows with the number of outstanding requests.
    let args = ["-d", "0", "-g", "0", "-b", "1", "-S", "65536", "-t", "read", "-v"];
    xe("xe_rdmabw", &[&args[..], &["-n", "2000"]].concat(), &veth, |program| storm.under(program));
    let moves = storm.moves("xe_rdmabw", &storm.scratch.file("report.txt"));
    assert!(moves > 20, "{moves} moves: {}", storm.said("acts.txt"));
}

/// Sixteen requests are outstanding, in 64 MiB that each eviction copies as a whole. READs that
/// were granted before the memory went are put off by RNR NAKs, and none runs out of retries.
#[test]
fn reads_of_much_memory_outlast_evictions_of_all_of_it() {
    needs!(Need::Libfabric, Need::Root, Need::Namespaces, Need::Program("ip"));
    let veth = Veth::new();
    let storm = Storm::over("xe", "storm-ze-much", BY_ANSWERS);
    // Every READ in packets.
    let config = storm.said("peerdma.toml").replace("[[gpu]]", "force_udp = true\n[[gpu]]");
    std::fs::write(storm.scratch.file("peerdma.toml"), config).expect("a file of our own");
    let args = ["-d", "0", "-g", "0", "-S", "1048576", "-t", "read", "-v", "-n", "200"];
    xe("xe_rdmabw", &args, &veth, |program| storm.under(program));
    let moves = storm.moves("xe_rdmabw", &storm.scratch.file("report.txt"));
    assert!(moves > 10, "{moves} moves: {}", storm.said("acts.txt"));
}

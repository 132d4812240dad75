//! Tests of crate `verbs`, unchanged, on the Linux kernel's `rdma_rxe` in a virtual machine, by
//! Debian's libibverbs and librdmacm. `crates/verbs` runs them on the software device, and
//! `crates/peerdma` on `libpeerdma.so` as a library.

use std::path::Path;
use std::time::Duration;

use interop::need::Need;
use interop::{Artefacts, Vm, built, needs};

/// The files of `crates/verbs/tests` that run with any provider.
const TESTS: [&str; 13] = [
    "connections",
    "connections_async",
    "counted",
    "events",
    "futures",
    "lists",
    "loopback",
    "provider",
    "receives",
    "srq_async",
    "windows_async",
    "xrc",
    "xrc_async",
];

/// How long one of them may take under emulation.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn the_same_tests_pass_on_the_kernels_rxe() {
    needs!(Need::Vm, Need::Program("rdma"), Need::Program("ibv_rc_pingpong"));
    let mut args = vec!["test", "--no-run", "-p", "peerdma-verbs"];
    args.extend(TESTS.iter().flat_map(|test| ["--test", test]));
    let programs = built(args);
    assert_eq!(programs.len(), TESTS.len(), "{programs:?}");
    let mut vm = Vm::new("providers")
        .program("rdma")
        .variable("tests", &TESTS.join(","))
        .variable("patience", &PATIENCE.as_secs().to_string())
        .limit(PATIENCE * 2);
    for module in ["dummy", "rdma_rxe", "ib_uverbs", "rdma_ucm"] {
        vm = vm.module(module);
    }
    let libraries = "/usr/lib/x86_64-linux-gnu";
    let driver = format!("{libraries}/libibverbs/librxe-rdmav34.so");
    let found_at_run_time = ["libibverbs.so.1", "librdmacm.so.1"];
    let found_at_run_time = found_at_run_time.map(|name| format!("{libraries}/{name}"));
    let file = |vm: Vm, path: &str| vm.file(Path::new(path), path);
    vm = file(file(vm, &driver), "/etc/libibverbs.d/rxe.driver");
    vm = found_at_run_time.iter().fold(vm, |vm, path| file(vm, path));
    for program in &programs {
        vm = vm.file(program, &format!("/bin/{}", test_of(program)));
    }
    let out = vm.file(&Artefacts::find().peerdma(), "/bin/peerdma").run();
    let devices = out.section("devices");
    devices.says("rxe0      libibverbs  active").says("peerdma0  software    active");
    for test in TESTS {
        out.section(test).says("test result: ok.").says("--- exit 0");
    }
    out.all.success();
}

/// Which test a program is.
fn test_of(program: &Path) -> &str {
    let name = program.file_stem().and_then(|name| name.to_str()).expect("a program");
    name.rsplit_once('-').expect("cargo adds a hash").0
}

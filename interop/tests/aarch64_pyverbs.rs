//! rdma-core's own tests in the emulated arm64 machine. Python takes minutes there, so they run
//! with `--full`.

use std::process::Command;

use interop::arm64::{Programs, build, root};
use interop::need::Need;
use interop::{Scratch, needs};

/// rdma-core's own tests, of Debian's package for arm64. One that fails ends them with a status.
#[test]
fn rdma_cores_tests() {
    needs!(Need::Arm64, Need::Program("gunzip"));
    build();
    let scratch = Scratch::new();
    let tests = root().join("usr/share/doc/rdma-core/tests");
    let copied = Command::new("cp").arg("-r").arg(&tests).arg(scratch.path()).status();
    assert!(copied.expect("cp starts").success(), "{}", tests.display());
    let unpacked = Command::new("gunzip").arg("-r").arg(scratch.path()).status();
    assert!(unpacked.expect("gunzip starts").success(), "{}", tests.display());
    let command = "ours env PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 /files/tests/run_tests.py -v \
                   --dev peerdma0";
    let out = Programs::default().run("tests", command).boot(scratch.path());
    let tests = out.section("tests").says("OK");
    // The library's own lines may come before a verdict.
    let passed = tests.stdout.lines().filter(|line| *line == "ok" || line.ends_with(" ok")).count();
    eprintln!("{passed} tests of rdma-core pass");
    assert!(passed >= 40, "{tests}");
}

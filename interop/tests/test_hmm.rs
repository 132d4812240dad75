//! The kernel's `test_hmm` and crate `hmm`: the same steps, the same answers. No distribution
//! builds that module, so it is built here, from Debian's package of the kernel's source.
//! docs/HMM.md has the results.

use std::time::Duration;

use interop::need::Need;
use interop::{Scratch, Vm, built, module, needs};

#[test]
fn the_kernels_test_device_gives_the_same_answers() {
    needs!(Need::Vm, Need::Modules);
    let scratch = Scratch::new();
    let source = ["linux:lib/test_hmm.c", "linux:lib/test_hmm_uapi.h"];
    let module = match module(&scratch, &source) {
        Ok(module) => module,
        Err(why) => return interop::need::skip(&why),
    };
    let programs = built(["build", "-p", "peerdma-hmm", "--example", "dmirror"]);
    let program = programs.into_iter().next().expect("cargo builds it");
    let seeds = ["1", "2", "3", "4"];
    let out = Vm::new("test_hmm")
        .file(&module, "/test_hmm.ko")
        .file(&program, "/bin/dmirror")
        .variable("seeds", &seeds.join(","))
        .variable("steps", "1200")
        .limit(Duration::from_secs(300))
        .run();
    out.all.success();
    for seed in seeds {
        let section = out.section(seed).says("steps=1200").says("seen_device=");
        section.says("seen_exclusive=").says("seen_unmapped=").says("refused=").says("no_memory=");
        eprint!("{}", section.stdout);
    }
}

//! gdrcopy: the CPU accesses GPU memory through a mapping of its dma-buf.

use std::time::Duration;

use interop::need::Need;
use interop::{Program, cuda_program, needs, row};

fn gdrcopy(test: &str) -> Program {
    let dir = cuda_program("gdrcopy");
    Program::new(dir.join("tests").join(test))
        .gpu("nvidia")
        .env("LD_LIBRARY_PATH", dir.join("src"))
        .env("GDRCOPY_USE_DMABUF_MMAP", "1")
        .limit(Duration::from_secs(120))
}

/// The names below a heading of gdrcopy's summary.
fn listed<'a>(said: &'a str, heading: &str) -> Vec<&'a str> {
    let below = said.split(heading).nth(1).unwrap_or_default();
    let lines = below.lines().skip(1).take_while(|line| line.starts_with(' '));
    lines.map(str::trim).collect()
}

/// Tests that gdrcopy itself waives, since its dma-buf mode lacks the feature.
const WAIVED: [(&str, &str); 6] = [
    ("basic_unaligned_mapping", "its mappings of dma-bufs are of whole pages"),
    ("forcepci", "a flag of mappings that only coherent platforms have"),
    ("tokens", "P2P tokens are not offered (they went with CUDA 13)"),
    ("mix_mappings", "likewise"),
    ("fork", "its mappings of dma-bufs are shared with children"),
    ("unix_sock", "its handles are no files that can be passed on"),
];

#[test]
fn gdrcopy_passes_all_tests_that_it_does_not_waive() {
    needs!(Need::CudaProgram("gdrcopy"));
    let out = gdrcopy("gdrcopy_sanity").args(["-v"]).output();
    let said = format!("{}\n{}", out.stdout, out.stderr);
    for line in said.lines() {
        let Some((verdict, test)) =
            line.strip_prefix("&&&& ").and_then(|words| words.split_once(' '))
        else {
            continue;
        };
        let why = WAIVED.iter().find(|(part, _)| test.contains(part)).map_or("", |(_, why)| why);
        match verdict {
            "PASSED" => row("gdrcopy", "default", test, "pass", ""),
            "WAIVED" => row("gdrcopy", "default", test, "waived by itself", why),
            "FAILED" => row("gdrcopy", "default", test, "fail", ""),
            _ => {}
        }
    }
    let unexplained = |test: &&str| !WAIVED.iter().any(|(part, _)| test.contains(part));
    let waived_all = listed(&said, "List of waived tests:");
    let waived: Vec<_> = waived_all.iter().copied().filter(unexplained).collect();
    assert!(waived.is_empty(), "{waived:?}: {out}");
    let failed = listed(&said, "List of failed tests:");
    assert!(failed.is_empty(), "{out}");
    out.says("Total: 36");
    assert!(!waived_all.is_empty(), "{out}");
}

#[test]
fn gdrcopy_copies_through_a_mapping() {
    needs!(Need::CudaProgram("gdrcopy"));
    for test in ["gdrcopy_copybw", "gdrcopy_copylat"] {
        gdrcopy(test).output().success();
        row("gdrcopy", "default", test, "pass", "");
    }
}

//! `peerdma doctor`, as its user runs it.

use std::process::{Command, Output};

use serde_json::Value;

fn doctor(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerdma"));
    command.arg("doctor").args(args).output().expect("built with the test")
}

#[test]
fn the_doctor_succeeds_whatever_it_finds() {
    let output = doctor(&[]);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("Host:\n\n  kernel "), "{text}");
    assert!(text.contains("\npeerdma: shared memory: works\n"), "{text}");
}

#[test]
fn programs_read_the_same_as_json() {
    let all: Value = serde_json::from_slice(&doctor(&["--json"]).stdout).expect("JSON");
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux");
    assert_eq!(all["facts"]["kernel"], release.trim());
    let uses = all["uses"].as_array().expect("a list");
    let keys: Vec<_> = uses.iter().filter_map(|each| each["use"].as_str()).collect();
    assert_eq!(
        keys,
        [
            "rdma",
            "gpudirect_dma_buf",
            "gpudirect_peermem",
            "p2pdma",
            "peerdma_direct",
            "peerdma_shm",
            "peerdma_udp",
            "peerdma_sysfs",
            "peerdma_io_uring",
            "peerdma_migration",
        ]
    );
    for each in uses {
        let verdict = each["verdict"].as_str().expect("a word");
        assert!(["works", "does_not_work", "unknown"].contains(&verdict), "{each}");
        let findings = each["findings"].as_array().expect("a list");
        let helped = |finding: &&Value| finding["kind"] == "good" || finding["remedy"].is_string();
        assert!(!findings.is_empty() && findings.iter().all(|one| helped(&one)), "{each}");
    }
}

#[test]
fn the_doctor_fails_if_it_cannot_read_the_host() {
    let output = doctor(&["--root", "/nonexistent"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.starts_with("peerdma doctor: /nonexistent/proc/"), "{error}");
}

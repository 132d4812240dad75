//! `peerdma topo`, as its user runs it.

use std::process::{Command, Output};

use serde_json::{Value, json};

/// Two host bridges: one on the allowlist, with a switch that redirects; one that is not.
const MODEL: &str = r#"
    [[nic]]
    name = "near"
    [[nic]]
    name = "far"
    [[gpu]]
    name = "gpu0"
    vram = "1G"
    bar = "256M"
    [[pci.host_bridge]]
    name = "listed"
    id = "8086:2020"
    [[pci.host_bridge]]
    name = "other"
    id = "8086:4660"
    [[pci.switch]]
    name = "switch"
    under = "listed"
    acs = ["RR"]
    [[pci.device]]
    name = "far"
    under = "other"
"#;

/// Runs it with this configuration.
fn topo(test: &str, model: &str, args: &[&str]) -> Output {
    let name = format!("peerdma-topo-{test}-{}.toml", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, model).expect("a temporary file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerdma"));
    let command = command.arg("topo").args(args).env("PEERDMA_CONFIG", &path);
    let output = command.output().expect("built with the test");
    std::fs::remove_file(&path).expect("written above");
    output
}

#[test]
fn the_model_is_shown_with_the_reason_of_each_refusal() {
    let output = topo("text", MODEL, &[]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}");
    let letters = "      GPU0  NIC0  NIC1\n\
                   GPU0  X     PIX   NODE\n\
                   NIC0  PIX   X     NODE\n\
                   NIC1  NODE  NODE  X\n\n\
                   Legend:\n";
    assert!(text.starts_with(letters), "{text}");
    let peers = "      GPU0        NIC0        NIC1\n\
                 GPU0  X           host 4 [1]  no 6 [2]\n\
                 NIC0  host 4 [1]  X           no 6 [2]\n\
                 NIC1  no 6 [2]    no 6 [2]    X\n";
    assert!(text.contains(peers), "{text}");
    let unlisted = "host bridge 0000:05 (8086:4660) is not on the allowlist\n";
    assert!(text.contains(unlisted), "{text}");
}

#[test]
fn programs_read_the_same_as_json() {
    let output = topo("json", MODEL, &["--json"]);
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(all["devices"][0]["names"], json!(["gpu0"]));
    assert_eq!(all["devices"][0]["memory"]["reachable"], 256 << 20);
    assert_eq!(all["links"][2], json!({ "from": "GPU0", "to": "NIC1", "link": "NODE" }));
    let to = |client: &str| {
        let mut pairs = all["peer_to_peer"].as_array().expect("a list").iter();
        let found = pairs.find(|pair| pair["provider"] == "GPU0" && pair["client"] == client);
        found.expect("a pair").clone()
    };
    let near = to("NIC0");
    assert_eq!((&near["possible"], &near["distance"]), (&json!(true), &json!(4)));
    assert_eq!(near["map_type"], "through_host_bridge");
    assert_eq!(near["redirected_by"].as_array().expect("a list").len(), 2);
    assert_eq!(near["why"], Value::Null);
    let far = to("NIC1");
    assert_eq!((&far["possible"], &far["map_type"]), (&json!(false), &json!("not_supported")));
    assert!(far["why"].as_str().expect("words").contains("(8086:4660) is not on the allowlist"));
}

#[test]
fn errors_are_explained_in_words() {
    for (test, model, args, words) in [
        (
            "sysfs",
            "",
            &["--sysfs", "/nonexistent"][..],
            "/nonexistent/bus/pci/devices: No such file",
        ),
        ("model", "[[gpu]]\nvram = 1", &[], "PEERDMA_CONFIG"),
    ] {
        let output = topo(test, model, args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.starts_with("peerdma topo: ") && error.contains(words), "{error}");
    }
}

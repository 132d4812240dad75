//! `peerdma devices`, as its user runs it.

mod common;

use std::ffi::OsStr;
use std::process::{Command, Output};

fn devices(args: &[&str], provider: &OsStr) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerdma"));
    command.arg("devices").args(args).env("PEERDMA_PROVIDER", provider);
    command.output().expect("the program starts")
}

#[test]
fn the_devices_of_each_provider_are_listed() {
    let library = common::library();
    for (provider, word) in [("soft".as_ref(), "software"), (library.as_os_str(), "libibverbs")] {
        let out = devices(&[], provider);
        assert!(out.status.success(), "{out:?}");
        let text = String::from_utf8(out.stdout).expect("text");
        let mut lines = text.lines();
        let head = "DEVICE PROVIDER PORT MTU NETDEV ADDRESS";
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines.next().map(words), Some(words(head)), "{text}");
        let first = words(lines.next().expect("a device"));
        assert_eq!((&*first[0], &*first[1], &*first[2]), ("peerdma0", word, "active"), "{text}");

        let out = devices(&["--json"], provider);
        let list: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
        let device = &list[0];
        assert_eq!((&device["name"], &device["provider"]), (&"peerdma0".into(), &word.into()));
        assert_eq!(device["address"], first[5], "{list:#}");
        assert!(device["gids"].as_array().is_some_and(|gids| !gids.is_empty()), "{list:#}");
        assert!(device["max_qp"].as_u64().is_some_and(|most| most > 0), "{list:#}");
    }
}

#[test]
fn a_library_that_is_not_there_is_an_error_in_words() {
    let out = devices(&[], OsStr::new("/nowhere/libibverbs.so.1"));
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{error}");
    assert!(error.starts_with("peerdma devices: ") && error.contains("/nowhere/"), "{error}");
}

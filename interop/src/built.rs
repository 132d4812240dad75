//! Programs of this workspace that are not artefacts: cargo builds them when a test asks for them.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use crate::dist::workspace;

/// Runs `cargo ARGS` and returns the paths of the programs that it built or found built.
#[track_caller]
pub fn built(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Vec<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(workspace());
    command.args(args).args(["--locked", "--message-format=json"]);
    let out = command.output().expect("cargo starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let messages = String::from_utf8_lossy(&out.stdout);
    let paths = messages.lines().filter_map(|line| {
        let (_, rest) = line.split_once("\"executable\":\"")?;
        Some(PathBuf::from(rest.split_once('"')?.0))
    });
    paths.collect()
}

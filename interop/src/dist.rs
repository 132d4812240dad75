//! What is installed, made by the chore that makes it for users.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artefacts::Artefacts;

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("interop lies in it")
}

/// Runs `cargo xtask dist ARGS` for the directory `out`, and returns the file of this ending there.
///
/// # Panics
///
/// If it cannot be made; the message tells why.
pub fn dist(out: &Path, args: &[&str], ending: &str) -> PathBuf {
    let artefacts = Artefacts::find();
    let release = artefacts.peerdma().parent().expect("a file has a directory").to_owned();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let made = Command::new(cargo)
        .current_dir(workspace())
        .args(["xtask", "dist"])
        .args(args)
        .arg("--built")
        .arg(&release)
        .arg("--out")
        .arg(out)
        .output()
        .expect("cargo starts");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "cargo xtask dist: {said}");
    let files = out.read_dir().expect("the chore made it");
    let mut paths = files.map(|entry| entry.expect("it can be read").path());
    let is_it = |path: &PathBuf| path.to_string_lossy().ends_with(ending);
    paths.find(is_it).unwrap_or_else(|| panic!("no {ending} in {}", out.display()))
}

/// The wheel of Python for an architecture, kept beside what is built. Of the release it takes
/// minutes to build, so that is for `--full`.
pub fn wheel_of(arch: &str) -> PathBuf {
    let profile = if crate::need::full() { "release" } else { "dev" };
    let out = crate::artefacts::target_dir().join("install-test");
    let arch_option = format!("--arch={arch}");
    let args = ["--only=wheel", &arch_option, "--profile", profile];
    dist(&out, &args, &format!("_{arch}.whl"))
}

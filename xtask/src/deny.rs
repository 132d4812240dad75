//! `cargo xtask deny`: checks whether we may ship our dependencies.
//!
//! cargo-deny does it if it is installed. Otherwise [`crate::licences`] compares licences and
//! sources with deny.toml, which is less thorough: it does not read licence files, and does not
//! know banned crates.

use std::path::PathBuf;
use std::process::Command;

use crate::licences;
use crate::sh::{Outcome, cargo, check, exists, root, target_dir, tool};

/// The tool that did the check.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum By {
    CargoDeny,
    Ourselves,
}

/// Checks; with `install`, builds cargo-deny first when it is missing, in a minute on two cores: it
/// runs for a second, and an optimized build takes three times as long.
pub(crate) fn run(install: bool) -> Outcome<By> {
    let own = target_dir().join("tools");
    if install && !present(&own) {
        let build = target_dir().join("tools-build");
        check(
            cargo()
                .args([
                    "install",
                    "cargo-deny",
                    "--locked",
                    "--version",
                    "0.20.2",
                    "--debug",
                    "--root",
                ])
                .arg(&own)
                .arg("--target-dir")
                .arg(build)
                .env("CARGO_PROFILE_DEV_DEBUG", "false"),
        )?;
    }
    let Some(mut deny) = command(&own) else {
        println!("deny: cargo-deny is not installed; checking licences and sources without it");
        licences::run(&root().join("deny.toml"))?;
        return Ok(By::Ourselves);
    };
    // Advisories need a clone of the RustSec database, which a machine without a network cannot
    // make.
    check(deny.args(["--locked", "check", "bans", "licenses", "sources"]))?;
    Ok(By::CargoDeny)
}

fn present(own: &std::path::Path) -> bool {
    exists("cargo-deny") || binary(own).is_file()
}

fn binary(own: &std::path::Path) -> PathBuf {
    own.join("bin/cargo-deny")
}

fn command(own: &std::path::Path) -> Option<Command> {
    if binary(own).is_file() {
        Some(tool(binary(own)))
    } else if exists("cargo-deny") {
        Some(tool("cargo-deny"))
    } else {
        None
    }
}

//! `cargo xtask semver`: what the Rust API of the published libraries lost since the baseline.
//!
//! cargo-semver-checks compares the documentation of both that rustdoc writes as JSON; stable Rust
//! does. The baseline is a commit of this repository, which `xtask/semver.baseline` names, so that
//! no registry is asked. It is the day's release: whoever moves it says that what was broken
//! before is released so, and CHANGELOG.md has it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::counts::Counts;
use crate::groups::{Context, Tested};
use crate::sh::{Outcome, cargo, check, exists, read, root, target_dir, tool};

/// The tool's version, if it is built here.
const VERSION: &str = "0.51.0";
/// What programs name in their manifests, and what those crates show of others.
const PACKAGES: [&str; 3] = ["peerdma-iba", "peerdma-sysverbs", "peerdma-verbs"];
/// The file with the baseline, from the root.
const FILE: &str = "xtask/semver.baseline";

/// The group of `cargo xtask test`.
pub(crate) fn group(_: &Context) -> Outcome<Tested> {
    let baseline = match baseline() {
        Ok(baseline) => baseline,
        Err(why) => return Ok(Tested::Impossible(why)),
    };
    let mut command = match command() {
        Ok(command) => command,
        Err(why) => return Ok(Tested::Impossible(format!("no cargo-semver-checks: {why}"))),
    };
    compare(&mut command, &baseline)?;
    Ok(Tested::Ran(Counts { passed: PACKAGES.len() as u64, ..Counts::default() }))
}

/// The chore.
pub(crate) fn run() -> Outcome {
    let baseline = baseline()?;
    compare(&mut command()?, &baseline)
}

fn compare(command: &mut Command, baseline: &str) -> Outcome {
    println!("semver: against {baseline} ({FILE})");
    command.args(["semver-checks", "--baseline-rev", baseline]);
    for package in PACKAGES {
        command.args(["-p", package]);
    }
    check(command).map_err(|why| {
        format!(
            "{why}\na program that compiled with {baseline} may not compile any more. Put back \
             what is gone, or say in CHANGELOG.md what breaks and move {FILE} with the release"
        )
    })
}

/// The commit to compare with, which this repository has.
fn baseline() -> Outcome<String> {
    let text =
        std::fs::read_to_string(root().join(FILE)).map_err(|err| format!("{FILE}: {err}"))?;
    let commit = hash(&text)?;
    let git = |args: &[&str]| tool("git").args(args).output();
    let name = format!("{commit}^{{commit}}");
    match git(&["cat-file", "-e", &name]) {
        Ok(out) if out.status.success() => return Ok(commit),
        Ok(_) => {}
        Err(err) => return Err(format!("the baseline of {FILE} is a commit, and git: {err}")),
    }
    let is_shallow = read(tool("git").args(["rev-parse", "--is-shallow-repository"]))?;
    Err(if is_shallow.trim() == "true" {
        format!(
            "this is a shallow clone, without the baseline {commit} ({FILE}): \
             `git fetch --unshallow` brings it"
        )
    } else {
        format!("this repository does not have the baseline {commit} ({FILE})")
    })
}

/// The one line that is not a comment.
fn hash(text: &str) -> Outcome<String> {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !matches!(line.as_bytes(), [] | [b'#', ..]))
        .collect();
    match lines[..] {
        [hash] if hash.len() == 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Ok(hash.to_owned())
        }
        _ => Err(format!("{FILE}: not one hash of 40 digits")),
    }
}

/// The tool: the installed one, or one that is built under target/tools first, which takes six
/// minutes on two cores. It runs for seconds, and an optimized build takes three times as long.
fn command() -> Outcome<Command> {
    if exists("cargo-semver-checks") {
        return Ok(tool("cargo-semver-checks"));
    }
    let own = target_dir().join("tools");
    let binary = binary(&own);
    if !binary.is_file() {
        let build = target_dir().join("tools-build");
        let what = ["install", "cargo-semver-checks", "--locked", "--version", VERSION, "--debug"];
        check(
            cargo()
                .args(what)
                .arg("--root")
                .arg(&own)
                .arg("--target-dir")
                .arg(build)
                .env("CARGO_PROFILE_DEV_DEBUG", "false"),
        )?;
    }
    Ok(tool(binary))
}

fn binary(own: &Path) -> PathBuf {
    own.join("bin/cargo-semver-checks")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_is_one_commit_and_comments() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(hash(&format!("# why\n\n{commit}\n")).as_deref(), Ok(commit));
        assert!(hash(&format!("{commit}\n{commit}\n")).is_err());
        assert!(hash("main\n").is_err() && hash("").is_err());
        let ours = std::fs::read_to_string(root().join(FILE)).expect("it is checked in");
        hash(&ours).expect("it names a commit");
    }
}

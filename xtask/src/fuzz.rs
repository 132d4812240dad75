//! `cargo xtask fuzz`: each target for a number of inputs, with coverage feedback, on a stable
//! compiler.
//!
//! `cargo fuzz` needs a nightly compiler for the address sanitizer. The targets test safe parsers
//! and bounds checks, which fail by a panic, so only the coverage instrumentation matters, and
//! stable has that.

use std::fs;
use std::path::PathBuf;

use crate::sh::{Outcome, cargo, check, root, target_dir, tool};

/// Instrumentation that libFuzzer reads.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1";

/// Runs every target, or one.
pub(crate) fn run(runs: u64, only: Option<&str>) -> Outcome {
    let manifest = root().join("fuzz/Cargo.toml");
    let targets =
        targets(&fs::read_to_string(&manifest).map_err(|_| "there is no fuzz/Cargo.toml")?);
    let chosen: Vec<_> =
        targets.iter().filter(|name| only.is_none_or(|only| *name == only)).collect();
    if chosen.is_empty() {
        return Err(format!("no such fuzz target; there are: {}", targets.join(" ")));
    }
    let host = host()?;
    let dir = target_dir().join("fuzz");
    // --target: the flags are for the targets and what they link, not for build scripts.
    check(
        cargo()
            .env("RUSTFLAGS", FLAGS)
            .env("CARGO_TARGET_DIR", &dir)
            .args([
                "build",
                "--release",
                "--bins",
                "--locked",
                "--target",
                &host,
                "--manifest-path",
            ])
            .arg(&manifest),
    )?;
    for name in chosen {
        // New inputs go to a directory outside the tree; checked-in inputs are only read.
        let found = dir.join("corpus").join(name);
        fs::create_dir_all(&found).map_err(|err| format!("{}: {err}", found.display()))?;
        let mut command = tool(dir.join(&host).join("release").join(name));
        // -seed: the same inputs in every run.
        command.args([
            format!("-runs={runs}"),
            "-seed=1".into(),
            "-max_len=4096".into(),
            "-verbosity=0".into(),
        ]);
        command.arg(format!("-artifact_prefix={}/", found.display())).arg(&found);
        if let Some(words) = dictionary(name)? {
            command.arg(format!("-dict={}", words.display()));
        }
        // The checked-in inputs run first, each once.
        command.arg(checked_in(name));
        // libFuzzer's output is of no use if the run found nothing.
        let out = command.output().map_err(|err| format!("{name}: {err}"))?;
        if !out.status.success() {
            return Err(format!("{name}: {}", String::from_utf8_lossy(&out.stderr)));
        }
        println!("fuzz: {name}: {runs} inputs");
    }
    Ok(())
}

/// Inputs of a target that are part of the repository: small ones that are valid, or nearly so.
fn checked_in(target: &str) -> PathBuf {
    root().join("fuzz/corpus").join(target)
}

/// The names in the `[[bin]]` tables.
fn targets(manifest: &str) -> Vec<String> {
    manifest
        .split("[[bin]]")
        .skip(1)
        .filter_map(|table| {
            let line = table.lines().find(|line| line.trim_start().starts_with("name"))?;
            Some(line.split('"').nth(1)?.to_owned())
        })
        .collect()
}

/// `fuzz/WORD.dict` serves the targets whose names start with WORD.
fn dictionary(target: &str) -> Outcome<Option<PathBuf>> {
    let dir = root().join("fuzz");
    let entries = fs::read_dir(&dir).map_err(|err| format!("{}: {err}", dir.display()))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).find(|path| {
        let word = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        path.extension().is_some_and(|ext| ext == "dict") && target.starts_with(word)
    }))
}

/// The machine that the compiler builds for.
pub(crate) fn host() -> Outcome<String> {
    let text = crate::sh::read(tool("rustc").arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV names no host".to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{checked_in, root, targets};

    #[test]
    fn each_target_begins_with_inputs_that_are_checked_in() {
        let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).expect("it is there");
        for target in targets(&manifest) {
            let inputs = fs::read_dir(checked_in(&target)).map_or(0, Iterator::count);
            assert!(inputs >= 3, "{target}: {inputs}");
        }
    }

    #[test]
    fn bins_are_found() {
        let toml = "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"packet\"\npath = \"packet.rs\"\n[[bin]]\npath = \"r.rs\"\nname = \"ring\"\n";
        assert_eq!(targets(toml), ["packet", "ring"]);
    }
}

//! `cargo xtask loom`: checks every interleaving of the lock-free parts.
//!
//! A crate has models when it depends on loom for `cfg(loom)`. Its models are tests in a module
//! `models`.

use crate::counts::Counts;
use crate::metadata::workspace;
use crate::sh::{Outcome, cargo, target_dir, watch};

/// Runs the models of every crate that has any.
pub(crate) fn run() -> Outcome<Counts> {
    let mut counts = Counts::default();
    for package in workspace()? {
        let has_models = package.dependencies.iter().any(|dep| {
            dep.name == "loom" && dep.target.as_deref().is_some_and(|t| t.contains("loom"))
        });
        if !has_models {
            continue;
        }
        let flags = format!("{} --cfg loom", std::env::var("RUSTFLAGS").unwrap_or_default());
        // A directory of its own: other flags would rebuild everything else.
        let ok = watch(
            cargo()
                .env("RUSTFLAGS", flags.trim())
                .env("CARGO_TARGET_DIR", target_dir().join("loom"))
                .args(["test", "--release", "-p", &package.package, "--lib", "models"]),
            |line| counts.read(line),
        )?;
        if !ok && counts.failed == 0 {
            return Err(format!("the models of {} did not build", package.name));
        }
    }
    if counts.failed > 0 {
        return Err(format!("{} models failed", counts.failed));
    }
    if counts.passed == 0 {
        return Err("no model was found".to_owned());
    }
    Ok(counts)
}

//! Only the crate `environment` may read environment variables in code that ships: it knows when
//! they must not be trusted.

use std::fs;

use crate::metadata::workspace;
use crate::sh::{Outcome, root};
use crate::source::{code, count_word, rust_files};

/// Words by which a program reads its variables without that crate.
const WORDS: &[&str] = &["getenv", "environ", "try_from_env", "from_env", "try_from_default_env"];
/// Functions of `std::env` that do, with their module: their bare names also mean other things.
const FUNCTIONS: &[&str] = &["env::var", "std::env::{"];
/// Crates that are tools and tests: they run with the developer's own rights.
const TOOLS: &[&str] = &["interop", "bench", "xtask", "fabric-sim"];
/// Files that read variables: the one that may, and tests in source files.
const MAY: &[&str] = &[
    "crates/environment/src/lib.rs",
    "crates/device/src/rig/user.rs",
    "crates/link/src/netdev/netns.rs",
    "crates/verbs-abi/src/layout.rs",
];

/// Checks every source file that ships.
pub(crate) fn run() -> Outcome {
    let mut wrong = Vec::new();
    for package in workspace()?.iter().filter(|package| !TOOLS.contains(&&*package.name)) {
        let dir = package.manifest.parent().expect("a manifest lies in a directory").join("src");
        for file in rust_files(&dir)? {
            let shown = file.strip_prefix(root()).unwrap_or(&file).to_owned();
            if MAY.iter().any(|may| shown.as_os_str() == *may) {
                continue;
            }
            let text =
                fs::read_to_string(&file).map_err(|err| format!("{}: {err}", file.display()))?;
            wrong.extend(reads(&text).map(|what| format!("{}: {what}", shown.display())));
        }
    }
    if !wrong.is_empty() {
        return Err(format!(
            "variables read past the crate `environment`:\n  {}",
            wrong.join("\n  ")
        ));
    }
    println!("variables: read by `environment` alone");
    Ok(())
}

/// The parts of a file that read variables.
fn reads(text: &str) -> impl Iterator<Item = &'static str> {
    let code = code(text).replace("environment::var", "");
    let words = WORDS.iter().filter(|word| count_word(&code, word) > 0);
    let functions = FUNCTIONS.iter().filter(|function| code.contains(**function));
    words.chain(functions).copied().collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_a_variable_is_found() {
        let found = |text| reads(text).count();
        assert_eq!(found("let a = std::env::var(NAME);"), 1);
        assert_eq!(found("let a = env::vars_os();"), 1);
        assert_eq!(found("use std::env::{self, var};"), 1);
        assert_eq!(found("EnvFilter::try_from_env(NAME); unsafe { libc::getenv(NAME) }"), 2);
        assert_eq!(found("environment::var(NAME); env::args(); libc::secure_getenv(NAME);"), 0);
    }
}

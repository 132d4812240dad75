//! The examples of crate `verbs` are short, and docs/RUST.md lists each.

use std::fs;

use crate::sh::{Outcome, root};

const FOLDER: &str = "crates/verbs/examples";
const PAGE: &str = "docs/RUST.md";

/// An example has fewer lines than this: a page that a reader has in view at once.
const TOO_LONG: usize = 100;

/// Checks every example.
pub(crate) fn run() -> Outcome {
    let read =
        |path: &str| fs::read_to_string(root().join(path)).map_err(|err| format!("{path}: {err}"));
    let page = read(PAGE)?;
    let entries = fs::read_dir(root().join(FOLDER)).map_err(|err| format!("{FOLDER}: {err}"))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".rs")?.to_owned())).collect();
    names.sort();
    let mut wrong = Vec::new();
    for name in &names {
        let path = format!("{FOLDER}/{name}.rs");
        wrong.extend(look(name, &read(&path)?, &page));
    }
    if !wrong.is_empty() {
        return Err(format!("{FOLDER}:\n  {}", wrong.join("\n  ")));
    }
    println!("examples: {}, each below {TOO_LONG} lines and in {PAGE}", names.len());
    Ok(())
}

/// What is wrong with an example.
fn look(name: &str, text: &str, page: &str) -> Vec<String> {
    let lines = text.lines().count();
    let mut wrong = Vec::new();
    if lines >= TOO_LONG {
        wrong.push(format!("{name}: {lines} lines, and fewer than {TOO_LONG} are allowed"));
    }
    if !page.contains(&format!("\n| `{name}` | ")) {
        wrong.push(format!("{name}: {PAGE} has no row for it"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_that_is_long_or_not_listed_is_refused() {
        let page = "| example | what |\n|---|---|\n| `rpc` | calls |\n";
        assert!(look("rpc", &"\n".repeat(99), page).is_empty());
        assert_eq!(
            look("rpc", &"\n".repeat(100), page),
            ["rpc: 100 lines, and fewer than 100 are allowed"]
        );
        assert_eq!(look("calls", "", page), ["calls: docs/RUST.md has no row for it"]);
    }

    #[test]
    fn every_example_is_short_and_listed() {
        run().unwrap();
    }
}

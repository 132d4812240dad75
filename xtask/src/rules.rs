//! Tables of rules (docs/*.md): every test that they name must exist.
//!
//! In a table of rules, one column says what is done here, and the last column says what shows it:
//! names of tests, paths of files, `by type` if code that breaks the rule does not compile, or `-`
//! if there is nothing to show.

use std::collections::HashSet;
use std::fs;

use crate::sh::{Outcome, root};
use crate::source::rust_files;

/// Where the tables are.
const TABLES: [&str; 3] = ["docs/DMABUF.md", "docs/GPU.md", "docs/PEER_MEMORY_RULES.md"];

/// Checks every row of every table.
pub(crate) fn run() -> Outcome {
    let tests = tests()?;
    let (mut rows, mut wrong) = (0, Vec::new());
    for path in TABLES {
        let text = fs::read_to_string(root().join(path)).map_err(|err| format!("{path}: {err}"))?;
        rows += judge(path, &text, |word| exists(word, &tests), &mut wrong);
    }
    if !wrong.is_empty() {
        return Err(format!("tables of rules:\n  {}", wrong.join("\n  ")));
    }
    println!("rules: {rows} rows, every test that they name exists");
    Ok(())
}

/// The names of all tests.
fn tests() -> Outcome<HashSet<String>> {
    let mut names = HashSet::new();
    for dir in ["crates", "interop"] {
        for file in rust_files(&root().join(dir))? {
            let text =
                fs::read_to_string(&file).map_err(|err| format!("{}: {err}", file.display()))?;
            names.extend(tests_in(&text));
        }
    }
    Ok(names)
}

/// The functions marked as tests.
fn tests_in(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_marked = false;
    for line in text.lines().map(str::trim) {
        if line == "#[test]" {
            is_marked = true;
        } else if let Some(name) = line.strip_prefix("fn ")
            && std::mem::take(&mut is_marked)
        {
            names.extend(name.split('(').next().map(str::to_owned));
        }
    }
    names
}

fn exists(word: &str, tests: &HashSet<String>) -> bool {
    match word.contains('/') {
        true => ["", "crates"].iter().any(|dir| root().join(dir).join(word).exists()),
        false => tests.contains(word),
    }
}

/// Checks the tables of one file. Returns their number of rows.
fn judge(path: &str, text: &str, exists: impl Fn(&str) -> bool, wrong: &mut Vec<String>) -> usize {
    let mut rows = 0;
    let mut table = None;
    for (number, line) in (1..).zip(text.lines()) {
        if !line.starts_with('|') {
            table = None;
            continue;
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let last = *cells.last().expect("a split has parts");
        // The first line names the columns.
        let Some(is_of_rules) = table else {
            let is_of_rules = cells.contains(&"here");
            if is_of_rules && last != "shown by" {
                wrong.push(format!("{path}:{number}: the last column must be \"shown by\""));
            }
            table = Some(is_of_rules && last == "shown by");
            continue;
        };
        if !is_of_rules || last.starts_with("---") {
            continue;
        }
        rows += 1;
        let words: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        if words.is_empty() && !matches!(last, "by type" | "-") {
            wrong
                .push(format!("{path}:{number}: neither a test, nor `by type`, nor `-`: {last:?}"));
        }
        for word in words.into_iter().filter(|word| !exists(word)) {
            wrong.push(format!("{path}:{number}: there is no {word}"));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_functions_that_are_marked() {
        let text = "#[test]\nfn one() {}\nfn no_test() {}\n#[test]\n#[cfg(x)]\n    fn two() {}";
        assert_eq!(tests_in(text), ["one", "two"]);
    }

    #[test]
    fn each_row_names_something_that_exists() {
        let text = "| rule | here | shown by |\n|---|---|---|\n| a | done | `one` |\n| b | done | `two`, `three` |\n\
                    | c | done | by type |\n| d | done | |\n\n| x | y |\n|---|---|\n| `z` | |\n\n| rule | here |\n";
        let mut wrong = Vec::new();
        assert_eq!(judge("t", text, |word| word != "three", &mut wrong), 4);
        let lines: Vec<_> = wrong.iter().map(|text| text.split(':').nth(1).unwrap()).collect();
        assert_eq!(lines, ["4", "6", "12"], "{wrong:?}");
    }
}

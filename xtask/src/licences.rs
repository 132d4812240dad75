//! The licence and source check that needs no tool except cargo.

use std::fs;
use std::path::Path;

use crate::metadata::everything;
use crate::sh::Outcome;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Compares every dependency with the `allow` list of deny.toml.
pub(crate) fn run(deny_toml: &Path) -> Outcome {
    let text =
        fs::read_to_string(deny_toml).map_err(|err| format!("{}: {err}", deny_toml.display()))?;
    let allowed = allow_list(&text).ok_or("deny.toml: no `allow` list under [licenses]")?;
    let mut wrong = Vec::new();
    let mut count = 0;
    for package in everything()?.iter().filter(|p| p.source.is_some()) {
        count += 1;
        let name = format!("{} {}", package.name, package.version);
        match &package.licence {
            None => wrong.push(format!("{name}: no licence expression")),
            Some(licence) if !permitted(licence, &allowed) => {
                wrong.push(format!("{name}: {licence}"));
            }
            Some(_) => {}
        }
        if package.source.as_deref() != Some(CRATES_IO) {
            wrong.push(format!("{name}: not from crates.io"));
        }
    }
    if !wrong.is_empty() {
        return Err(format!("dependencies against deny.toml:\n  {}", wrong.join("\n  ")));
    }
    println!("deny: {count} dependencies, every licence allowed, all from crates.io");
    Ok(())
}

/// The quoted strings of `allow = [ ... ]` in the section `[licenses]`.
fn allow_list(toml: &str) -> Option<Vec<String>> {
    let section = toml.split_once("[licenses]")?.1;
    let list = section.split_once("allow = [")?.1.split_once(']')?.0;
    Some(list.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

/// Whether an SPDX expression can be satisfied by allowed licences alone: `AND` needs both sides,
/// `OR` one.
fn permitted(expression: &str, allowed: &[String]) -> bool {
    // The old form of OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut at = 0;
    let answer = any(&words, &mut at, allowed);
    answer && at == words.len()
}

fn any(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut answer = all(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        answer |= all(words, at, allowed);
    }
    answer
}

fn all(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut answer = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        answer &= one(words, at, allowed);
    }
    answer
}

fn one(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let answer = any(words, at, allowed);
        *at += 1;
        return answer;
    }
    let mut name = (*word).to_owned();
    if words.get(*at) == Some(&"WITH") {
        name = format!("{name} WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
    }
    allowed.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_understood() {
        let allowed = ["MIT", "Apache-2.0 WITH LLVM-exception", "BSD-3-Clause"].map(Into::into);
        for yes in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "(MIT OR GPL-3.0) AND BSD-3-Clause",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        ] {
            assert!(permitted(yes, &allowed), "{yes}");
        }
        for no in ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "(MIT", "MIT MIT", ""] {
            assert!(!permitted(no, &allowed), "{no}");
        }
    }

    #[test]
    fn the_list_is_found() {
        let toml = "[bans]\n[licenses]\nconfidence-threshold = 0.9\nallow = [\n  \"MIT\", # ours\n  \"ISC\",\n]\n";
        assert_eq!(allow_list(toml), Some(vec!["MIT".to_owned(), "ISC".to_owned()]));
    }
}

//! Comments and prose keep within 100 columns, and each row of a table is on one line. rustfmt
//! handles the code, and leaves comments and literals as they are.

use std::fs;
use std::path::{Path, PathBuf};

use crate::sh::{Outcome, root};
use crate::source::rust_files;

const MOST: usize = 100;

/// Directories with prose, besides the sources.
const PROSE: [&str; 3] = ["", "docs", "bench"];

/// The marks of generated pages: their lines are as long as their entries.
const GENERATED: [&str; 2] = ["Written by `cargo xtask", "Generated from"];

/// Checks every source file and every page.
pub(crate) fn run() -> Outcome {
    let mut wrong = Vec::new();
    for file in rust_files(root())? {
        let text = read(&file)?;
        let comments = text.lines().map(|line| line.trim_start().starts_with("//").then_some(line));
        look(&file, comments, &mut wrong);
    }
    for file in pages()? {
        let text = read(&file)?;
        if !GENERATED.iter().any(|words| text.contains(words)) {
            look(&file, text.lines().map(Some), &mut wrong);
        }
    }
    if !wrong.is_empty() {
        let wrong = wrong.join("\n  ");
        return Err(format!(
            "beyond {MOST} columns, or a row of a table on several lines:\n  {wrong}"
        ));
    }
    println!("columns: comments and prose within {MOST}");
    Ok(())
}

fn read(file: &Path) -> Outcome<String> {
    fs::read_to_string(file).map_err(|err| format!("{}: {err}", file.display()))
}

fn pages() -> Outcome<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for directory in PROSE {
        let directory = root().join(directory);
        let entries =
            fs::read_dir(&directory).map_err(|err| format!("{}: {err}", directory.display()))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        pages.extend(paths.filter(|path| path.extension().is_some_and(|ext| ext == "md")));
    }
    pages.sort();
    Ok(pages)
}

/// Checks the lines of a file; some lines do not count.
fn look<'a>(file: &Path, lines: impl Iterator<Item = Option<&'a str>>, wrong: &mut Vec<String>) {
    let mut is_code = false;
    for (number, line) in lines.enumerate() {
        let words = line.unwrap_or_default().trim_start().trim_start_matches(['/', '!']).trim();
        if words.starts_with("```") {
            is_code = !is_code;
        }
        let is_long = line.is_some_and(|line| line.chars().count() > MOST) && is_prose(words);
        if !is_code && (is_long || is_torn(words)) {
            let shown = file.strip_prefix(root()).unwrap_or(file).display();
            wrong.push(format!("{shown}:{}", number + 1));
        }
    }
}

/// Whether a line is only the beginning or the end of a table's row.
fn is_torn(words: &str) -> bool {
    words.len() > 1 && words.starts_with("| ") != words.ends_with(" |") && !words.ends_with("--|")
}

/// Whether a line could be broken. Rows of tables, headings, link targets and single words cannot.
fn is_prose(words: &str) -> bool {
    let is_kept = ["|", "#", "["].iter().any(|begin| words.starts_with(begin));
    !is_kept && words.split_whitespace().nth(1).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> usize {
        let mut wrong = Vec::new();
        look(Path::new("a.md"), text.lines().map(Some), &mut wrong);
        wrong.len()
    }

    #[test]
    fn lines_that_could_be_broken_count() {
        let long = "a word ".repeat(20);
        assert_eq!(wrong(&long), 1);
        assert_eq!(wrong(&format!("* {long}\n/// {long}\nshort\n")), 2);
        for kept in [format!("| {long} |"), format!("```\n{long}\n```"), "x".repeat(120)] {
            assert_eq!(wrong(&kept), 0, "{kept}");
        }
    }

    #[test]
    fn a_row_on_several_lines_counts() {
        assert_eq!(wrong("| a | b |\n|---|---|\n| one | two |\n"), 0);
        assert_eq!(wrong("//! | one | two and\n//! more |\n"), 2);
        assert_eq!(wrong("//! | one |\n//! and two | three |\n"), 1);
        assert_eq!(wrong("```\n| one | two\n```\n"), 0);
    }
}

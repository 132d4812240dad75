//! `cargo xtask site`: the pages of docs as a site, in `target/site`, and whether its links lead
//! somewhere.
//!
//! mdBook makes it (`site/book.toml`, `docs/SUMMARY.md`). Pages name each other as `docs/NAME.md`,
//! which a reader of the repository can open; on the site those words become links.

mod links;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::sh::{Outcome, check, root, target_dir, tool};
use crate::suites::wheels;

/// Builds and checks the site. Returns the reason if mdBook cannot be obtained.
pub(crate) fn run() -> Outcome<Option<String>> {
    let mdbook = match wheels("mdbook") {
        Ok(packages) => packages.join("bin/mdbook"),
        Err(why) => return Ok(Some(why)),
    };
    let (book, site) = (target_dir().join("book"), target_dir().join("site"));
    gather(&book)?;
    let _ = fs::remove_dir_all(&site);
    check(tool(mdbook).arg("build").arg(&book).arg("--dest-dir").arg(&site))?;
    let pages = pages(&site)?;
    let mut wrong = Vec::new();
    for page in &pages {
        let linked = links::link_pages(&read(page)?, |name| {
            let is_page = site.join(format!("{name}.html")).exists();
            if !is_page {
                wrong.push(format!("{}: docs/{name}.md", page.display()));
            }
            is_page
        });
        write(page, &linked)?;
    }
    wrong.extend(links::dead(&site, &pages)?);
    if !wrong.is_empty() {
        return Err(format!("links that lead nowhere:\n  {}", wrong.join("\n  ")));
    }
    println!("site: {} pages in {}, and every link leads somewhere", pages.len(), site.display());
    Ok(None)
}

/// Lays out what mdBook reads: `site/book.toml`, the pages of docs, and their summary, to which
/// pages are added that it does not have.
fn gather(book: &Path) -> Outcome {
    let (docs, src) = (root().join("docs"), book.join("src"));
    let _ = fs::remove_dir_all(book);
    fs::create_dir_all(&src).map_err(|err| format!("{}: {err}", src.display()))?;
    let mut summary = read(&docs.join("SUMMARY.md"))?;
    let listed: BTreeSet<String> = listed(&summary).map(str::to_owned).collect();
    let there = names(&docs)?;
    let absent: Vec<&String> = listed.difference(&there).collect();
    if !absent.is_empty() {
        return Err(format!("docs/SUMMARY.md has pages that docs does not have: {absent:?}"));
    }
    for name in &there {
        write(&src.join(name), &read(&docs.join(name))?)?;
    }
    for name in there.difference(&listed) {
        println!("site: docs/SUMMARY.md lacks {name}; it comes last");
        summary.push_str(&format!("- [{}]({name})\n", name.trim_end_matches(".md")));
    }
    write(&src.join("SUMMARY.md"), &summary)?;
    write(&book.join("book.toml"), &read(&root().join("site/book.toml"))?)
}

/// The pages that a summary names.
fn listed(summary: &str) -> impl Iterator<Item = &str> {
    summary.lines().filter_map(|line| line.split_once("](")?.1.strip_suffix(')'))
}

/// The pages of docs, except for the summary.
fn names(docs: &Path) -> Outcome<BTreeSet<String>> {
    let entries = fs::read_dir(docs).map_err(|err| format!("{}: {err}", docs.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md").collect())
}

/// The HTML files of the site.
fn pages(site: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = fs::read_dir(site).map_err(|err| format!("{}: {err}", site.display()))?;
    let all = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut pages: Vec<PathBuf> =
        all.filter(|path| path.extension().is_some_and(|is| is == "html")).collect();
    pages.sort();
    Ok(pages)
}

fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|err| format!("{}: {err}", path.display()))
}

fn write(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|err| format!("{}: {err}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_the_summary_is_there_and_is_named_once() {
        let docs = root().join("docs");
        let summary = read(&docs.join("SUMMARY.md")).expect("it is there");
        let all: Vec<&str> = listed(&summary).collect();
        let there = names(&docs).expect("docs is there");
        assert!(all.len() > 10 && all.iter().all(|name| there.contains(*name)), "{all:?}");
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
    }
}

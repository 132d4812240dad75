//! Which files of a crate use which: the paths in the code are followed to their files.
//!
//! A re-export (`pub use`) is followed to its origin, so that a façade makes no circle of the files
//! behind it.

use std::collections::{BTreeMap, BTreeSet};

/// A path within a crate: names from its root on.
type Path = Vec<String>;

/// The modules of a crate, each a file.
#[derive(Debug, Default)]
pub(super) struct Modules {
    files: Vec<Path>,
    /// What a module re-exports: the name, and its origin.
    passed_on: BTreeMap<(Path, String), Path>,
    /// The paths in a file's code.
    used: Vec<Vec<Path>>,
}

impl Modules {
    /// Adds a file: its module's path, and its code without comments, literals and tests.
    pub(super) fn add(&mut self, module: Path, code: &str) {
        let mut used = Vec::new();
        let words = words(code);
        let pairs = words.windows(2).filter(|pair| pair[0] == "mod");
        let children: Vec<&str> = pairs.map(|pair| pair[1].as_str()).collect();
        let mut at = 0;
        while at < words.len() {
            if words[at] == "use" {
                let passes = at > 0 && (words[at - 1] == "pub" || words[at - 1] == ")");
                let mut leaves = Vec::new();
                at = tree(&words, at + 1, &[], &mut leaves);
                for (path, name) in leaves {
                    let Some(path) = absolute(&module, &children, &path) else { continue };
                    if passes {
                        self.passed_on.insert((module.clone(), name), path);
                    } else {
                        used.push(path);
                    }
                }
            } else if (is_start(&words[at]) || children.contains(&&*words[at]))
                && words.get(at + 1) == Some(&"::".to_owned())
            {
                let mut path = vec![words[at].clone()];
                while words.get(at + 1).is_some_and(|word| word == "::")
                    && words.get(at + 2).is_some_and(|word| is_name(word))
                {
                    path.push(words[at + 2].clone());
                    at += 2;
                }
                used.extend(absolute(&module, &children, &path));
                at += 1;
            } else {
                at += 1;
            }
        }
        self.files.push(module);
        self.used.push(used);
    }

    /// Which files each file uses.
    fn edges(&self) -> Vec<BTreeSet<usize>> {
        let of = |from: usize| {
            let to = self.used[from].iter().filter_map(|path| self.file_of(path.clone(), 8));
            to.filter(|to| *to != from).collect()
        };
        (0..self.files.len()).map(of).collect()
    }

    fn name(&self, file: usize) -> String {
        match &*self.files[file] {
            [] => "lib".to_owned(),
            path => path.join("::"),
        }
    }

    /// What each file of a circle uses of the others in it.
    pub(super) fn uses_within(&self, circle: &[String]) -> Vec<(String, Vec<String>)> {
        let edges = self.edges();
        let within = |to: &String| circle.contains(to);
        let files = (0..edges.len()).filter(|file| within(&self.name(*file)));
        let uses = |file: usize| edges[file].iter().map(|to| self.name(*to)).filter(within);
        files.map(|file| (self.name(file), uses(file).collect())).collect()
    }

    /// Circles of files that use each other, the largest first.
    pub(super) fn circles(&self) -> Vec<Vec<String>> {
        let edges = self.edges();
        let reach: Vec<BTreeSet<usize>> =
            (0..edges.len()).map(|from| reach(&edges, from)).collect();
        let mut circles: Vec<Vec<usize>> = Vec::new();
        for file in 0..edges.len() {
            if circles.iter().any(|circle| circle.contains(&file)) || !reach[file].contains(&file) {
                continue;
            }
            let back = |other: &usize| reach[*other].contains(&file);
            circles.push(reach[file].iter().copied().filter(back).collect());
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        let name = |file: &usize| self.name(*file);
        circles.iter().map(|circle| circle.iter().map(name).collect()).collect()
    }

    /// The file that defines what a path names.
    fn file_of(&self, path: Path, steps: usize) -> Option<usize> {
        for len in (0..=path.len()).rev() {
            let Some(file) = self.files.iter().position(|module| *module == path[..len]) else {
                continue;
            };
            let Some(name) = path.get(len) else { return Some(file) };
            return match self.passed_on.get(&(path[..len].to_vec(), name.clone())) {
                Some(from) if steps > 0 => {
                    let whole = from.iter().chain(&path[len + 1..]).cloned().collect();
                    self.file_of(whole, steps - 1)
                }
                _ => Some(file),
            };
        }
        None
    }
}

/// Everything that can be reached, in one or more steps.
fn reach(edges: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut next: Vec<usize> = edges[from].iter().copied().collect();
    while let Some(file) = next.pop() {
        if found.insert(file) {
            next.extend(&edges[file]);
        }
    }
    found
}

/// The leaves of a `use` from `at` on, each with the name under which it is used. Returns where the
/// tree ends.
fn tree(
    words: &[String],
    mut at: usize,
    above: &[String],
    leaves: &mut Vec<(Path, String)>,
) -> usize {
    let mut path = above.to_vec();
    loop {
        match words.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while words.get(at).is_some_and(|word| word != "}") {
                    at = tree(words, at, &path, leaves);
                    at += usize::from(words.get(at).is_some_and(|word| word == ","));
                }
                return at + 1;
            }
            Some("::") => at += 1,
            Some("as") => {
                leaves.push((path, words.get(at + 1).cloned().unwrap_or_default()));
                return at + 2;
            }
            Some("*") => {
                leaves.push((path, "*".to_owned()));
                return at + 1;
            }
            Some(word) if is_name(word) => {
                if word != "self" || path.is_empty() {
                    path.push(word.to_owned());
                }
                at += 1;
            }
            _ => {
                let name = path.last().cloned().unwrap_or_default();
                leaves.push((path, name));
                return at;
            }
        }
    }
}

/// A path relative to the root; `None` if it leads to another crate.
fn absolute(module: &[String], children: &[&str], path: &[String]) -> Option<Path> {
    let first = path.first()?;
    let mut at = match first.as_str() {
        "crate" => Path::new(),
        "super" => module.split_last()?.1.to_vec(),
        child if child == "self" || children.contains(&child) => module.to_vec(),
        _ => return None,
    };
    for word in &path[usize::from(is_start(first))..] {
        match word.as_str() {
            "super" => drop(at.pop()?),
            word => at.push(word.to_owned()),
        }
    }
    Some(at)
}

fn is_start(word: &str) -> bool {
    matches!(word, "crate" | "self" | "super")
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names, `::`, and single punctuation marks.
fn words(code: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let len = match first {
            c if is_part(c) => rest.find(|c| !is_part(c)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        words.push(rest[..len].to_owned());
        rest = rest[len..].trim_start();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Modules {
        let mut modules = Modules::default();
        for (module, code) in files {
            let path = module.split("::").filter(|name| !name.is_empty()).map(str::to_owned);
            modules.add(path.collect(), code);
        }
        modules
    }

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        read(files).circles()
    }

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        let two = [
            ("", "mod a; mod b;"),
            ("a", "use crate::b::{B, C as D};"),
            ("b", "fn f(_: super::a::A) {}"),
        ];
        assert_eq!(circles(&two), [["a", "b"]]);
        let [a, b] = ["a", "b"].map(str::to_owned);
        let within = read(&two).uses_within(&[a.clone(), b.clone()]);
        assert_eq!(within, [(a.clone(), vec![b.clone()]), (b, vec![a])]);
        assert!(circles(&two[..2]).is_empty());
    }

    #[test]
    fn re_exports_are_followed_to_their_origin() {
        let facade = "pub use a::A; pub(crate) use self::b::B; mod a; mod b;";
        assert!(circles(&[("", facade), ("a", "use crate::B;"), ("b", "")]).is_empty());
        let both = [("", facade), ("a", "use crate::B;"), ("b", "use crate::A;")];
        assert_eq!(circles(&both), [["a", "b"]]);
    }

    #[test]
    fn a_child_that_uses_its_parent_is_in_a_circle_with_it_if_that_uses_the_child() {
        let child = ("a::c", "use super::A;");
        assert!(circles(&[("a", "mod c;"), child]).is_empty());
        assert_eq!(circles(&[("a", "mod c; fn f() { self::c::g() }"), child]), [["a", "a::c"]]);
    }
}

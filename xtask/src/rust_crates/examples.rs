//! The crates' own examples, run as their comments say: `interop/rust-crates/examples.toml` has the
//! command lines, and what each prints if it works.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::sh::{Outcome, root};
use crate::suites::Verdict;

/// Where they are listed.
pub(super) const FILE: &str = "interop/rust-crates/examples.toml";

/// All of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Examples {
    example: Vec<Example>,
}

/// Programs that are run together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Example {
    /// The crate.
    of: String,
    names: Vec<String>,
    /// A script of sh. None: it is skipped.
    #[serde(default)]
    pub(super) run: String,
    /// What it prints.
    #[serde(default)]
    says: Vec<String>,
    /// The configuration of the NICs, beside the list.
    #[serde(default)]
    pub(super) config: Option<String>,
}

impl Examples {
    pub(super) fn read() -> Outcome<Self> {
        let text = fs::read_to_string(root().join(FILE)).map_err(|err| format!("{FILE}: {err}"))?;
        Self::parse(&text).map_err(|err| format!("{FILE}: {err}"))
    }

    fn parse(text: &str) -> Outcome<Self> {
        let examples: Self = toml::from_str(text).map_err(|err| err.to_string())?;
        for example in &examples.example {
            let Example { names, run, says, .. } = example;
            if names.is_empty() || run.is_empty() != says.is_empty() {
                return Err(format!("{names:?}: a `run` needs what it `says`"));
            }
        }
        Ok(examples)
    }

    pub(super) fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Example> {
        self.example.iter().filter(move |example| example.of == name)
    }
}

impl Example {
    /// What the names of its results are.
    pub(super) fn tests(&self) -> impl Iterator<Item = String> {
        self.names.iter().map(|name| test(name))
    }

    /// The result, if it is not to be run.
    pub(super) fn skipped(&self) -> Option<Verdict> {
        self.run.is_empty().then(|| Verdict::Skipped("nothing runs it".to_owned()))
    }

    /// The result of a run that printed this.
    pub(super) fn verdict(&self, succeeded: bool, printed: &str) -> Verdict {
        let missing = self.says.iter().find(|words| !printed.contains(*words));
        match missing {
            _ if !succeeded => Verdict::Failed(last_line(printed)),
            Some(words) => Verdict::Failed(format!("it does not say {words:?}")),
            None => Verdict::Passed,
        }
    }
}

/// What results say of an example.
fn test(name: &str) -> String {
    format!("examples/{name}.rs")
}

fn last_line(printed: &str) -> String {
    printed.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it says nothing").to_owned()
}

/// Examples of a crate's sources that the list does not have.
pub(super) fn unlisted<'a>(
    source: &Path,
    listed: impl Iterator<Item = &'a Example>,
) -> Outcome<Vec<String>> {
    let listed: BTreeSet<&str> =
        listed.flat_map(|example| example.names.iter().map(String::as_str)).collect();
    let mut found = Vec::new();
    // Of the package itself, or of the packages of a workspace.
    let mut dirs = vec![source.join("examples")];
    for entry in fs::read_dir(source).map_err(|err| format!("{}: {err}", source.display()))? {
        let entry = entry.map_err(|err| err.to_string())?;
        dirs.push(entry.path().join("examples"));
    }
    for file in dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten() {
        let path = file.map_err(|err| err.to_string())?.path();
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if is_rust && !listed.contains(name) {
            found.push(test(name));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
[[example]]
of = \"a\"
names = [\"client\", \"server\"]
run = \"server & client\"
says = [\"hello\", \"bye\"]
[[example]]
of = \"b\"
names = [\"cloud\"]
";

    #[test]
    fn it_works_if_it_ends_well_and_says_all_words() {
        let examples = Examples::parse(LIST).unwrap();
        let of_a: Vec<_> = examples.of("a").collect();
        let [pair] = of_a[..] else { panic!("{of_a:?}") };
        assert_eq!(pair.tests().collect::<Vec<_>>(), ["examples/client.rs", "examples/server.rs"]);
        assert!(pair.skipped().is_none());
        assert_eq!(pair.verdict(true, "hello\nbye\n"), Verdict::Passed);
        let failed = |why: &str| Verdict::Failed(why.to_owned());
        assert_eq!(pair.verdict(true, "hello"), failed("it does not say \"bye\""));
        assert_eq!(pair.verdict(false, "hello\nbye\nno GID\n\n"), failed("no GID"));
        assert_eq!(pair.verdict(false, ""), failed("it says nothing"));
        let skipped = examples.of("b").next().unwrap().skipped();
        assert_eq!(skipped, Some(Verdict::Skipped("nothing runs it".to_owned())));
    }

    #[test]
    fn an_example_that_is_run_says_something() {
        let silent = LIST.replace("says = [\"hello\", \"bye\"]", "");
        assert!(Examples::parse(&silent).unwrap_err().contains("client"));
        let nameless = LIST.replace("\"cloud\"", "");
        assert!(Examples::parse(&nameless).is_err());
    }

    #[test]
    fn the_list_is_right() {
        Examples::read().unwrap();
    }
}

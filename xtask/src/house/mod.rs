//! How the code is divided: the files of each crate, and where walls between them are missing. A
//! checked-in table lists what exceeds a goal; it may shrink but not grow.

mod modules;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clap::Args;

use self::modules::Modules;
use crate::metadata::workspace;
use crate::sh::{Outcome, root};
use crate::source::{code, count_word, rust_files};

/// The crates to check: those that are shipped.
const BELOW: &str = "/crates/";

/// Where the table is.
const FILE: &str = "docs/HOUSE.md";

/// The carriers that a QP may have, and the names of packet observers. The check searches for them
/// in the crate `device`; the modules of the observers may name them.
const CARRIERS: [&str; 4] = ["Route::None", "Route::Loopback", "Route::Shm", "Route::Udp"];
const OBSERVERS: [&str; 8] =
    ["Tap", "tap", "Tracer", "tracer", "Injected", "injected", "Observers", "observers"];
const ROOMS_OF_OBSERVERS: [&str; 2] = ["observe", "observed"];

/// The most files that may use each other in a circle, the most fields of a struct that a lock
/// guards, and the most files that may name a carrier's variant, and an observer.
const MAX_CIRCLE: usize = 3;
const MAX_FIELDS: usize = 12;
const MAX_CARRIERS: usize = 2;
const MAX_OBSERVERS: usize = 1;

/// The options of `cargo xtask house`.
#[derive(Args)]
pub(crate) struct Options {
    /// Write the table of what exceeds a goal.
    #[arg(long)]
    write: bool,
    /// Print what each file of this crate's largest circle uses of the others in it.
    #[arg(long, value_name = "CRATE")]
    circle: Option<String>,
}

/// What is reported about a crate.
#[derive(Default)]
struct Facts {
    files: usize,
    lines: usize,
    longest: (usize, String),
    pub_crate: usize,
    circles: Vec<Vec<String>>,
    /// What each file of the largest circle uses of the others in it.
    within: Vec<(String, Vec<String>)>,
    /// Structs that a lock guards, or that are part of one, and how many fields they have.
    locked: Vec<(String, usize)>,
    carriers: usize,
    observers: usize,
}

/// Prints all of it.
pub(crate) fn run(options: &Options) -> Outcome {
    let all = read()?;
    if let Some(named) = &options.circle {
        let Some((_, facts)) = all.iter().find(|(name, _)| name == named) else {
            return Err(format!("no crate {named} is shipped"));
        };
        for (file, uses) in &facts.within {
            println!("{file}: {}", uses.join(", "));
        }
        return Ok(());
    }
    let beyond = beyond(&all);
    print!("{}\n{}\n{}", table(&all), circles(&all), rows(&beyond));
    if options.write {
        let page = format!("{}\n{}", HEAD.trim_start(), rows(&beyond));
        fs::write(root().join(FILE), page).map_err(|err| format!("{FILE}: {err}"))?;
    }
    Ok(())
}

const HEAD: &str = "
# Walls that are missing

Written by `cargo xtask house --write`; `cargo xtask house` prints more. Each line is beyond its
goal: 3 files that use each other in a circle, 12 fields of a struct that a lock guards, 2 files of
`device` that name a carrier's variant, and 1 that names what records packets or makes faults.
`cargo xtask deps-check` refuses a line that is new, and a number that has grown.
";

/// Compares with the table.
pub(crate) fn compare() -> Outcome {
    let text = fs::read_to_string(root().join(FILE)).map_err(|err| format!("{FILE}: {err}"))?;
    let worse = worse(&text, &beyond(&read()?));
    match &*worse {
        [] => println!("house: no wall is missing that {FILE} does not have"),
        worse => return Err(format!("walls are missing:\n  {}", worse.join("\n  "))),
    }
    Ok(())
}

/// The rows that exceed the table.
fn worse(text: &str, beyond: &[(String, usize)]) -> Vec<String> {
    let known: BTreeMap<&str, usize> = text
        .lines()
        .filter_map(|line| {
            let (name, number) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
            Some((name, number.parse().ok()?))
        })
        .collect();
    let is_worse = |(name, number): &&(String, usize)| {
        known.get(name.as_str()).is_none_or(|known| number > known)
    };
    let say = |(name, number): &(String, usize)| match known.get(name.as_str()) {
        Some(known) => format!("{name}: {number}, and {FILE} has {known}"),
        None => format!("{name}: {number}"),
    };
    beyond.iter().filter(is_worse).map(say).collect()
}

/// The files of each circle.
fn circles(all: &[(String, Facts)]) -> String {
    let mut out = String::new();
    for (name, facts) in all {
        for circle in &facts.circles {
            let _ = writeln!(out, "{name}: {}", circle.join(", "));
        }
    }
    out
}

fn rows(beyond: &[(String, usize)]) -> String {
    if beyond.is_empty() {
        return String::from("None.\n");
    }
    let mut out = String::from("| what | how many |\n|---|---|\n");
    for (name, number) in beyond {
        let _ = writeln!(out, "| {name} | {number} |");
    }
    out
}

/// The rows that exceed a goal.
fn beyond(all: &[(String, Facts)]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut add = |name: String, number: usize, most: usize| {
        if number > most {
            found.push((name, number));
        }
    };
    for (name, facts) in all {
        let circle = facts.circles.first().map_or(0, Vec::len);
        add(format!("{name}: files in the largest circle"), circle, MAX_CIRCLE);
        for (of, fields) in &facts.locked {
            add(format!("{name}: fields of `{of}`, behind a lock"), *fields, MAX_FIELDS);
        }
        add(format!("{name}: files that name a carrier's variant"), facts.carriers, MAX_CARRIERS);
        add(format!("{name}: files that name an observer"), facts.observers, MAX_OBSERVERS);
    }
    found
}

/// Checks every crate that is shipped.
fn read() -> Outcome<Vec<(String, Facts)>> {
    let mut all = Vec::new();
    for package in workspace()? {
        let dir = package.manifest.parent().expect("a manifest lies in a directory").to_owned();
        if dir.to_string_lossy().contains(BELOW) {
            let is_device = package.name == "device";
            all.push((package.name, facts(&dir.join("src"), is_device)?));
        }
    }
    Ok(all)
}

fn table(all: &[(String, Facts)]) -> String {
    let mut out = String::from(
        "| crate | files | lines | longest file | `pub(crate)` | circles of files | the largest |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for (name, facts) in all {
        let (lines, file) = &facts.longest;
        let largest = facts.circles.first().map_or(0, Vec::len);
        let Facts { files, lines: sum, pub_crate, circles, .. } = facts;
        let circles = circles.len();
        let _ = writeln!(
            out,
            "| {name} | {files} | {sum} | {file} {lines} | {pub_crate} | {circles} | {largest} |"
        );
    }
    out
}

/// Reads a crate. Carriers and observers are those of the crate `device`.
fn facts(src: &Path, is_device: bool) -> Outcome<Facts> {
    let mut facts = Facts::default();
    let mut modules = Modules::default();
    let mut codes = Vec::new();
    for path in rust_files(src)? {
        let shown = path.strip_prefix(src).expect("a file below its directory");
        let module = module(shown);
        if module.iter().any(|name| name == "tests") {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|err| format!("{}: {err}", path.display()))?;
        let lines = text.lines().count();
        facts.files += 1;
        facts.lines += lines;
        facts.longest = facts.longest.max((lines, shown.display().to_string()));
        let code = without_tests(&code(&text)).to_owned();
        facts.pub_crate += code.matches("pub(crate)").count();
        if is_device {
            let may_observe = module.iter().any(|name| ROOMS_OF_OBSERVERS.contains(&&**name));
            let observes = OBSERVERS.iter().any(|name| count_word(&code, name) > 0);
            let carries = CARRIERS.iter().any(|name| code.contains(name));
            facts.carriers += usize::from(carries);
            facts.observers += usize::from(observes && !may_observe);
        }
        modules.add(module, &code);
        codes.push(code);
    }
    facts.circles = modules.circles();
    facts.within =
        facts.circles.first().map_or_else(Vec::new, |circle| modules.uses_within(circle));
    facts.locked = locked(&codes);
    Ok(facts)
}

/// The path of a file's module.
fn module(file: &Path) -> Vec<String> {
    let whole = file.with_extension("");
    let mut path: Vec<String> =
        whole.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if path.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        path.pop();
    }
    path
}

/// The part before a file's own tests, which are at its end.
fn without_tests(code: &str) -> &str {
    code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

/// Structs in a mutex or a read-write lock, and structs that these hold by value.
fn locked(codes: &[String]) -> Vec<(String, usize)> {
    let structs: BTreeMap<&str, Vec<&str>> = codes.iter().flat_map(|code| structs(code)).collect();
    let is_guarded = |name: &str| {
        let within = [format!("Mutex<{name}>"), format!("RwLock<{name}>")];
        codes.iter().any(|code| within.iter().any(|lock| code.contains(lock.as_str())))
    };
    let guarded: Vec<&str> = structs.keys().copied().filter(|name| is_guarded(name)).collect();
    let held =
        |name: &&str| guarded.contains(name) || guarded.iter().any(|by| structs[by].contains(name));
    let listed = structs.keys().copied().filter(held);
    listed.map(|name| (name.to_owned(), structs[name].len())).collect()
}

/// The structs of a file, each with the types of its fields.
fn structs(code: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    for part in code.split("struct ").skip(1) {
        let name = part.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
        let Some(open) = part.find(['{', ';', '(']).filter(|at| part[*at..].starts_with('{'))
        else {
            continue;
        };
        let body = &part[open + 1..];
        let body = &body[..body.find("\n}").unwrap_or(0)];
        let fields = body.lines().filter_map(|line| {
            // Fields are indented by four spaces, one per line.
            let line =
                line.strip_prefix("    ").filter(|line| !line.starts_with([' ', '}', '#']))?;
            let (_, of) = line.split_once(": ")?;
            Some(of.trim_end_matches(','))
        });
        found.push((name, fields.collect()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_behind_a_lock_is_listed_with_what_it_holds() {
        let code = "struct Room {\n    lock: Mutex<Inner>,\n}\nstruct Inner {\n    a: u8,\n    b: Held,\n    c: Vec<\n        u8,\n    >,\n}\nstruct Held {\n    pub(crate) d: u8,\n}\nstruct Free {\n    e: u8,\n}\n";
        let listed = locked(&[code.to_owned()]);
        assert_eq!(listed, [("Held".to_owned(), 1), ("Inner".to_owned(), 3)]);
    }

    #[test]
    fn new_and_grown_rows_are_refused_and_shrunk_ones_are_not() {
        let row = |name: &str, number| (name.to_owned(), number);
        let text = rows(&[row("a: files", 5), row("b: files", 7)]);
        assert!(worse(&text, &[row("a: files", 5), row("b: files", 6)]).is_empty());
        let found = worse(&text, &[row("a: files", 6), row("c: files", 4)]);
        assert_eq!(found, [format!("a: files: 6, and {FILE} has 5"), "c: files: 4".to_owned()]);
    }

    #[test]
    fn files_have_the_names_of_their_modules() {
        let of = |file: &str| module(Path::new(file)).join("::");
        assert_eq!(
            [of("lib.rs"), of("a.rs"), of("a/mod.rs"), of("a/b.rs")],
            ["", "a", "a", "a::b"]
        );
    }
}

//! The commands of docs/TUTORIAL.md and docs/RECIPES.md, run as they stand there.
//!
//! A section's blocks of `sh` run one after the other in an empty directory, in a network namespace
//! so that their ports are free. The block of `text` behind one has what it prints: each line, and
//! of a line with `...` what stands around it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use interop::need::{self, Need};
use interop::{Artefacts, Mode, Program, Scratch, Veth, needs};

/// A block of commands, and what it prints.
struct Step {
    commands: String,
    prints: Vec<String>,
}

/// The sections of a page that have commands.
fn sections(page: &str) -> Vec<(String, Vec<Step>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let text = fs::read_to_string(path).expect("a page of docs");
    let mut sections: Vec<(String, Vec<Step>)> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            sections.push((title.to_owned(), Vec::new()));
        }
        let Some(language) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let (_, steps) = sections.last_mut().expect("a block is in a section");
        match language {
            "sh" => steps.push(Step { commands: block.join("\n"), prints: Vec::new() }),
            "text" => {
                let step = steps.last_mut().expect("behind commands");
                let parts = block.iter().flat_map(|line| line.split("..."));
                step.prints.extend(parts.filter(|part| !part.is_empty()).map(str::to_owned));
            }
            other => panic!("{page}: a block of {other:?}"),
        }
    }
    sections.retain(|(_, steps)| !steps.is_empty());
    assert!(!sections.is_empty(), "{page} has no commands");
    sections
}

/// Runs the sections of a page, each alone or, as each one builds on those before, all together.
#[track_caller]
fn run(page: &str, together: bool) {
    let veth = Veth::new();
    let bin = Artefacts::find().peerdma();
    let bin = bin.parent().expect("in a directory").display();
    let mut scratch = Scratch::new();
    for (title, steps) in sections(page) {
        if !together {
            scratch = Scratch::new();
        }
        for (index, step) in steps.iter().enumerate() {
            let mut script = format!("set -e\ncd {}\n", scratch.path().display());
            let _ = writeln!(script, "PATH={bin}:$PATH\n{}", step.commands);
            let out = Program::new("bash")
                .args(["-c", &script])
                .mode(Mode::Plain)
                .in_pid_namespace()
                .in_netns(&veth.left)
                .limit(Duration::from_secs(120))
                .output();
            assert!(out.status.success(), "{page}, {title}, block {}: {out}", index + 1);
            let said = format!("{}{}", out.stdout, out.stderr);
            for part in &step.prints {
                assert!(said.contains(part), "{page}, {title}: no {part:?} in {out}");
            }
        }
    }
}

/// Whether the machine has what the pages use.
fn ready(programs: &[&'static str]) -> Result<(), String> {
    let all = [Need::Root, Need::Namespaces, Need::Program("ip"), Need::Program("ss")];
    let programs = programs.iter().map(|name| Need::Program(name));
    all.into_iter().chain(programs).try_for_each(need::check)
}

#[test]
fn the_tutorial() {
    needs!(Need::Program("bash"));
    if let Err(why) = ready(&["ibv_rc_pingpong"]) {
        return need::skip(&why);
    }
    run("TUTORIAL.md", true);
}

#[test]
fn the_recipes() {
    needs!(Need::Program("bash"), Need::Python("pyverbs"));
    let programs = [
        "ibv_devinfo",
        "rping",
        "rdma",
        "ucx_perftest",
        "fi_info",
        "nc",
        "mpirun",
        "mpicc",
        "python3",
    ];
    if let Err(why) = ready(&programs) {
        return need::skip(&why);
    }
    run("RECIPES.md", false);
}

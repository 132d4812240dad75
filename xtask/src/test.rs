//! `cargo xtask test`: runs the groups, one after another, and prints the sum.

use std::fs;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::counts::Counts;
use crate::groups::{self, Context, GROUPS, Group, Job, Tested};
use crate::load::Load;
use crate::report::{self, Line};
use crate::setup;
use crate::sh::{Outcome, target_dir};

/// The options of `cargo xtask test`.
#[derive(Args)]
pub(crate) struct Options {
    /// Install what the tests need first.
    #[arg(long)]
    setup: bool,
    /// Run only this group (may be repeated).
    #[arg(long = "group", value_name = "NAME")]
    groups: Vec<String>,
    /// What must not be skipped.
    #[arg(long, value_enum, default_value_t = Require::Nothing)]
    require: Require,
    /// Everything that a group can test, however long it takes (docs/RXE.md).
    #[arg(long)]
    full: bool,
    /// List the groups.
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, Eq, PartialEq, ValueEnum)]
enum Require {
    /// A test that cannot run is reported.
    Nothing,
    /// A test that cannot run fails.
    All,
}

impl Options {
    /// The options of CI.
    pub(crate) fn ci() -> Self {
        Self { setup: true, groups: Vec::new(), require: Require::All, full: false, list: false }
    }
}

/// Runs the chosen groups; the last line is `N passed, N failed`.
pub(crate) fn run(options: &Options) -> Outcome {
    if options.list {
        for group in GROUPS {
            let long = if group.job.is_long() { " (with --full)" } else { "" };
            println!("{:<12} {:>4} s  {}{long}", group.name, group.budget.as_secs(), group.what);
        }
        return Ok(());
    }
    let chosen = choose(options)?;
    if options.setup {
        setup::run(false)?;
    }
    let mut lines = Vec::new();
    for group in chosen {
        println!("\n=== {}: {}", group.name, group.what);
        lines.push(run_group(group, options));
    }
    report::print(&lines);
    for group in GROUPS.iter().filter(|group| options.groups.is_empty() && group.job.is_long()) {
        if !options.full {
            println!("not in this run: {}: {} (with --full)", group.name, group.what);
        }
    }
    conclude(&lines, options.require)
}

/// The groups to run: those named, or all that are not too long.
fn choose(options: &Options) -> Outcome<Vec<&'static Group>> {
    let names = &options.groups;
    for name in names {
        if !GROUPS.iter().any(|group| group.name == name) {
            let known: Vec<_> = GROUPS.iter().map(|group| group.name).collect();
            return Err(format!("no group {name:?}; there are: {}", known.join(" ")));
        }
    }
    let is_chosen = |group: &&Group| match &**names {
        [] => options.full || !group.job.is_long(),
        names => names.iter().any(|name| name == group.name),
    };
    Ok(GROUPS.iter().filter(is_chosen).collect())
}

fn run_group(group: &'static Group, options: &Options) -> Line {
    let context = Context {
        setup: options.setup,
        require_all: options.require == Require::All,
        full: options.full,
        skip_log: target_dir().join(format!("skipped-{}.txt", group.name)),
    };
    // The record of an earlier run, if there was one.
    let _ = fs::remove_file(&context.skip_log);
    let (start, load) = (Instant::now(), Load::now());
    let mut impossible = None;
    let result = match group.job {
        Job::Check(job) => job(&context).map(|()| Counts::default()),
        Job::IfPossible(job) => job(&context).map(|reason| {
            impossible = reason;
            Counts::default()
        }),
        Job::Tests(job) => job(&context),
        Job::Suite(job) => job(&context).and_then(|tested| match tested {
            Tested::Ran(counts) => Ok(counts),
            Tested::Impossible(why) if context.require_all => Err(why),
            Tested::Impossible(why) => {
                impossible = Some(why);
                Ok(Counts::default())
            }
        }),
        Job::Interop { threads } => {
            groups::interop(&context, group.name, threads).map(|tested| match tested {
                Tested::Ran(counts) => counts,
                Tested::Impossible(why) => {
                    impossible = Some(why);
                    Counts::default()
                }
            })
        }
    };
    let took = start.elapsed();
    let load = Load::now().zip(load).map(|(after, before)| after.since(before));
    let skipped = fs::read_to_string(&context.skip_log).unwrap_or_default();
    let (counts, error) = match result {
        Ok(counts) => (counts, None),
        Err(error) => (Counts::default(), Some(error)),
    };
    Line {
        name: group.name,
        budget: group.budget,
        took,
        load,
        counts,
        skipped: skipped.lines().map(str::to_owned).collect(),
        impossible,
        error,
    }
}

fn conclude(lines: &[Line], require: Require) -> Outcome {
    let passed: u64 = lines.iter().map(Line::passed).sum();
    let failed: u64 = lines.iter().map(Line::failed).sum();
    let not_run: u64 = lines.iter().map(Line::not_run).sum();
    let took: Duration = lines.iter().map(|line| line.took).sum();
    println!("\n{} groups in {:.0} seconds", lines.len(), took.as_secs_f64());
    if not_run > 0 {
        println!("{not_run} tests did not run");
    }
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        return Err(format!("{failed} failed"));
    }
    if require == Require::All && not_run > 0 {
        return Err(format!("{not_run} tests did not run, and all were required"));
    }
    if passed == 0 && lines.iter().any(|line| line.impossible.is_some() || line.not_run() > 0) {
        return Err("nothing that was asked for can run here".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(passed: u64, impossible: Option<&str>) -> Line {
        Line {
            name: "suite",
            budget: Duration::from_secs(1),
            took: Duration::ZERO,
            load: None,
            counts: Counts { passed, ..Counts::default() },
            skipped: Vec::new(),
            impossible: impossible.map(str::to_owned),
            error: None,
        }
    }

    #[test]
    fn a_run_in_which_nothing_could_run_is_no_success() {
        let missing = || line(0, Some("its sources are missing"));
        assert!(conclude(&[missing()], Require::Nothing).is_err());
        assert!(conclude(&[missing(), line(3, None)], Require::Nothing).is_ok());
        assert!(conclude(&[line(0, None)], Require::Nothing).is_ok(), "checks have no tests");
    }
}

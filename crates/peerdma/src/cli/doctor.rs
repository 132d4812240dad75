//! `peerdma doctor`: what this host has for RDMA and peer memory, and what it lacks.

use std::path::PathBuf;
use std::process::ExitCode;

use ::doctor::{Fact, Finding, Kind, Report, Use, Verdict};
use serde_json::{Value, json};

/// What `peerdma doctor` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Examine the host whose /proc, /sys, /dev and /boot lie below this directory
    #[arg(long, value_name = "PATH", default_value = "/", hide = true)]
    root: PathBuf,
}

/// Succeeds if it could read the host's files, whatever it found.
pub(crate) fn main(args: Args) -> ExitCode {
    match ::doctor::examine(&args.root) {
        Ok(report) if args.json => println!("{:#}", json(&report)),
        Ok(report) => print!("{report}"),
        Err(error) => {
            eprintln!("peerdma doctor: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The report for programs; docs/DOCTOR.md explains each key.
fn json(report: &Report) -> Value {
    let fact = |fact: &Fact| (fact.key.to_owned(), json!(fact.value));
    let each = |one: &Use| {
        json!({
            "use": one.key,
            "title": one.title,
            "verdict": match one.verdict() {
                Verdict::Works => "works",
                Verdict::DoesNotWork => "does_not_work",
                Verdict::Unknown => "unknown",
            },
            "findings": one.findings.iter().map(finding).collect::<Vec<_>>(),
        })
    };
    let facts: serde_json::Map<_, _> = report.facts.iter().map(fact).collect();
    json!({ "facts": facts, "uses": report.uses.iter().map(each).collect::<Vec<_>>() })
}

fn finding(finding: &Finding) -> Value {
    json!({
        "kind": match finding.kind {
            Kind::Good => "good",
            Kind::Limit => "limit",
            Kind::Unknown => "unknown",
            Kind::Bad => "bad",
        },
        "reason": finding.reason,
        "remedy": finding.remedy,
    })
}

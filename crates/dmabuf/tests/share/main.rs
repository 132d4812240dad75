//! Buffers between processes: every process is this program, with a role from its environment.
//!
//! The exporter ([`bo`]) keeps its memory in a pool file and moves it around; each placement is
//! filled with the number of its epoch. An importer ([`importer`]) in another process reads through
//! its bus window and must find the number that it expects; otherwise the gate let it in wrongly.

mod bo;
mod cases;
mod child;
mod importer;

use std::process::ExitCode;

/// The role of a child.
const ROLE: &str = "PEERDMA_SHARE_ROLE";

fn main() -> ExitCode {
    match std::env::var(ROLE).as_deref() {
        Ok("importer") => return importer::run(),
        Ok("exporter") => return bo::run(),
        _ => {}
    }
    let required = std::env::var("PEERDMA_REQUIRE").unwrap_or_default();
    let wanted: Vec<_> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for (name, case) in cases::ALL {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        match case() {
            Ok(()) => println!("test {name} ... ok"),
            Err(why) => {
                println!("test {name} ... NOT TESTED: {why}");
                assert!(!required.contains("root"), "PEERDMA_REQUIRE names root");
            }
        }
    }
    ExitCode::SUCCESS
}

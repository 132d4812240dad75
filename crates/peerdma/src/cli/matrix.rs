//! `peerdma matrix`: every class of importer against every exporter, as measured, compared with the
//! rules.
//!
//! The NIC imports with each class that it has; a static importer, which no NIC is, attaches to the
//! dma-buf directly. A registered region is written through a queue pair, and the bytes are read
//! back from the buffer: "ok" means that they arrived.

mod by_c;
mod exporters;
mod importers;
mod table;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use exporters::{Buffer, Exporter, Machine};
use importers::{Class, Importer};
use table::Table;

use super::outcome::Outcome;

/// What `peerdma matrix` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare with the table in this file instead of that in docs/semantics.md 2.6
    #[arg(long)]
    expected: Option<PathBuf>,
    /// Measure with a C program that calls libibverbs under `peerdma run` as well, and compare the
    /// two. Needs a C compiler and libibverbs-dev
    #[arg(long)]
    by_c: bool,
}

pub(crate) fn main(args: Args) -> ExitCode {
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("peerdma matrix: {error}");
            ExitCode::from(2)
        }
    }
}

/// Explains the table.
const LEGEND: &str = "\
Each class of importer (columns) registers and uses a buffer of each exporter (rows). \"reaches\": whether there is a\n\
peer-to-peer path between the two devices. A cell is where the memory was (\"ok VRAM\"), or the step that was refused and its errno.\n\n";

/// Measures and prints; returns whether everything is as expected.
fn run(args: &Args) -> Outcome<bool> {
    let expected = match &args.expected {
        Some(path) => {
            let text =
                fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Table::parse(&text)?
        }
        None => Table::of_the_rules(),
    };
    let measured = measure()?;
    let mut deviations = measured.deviations(&expected);
    if args.by_c {
        let (by_c, missing) = by_c::measure()?;
        let is_missing = |line: &String| {
            missing.iter().any(|why| why.split(':').next() == line.split(':').next())
        };
        let mut differences = by_c.deviations(&measured);
        differences.retain(|line| !is_missing(line));
        deviations.extend(differences.into_iter().map(|line| format!("by C: {line}")));
        println!("Measured by a C program:\n\n{}", by_c.beside(&measured));
        missing.iter().for_each(|why| println!("NOT MEASURED: {why}"));
        println!("\nMeasured by this process:\n");
    }
    print!("{LEGEND}");
    print!("{}", measured.beside(&expected));
    println!();
    for deviation in &deviations {
        println!("DEVIATION: {deviation}");
    }
    if deviations.is_empty() {
        println!("Every cell is as docs/semantics.md 2.6 says.");
        if args.by_c {
            println!("The C program finds the same.");
        }
    }
    Ok(deviations.is_empty())
}

/// Every cell. One NIC is open at a time.
fn measure() -> Outcome<Table> {
    let machine = Machine::new()?;
    let mut rows = Exporter::rows();
    for reaches in [true, false] {
        for class in Class::ALL {
            let importer = Importer::open(class, &machine, reaches)?;
            for (row, exporter) in rows.iter_mut().filter(|(row, _)| row.is_at(reaches)) {
                let buffer = Buffer::new(*exporter, &machine)?;
                let cell = importer.import(&buffer);
                row.cells[class as usize] = cell.map_err(|error| {
                    format!("{class} importer, {}, reached: {reaches}: {error}", row.exporter)
                })?;
            }
        }
    }
    Ok(Table { rows: rows.into_iter().map(|(row, _)| row).collect() })
}

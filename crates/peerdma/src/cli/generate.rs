//! `peerdma completions` and `peerdma man`: files for shells and for man(1), made from the command
//! line's own description.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;

/// `peerdma completions`.
#[derive(clap::Args)]
pub(super) struct Completions {
    /// The shell that reads them
    shell: Shell,
}

/// `peerdma man`.
#[derive(clap::Args)]
pub(super) struct Man {
    /// The directory for one page for each subcommand, and one for all; it is made if it is missing
    directory: PathBuf,
}

/// Prints the completions of a shell.
pub(super) fn completions(args: &Completions) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "peerdma", &mut text);
    done("completions", io::stdout().write_all(&text))
}

/// Writes the man pages.
pub(super) fn man(args: &Man) -> ExitCode {
    let written = fs::create_dir_all(&args.directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.directory));
    done("man", written)
}

fn done(what: &str, outcome: io::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peerdma {what}: {error}");
            ExitCode::FAILURE
        }
    }
}

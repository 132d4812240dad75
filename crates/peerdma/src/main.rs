//! The `peerdma` program: one binary, one subcommand per chore. Each subcommand is a module of
//! `cli`.

mod cli;
mod gpus;
mod sysfs;

fn main() -> std::process::ExitCode {
    cli::main()
}

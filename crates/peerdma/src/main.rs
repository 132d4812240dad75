//! The `peerdma` program: one binary, one subcommand per task. Each subcommand is a module of
//! `cli`.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}

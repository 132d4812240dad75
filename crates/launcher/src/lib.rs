//! `peerdma run`: an unmodified verbs program on peerdma.
//!
//! The program finds our library in two ways: by `LD_LIBRARY_PATH`, under the names of libibverbs
//! and librdmacm, and by `LD_PRELOAD`, since a run path in the program takes precedence over the
//! first, and a program with a bundled copy looks for neither name. Its reads of `/sys` pass
//! through the door (`door`).

mod door;
mod env;
mod gpus;
mod library;
mod live;
mod netlink;
mod options;
mod sysfs;

use std::ffi::OsString;
use std::fs;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use crate::door::Launch;
use crate::live::Live;
use crate::options::{Options, Shown};
use crate::sysfs::{GpuFacts, NicFacts, Tree};

pub use crate::env::{Args as EnvArgs, main as env};

/// What every step returns; an error is a reason in words.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// How `/sys` is shown: `auto` (the default), `preload`, or `off`.
const DOOR: &str = "PEERDMA_DOOR";

/// `peerdma run`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Leave /sys as it is
    #[arg(long)]
    no_door: bool,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// Runs the program and returns its exit status.
pub fn main(args: Args) -> ExitCode {
    match run(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("peerdma run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Outcome<ExitCode> {
    let (program, rest) = args.program.split_first().expect("clap requires a program");
    let mut command = Command::new(program);
    command.args(rest);
    let mut prepared = args.options.prepare(&mut command)?;
    let way = environment::var(DOOR).unwrap_or_default();
    if args.no_door || way == "off" {
        door::exec(&mut command)
    }
    let Shown { mut tree, nics, gpus } = prepared.shown();
    let seccomp = way != "preload";
    if seccomp && is_shown_already(&tree, &nics, &gpus) {
        tracing::info!("door: an outer peerdma run shows the same tree");
        door::exec(&mut command)
    }
    tree.add_kernel_names();
    let live = Arc::new(Live::new(nics));
    Ok(door::run(Launch { command, tree, live, seccomp, preload: prepared.preload })?)
}

/// Whether `/sys` already shows this tree: we are inside another `peerdma run`, on the same netdev.
/// (A `peerdma run` in another network namespace has other GIDs.)
fn is_shown_already(tree: &Tree, nics: &[NicFacts], gpus: &[GpuFacts]) -> bool {
    let shown = fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    let same = |path: &str| {
        tree.text(path)
            .is_some_and(|text| fs::read_to_string(path).is_ok_and(|shown| shown == text))
    };
    shown == nics.len()
        && nics.iter().all(|nic| {
            let hca = format!("{}/infiniband/{}", nic.directory(), nic.name);
            ["board_id", "node_guid", "ports/1/gids/0", "ports/1/gids/1", "ports/1/state"]
                .iter()
                .all(|name| same(&format!("{hca}/{name}")))
        })
        && gpus.iter().all(|gpu| same(&format!("{}/uevent", gpu.function.path)))
}

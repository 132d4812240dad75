//! `peerdma dmabuf`: the buffers that the processes of this machine have open, as far as this user
//! may see them.

use std::process::ExitCode;

/// What `peerdma dmabuf` takes: nothing.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn main(_args: Args) -> ExitCode {
    print!("{}", ::dmabuf::host_buffers());
    ExitCode::SUCCESS
}

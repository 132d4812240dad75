//! The program's side: from fork to exec.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::Launch;
use super::channel::{Channel, Message};
use super::listener;

/// Names the directory in which the preload library finds our `/sys`.
pub(crate) const SYSFS: &str = "PEERDMA_SYSFS";

/// A shell's exit statuses for a program that cannot be run, and for a program that does not exist.
const CANNOT_RUN: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Installs the filter, tells the supervisor, and becomes the program.
pub(super) fn run(launch: Launch, supervisor: &Channel) -> ! {
    let Launch { mut command, seccomp, .. } = launch;
    match introduce(seccomp, supervisor) {
        Ok(None) => {}
        Ok(Some(sysfs)) => {
            command.env(SYSFS, sysfs);
        }
        Err(error) => {
            eprintln!("peerdma run: {error}");
            std::process::exit(CANNOT_RUN)
        }
    }
    exec(&mut command)
}

/// Becomes the program, or reports why not and exits as a shell would.
pub(crate) fn exec(command: &mut Command) -> ! {
    let error = command.exec();
    eprintln!("peerdma run: {}: {error}", command.get_program().display());
    let not_found = error.kind() == io::ErrorKind::NotFound;
    std::process::exit(if not_found { NOT_FOUND } else { CANNOT_RUN })
}

/// Between the filter and the answer, this process must not make a watched call.
fn introduce(seccomp: bool, supervisor: &Channel) -> io::Result<Option<std::path::PathBuf>> {
    let filter = if seccomp { listener::install() } else { Err(io::ErrorKind::Other.into()) };
    supervisor.send(&match filter {
        Ok(listener) => Message::Filtered(listener),
        Err(error) => Message::Unfiltered(error.raw_os_error().unwrap_or(0)),
    })?;
    match supervisor.receive()? {
        Some(Message::Go(sysfs)) => Ok(sysfs),
        _ => Err(io::Error::other("the supervisor has gone")),
    }
}

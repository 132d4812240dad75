//! The sysfs door: how an unmodified program comes to see `/sys/class/infiniband`.
//!
//! Programs read `/sys` by libc, by raw system calls, from static binaries and from Go, so the door
//! stands where all of them pass: a seccomp filter that passes the system calls which take a path
//! to a supervisor (user notification). The supervisor reads the path from the program's memory. A
//! call with a path of ours is answered from a private copy of the tree (`crate::sysfs`), by
//! putting an open file into the program or by writing the result of `stat` or `readlink` into its
//! memory; every other call continues untouched.
//!
//! ```text
//!   peerdma run (front)            supervisor                         program, and all its descendants
//!   forwards signals,  -- socket -- forks the program, --- fork ---->  installs the filter, sends the listener, execs
//!   returns its status             answers the listener <- listener -  open("/sys/class/infiniband/...")
//!                                     |                 - file fd -->
//!                                  backing: a detached tmpfs, or a directory under /tmp
//! ```
//!
//! The supervisor is the program's parent because Yama lets only ancestors read a process's memory.
//! It stays for as long as any process uses the filter (a daemon that outlives the program), and
//! the front does not. If the supervisor is killed, the front takes its place; if the front is
//! killed, the supervisor kills the program that it represented.
//!
//! Where the kernel or a sandbox refuses the filter, the program gets `libpeerdma-preload.so`,
//! which redirects libc's calls to the same tree in a directory that `PEERDMA_SYSFS` names.
//!
//! The door is a convenience and not a security boundary: a program may change a path between our
//! read of it and the kernel's, and gains nothing by it.

#![allow(unsafe_code, reason = "fork, seccomp and signalfd have no safe form")]

mod backing;
mod call;
mod channel;
mod filter;
mod front;
mod launch;
mod listener;
mod place;
mod process;
mod program;
mod remote;
mod serve;
mod supervisor;

pub(crate) use launch::{Launch, Preload};
pub(crate) use program::exec;

use std::io;
use std::process::ExitCode;

/// Runs the program behind the door and returns its exit status, or 128 plus the number of the
/// signal that ended it. Must be called while the process has one thread, since it forks and
/// continues.
pub(crate) fn run(launch: Launch) -> io::Result<ExitCode> {
    let (front, back) = channel::pair()?;
    let adopt = process::only_ancestors_may_read_memory();
    if adopt {
        process::adopt_orphans()?;
    }
    let mask = process::Mask::current()?;
    let signals = process::Signals::take(&front::FORWARDED)?;
    match process::fork()? {
        Some(supervisor) => {
            drop(back);
            front::run(front, supervisor, signals)
        }
        None => {
            drop(front);
            drop(signals);
            supervisor::run(launch, back, &mask, adopt)
        }
    }
}

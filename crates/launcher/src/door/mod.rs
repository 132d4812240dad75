//! The sysfs door: how an unmodified program gets to see our `/sys/class/infiniband`.
//!
//! Programs read `/sys` through libc, by raw system calls, from static binaries and from Go. All of
//! these pass a seccomp filter, so the door is one: it passes system calls that take a path to a
//! supervisor (user notification). The supervisor reads the path from the program's memory. If the
//! path is ours, it answers the call from a private copy of the tree (`crate::sysfs`), by
//! installing an open file in the program or by writing the result of `stat` or `readlink` into its
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
//! It stays as long as any process uses the filter (a daemon may outlive the program); the front
//! does not. If the supervisor is killed, the front takes its place; if the front is killed, the
//! supervisor kills the program that it represented.
//!
//! Where the kernel or a sandbox refuses the filter, the program gets `libpeerdma-preload.so`,
//! which redirects libc's calls to the same tree in a directory that `PEERDMA_SYSFS` names.
//!
//! Two things are not files of the tree. A counter is made when it is opened, from what all
//! processes of the port count (`counters`). And a socket of NETLINK_RDMA is one end of a pair of
//! sockets, at the other end of which the supervisor lists the objects of all processes
//! (`netlink`).
//!
//! The door is a convenience and not a security boundary: a program may change a path after we read
//! it and before the kernel does, and gains nothing by it.

#![allow(unsafe_code, reason = "fork, seccomp and signalfd have no safe form")]

mod backing;
mod call;
mod channel;
mod counters;
mod filter;
mod front;
mod launch;
mod listener;
mod netlink;
mod place;
mod preload;
mod process;
mod program;
mod remote;
mod serve;
mod socket_call;
mod supervisor;

pub(crate) use launch::Launch;
pub(crate) use program::{SYSFS, exec};

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
            front::run(front, supervisor, signals, &launch.live)
        }
        None => {
            drop(front);
            drop(signals);
            supervisor::run(launch, back, &mask, adopt)
        }
    }
}

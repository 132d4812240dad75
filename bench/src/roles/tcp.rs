//! The passive end of TCP connections.

use std::net::{Ipv4Addr, TcpListener};

use super::{hear, say};
use crate::Outcome;

/// Reports where it listens, and again when it has accepted this many connections.
pub(super) fn listener(connections: usize) -> Outcome<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // If there were more than the backlog holds, the kernel would drop some (SYN cookies), and no
    // client would retry.
    rustix::net::listen(&listener, i32::try_from(connections)?)?;
    say(&listener.local_addr()?.to_string())?;
    let mut taken = Vec::with_capacity(connections);
    while taken.len() < connections {
        taken.push(listener.accept()?);
    }
    say("")?;
    while hear()?.is_some() {}
    Ok(())
}

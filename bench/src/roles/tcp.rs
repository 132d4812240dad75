//! The end of TCP connections that somebody else makes.

use std::net::{Ipv4Addr, TcpListener};

use super::{hear, say};
use crate::Outcome;

/// Says where it listens, and once more when it took so many connections.
pub(super) fn listener(connections: usize) -> Outcome<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // Of more than there is room for the kernel would forget some (SYN cookies), and nobody would
    // ask again.
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

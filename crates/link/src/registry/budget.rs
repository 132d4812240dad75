//! The shares that the processes of one user have of a common resource, without a server.
//!
//! A process that has `bytes` of a budget listens on the abstract socket
//! `peerdma/N/WHAT/vf/n/bytes/serial`, so that its share vanishes with it. A process that wants
//! more first *asks*, with a name that ends in `bytes?`, and then adds up what others hold and ask
//! for. Of two processes that ask at the same time, at least one sees the other, so together they
//! never get more than there is.
//!
//! Abstract names have no owner: the kernel says whose they are (`SO_PEERCRED`), and those of other
//! users do not count.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use descriptors::peer_cred;
use descriptors::strangers::{self, PeerSocket};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use super::name::valid_nic;
use super::socket::new_socket;
use super::{SO_ACCEPTCON, VF_COUNT};

/// Connections of processes that check whose a name is, and need nothing more: none is accepted.
const BACKLOG: i32 = 4096;

/// Names that a claim tries: more than a process ever leaves in use.
const MAX_NAMES: usize = 64;

/// Counts the names of this process.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// The most reads of a list that keeps changing, until two reads agree.
const LOOKS: usize = 8;

/// The shares of the other processes of our user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two numbers")]
pub struct Held {
    /// Bytes that are theirs.
    pub settled: u64,
    /// Bytes that they are asking for, beyond those.
    pub asked: u64,
}

/// Announces that this process, VF `vf`, has `bytes` of the budget, or asks for that many. Valid as
/// long as the descriptor is open, here or in a child that inherits it.
///
/// # Errors
///
/// EADDRINUSE when a process has many such names; otherwise the kernel's error.
pub fn claim(nic: &str, what: &str, vf: u16, bytes: u64, asks: bool) -> io::Result<OwnedFd> {
    let (socket, _) = socket()?;
    let mut names = 0;
    loop {
        // A child that was just spawned may still have an old name of ours, so none is used twice.
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        names += 1;
        match rustix::net::bind(&socket, &address(nic, what, &Claim { vf, bytes, asks, serial })?) {
            Ok(()) => break,
            // A process that is ending gives up its VF before its names, and children of one parent
            // count from one number.
            Err(Errno::ADDRINUSE) if names < MAX_NAMES => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Ends a claim at once. Closing the descriptor is not enough: a child between its fork and its
/// exec also has it, and with it the name. A connection to a socket that was shut down is refused
/// (`unix_stream_connect` of the kernel).
pub fn end(claim: BorrowedFd<'_>) {
    strangers::end_listening(claim);
}

/// The shares of the budget of the other processes of our user in this network namespace.
///
/// # Errors
///
/// If /proc/net/unix cannot be read, or `nic` names no socket.
pub fn held(nic: &str, what: &str, vf: u16) -> io::Result<Held> {
    if !valid_nic(nic) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut seen = claims(nic, what)?;
    for _ in 0..LOOKS {
        let again = claims(nic, what)?;
        if seen == again {
            break;
        }
        seen = again;
    }
    // For each process, its share and the most that it asks for.
    let mut per_vf: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
    for claim in seen.into_iter().filter(|claim| claim.vf != vf && is_ours(nic, what, claim)) {
        let (settled, asked) = per_vf.entry(claim.vf).or_default();
        let most = if claim.asks { asked } else { settled };
        *most = claim.bytes.max(*most);
    }
    let add = |sum: Held, (settled, asked): (u64, u64)| Held {
        settled: sum.settled.saturating_add(settled),
        asked: sum.asked.saturating_add(asked.saturating_sub(settled)),
    };
    Ok(per_vf.into_values().fold(Held::default(), add))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    vf: u16,
    bytes: u64,
    asks: bool,
    serial: u64,
}

fn claims(nic: &str, what: &str) -> io::Result<Vec<Claim>> {
    let table = super::name::sockets()?;
    let mut claims: Vec<_> = table.lines().filter_map(|line| parse(line, nic, what)).collect();
    claims.sort_unstable();
    Ok(claims)
}

fn parse(line: &str, nic: &str, what: &str) -> Option<Claim> {
    let mut fields = line.split_ascii_whitespace().skip(3);
    let flags = u32::from_str_radix(fields.next()?, 16).ok()?;
    if flags & SO_ACCEPTCON == 0 {
        return None;
    }
    let path = fields.nth(3)?.strip_prefix("@peerdma/")?.strip_prefix(nic)?;
    let path = path.strip_prefix('/')?.strip_prefix(what)?.strip_prefix("/vf/")?;
    let (vf, path) = path.split_once('/')?;
    let (bytes, serial) = path.split_once('/')?;
    let asks = bytes.ends_with('?');
    let bytes = bytes.strip_suffix('?').unwrap_or(bytes).parse().ok()?;
    let vf = vf.parse().ok().filter(|vf| *vf < VF_COUNT)?;
    Some(Claim { vf, bytes, asks, serial: serial.parse().ok()? })
}

/// Whether a process of our user holds a name. A process that is gone by now holds nothing.
fn is_ours(nic: &str, what: &str, claim: &Claim) -> bool {
    let asked = || {
        let (socket, is_sealed) = socket()?;
        let address = address(nic, what, claim)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => {
                let cred = peer_cred(socket.as_fd())?;
                Ok(Some(PeerSocket::born(socket, cred, is_sealed)))
            }
            // Asked so often that its queue is full: it counts, to be safe.
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(io::Error::from(errno)),
        }
    };
    match asked() {
        Ok(Some(holder)) if !holder.is_ours() => {
            let uid = holder.uid();
            tracing::warn!(nic, what, vf = claim.vf, uid, "another user claims a share");
            false
        }
        Ok(_) => true,
        Err(error) => error.raw_os_error() != Some(Errno::CONNREFUSED.raw_os_error()),
    }
}

fn address(nic: &str, what: &str, claim: &Claim) -> io::Result<SocketAddrUnix> {
    let Claim { vf, bytes, asks, serial } = claim;
    let mark = if *asks { "?" } else { "" };
    let name = format!("peerdma/{nic}/{what}/vf/{vf}/{bytes}{mark}/{serial}");
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// A socket, and whether it refuses descriptors, as well as those that are accepted from it.
fn socket() -> io::Result<(OwnedFd, bool)> {
    let socket = new_socket()?;
    let is_sealed = strangers::refuse_descriptors(&socket);
    Ok((socket, is_sealed))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn shares_and_requests_of_others_are_added_up() {
        let nic = format!("budget{}", std::process::id());
        let held = |vf| held(&nic, "dm", vf).expect("proc");
        assert_eq!(held(0), Held::default());
        let _one = claim(&nic, "dm", 1, 4096, false).expect("free");
        let asks = claim(&nic, "dm", 1, 6144, true).expect("free");
        let two = claim(&nic, "dm", 2, 64, false).expect("free");
        let _other = claim(&nic, "else", 3, 1 << 20, false).expect("free");
        assert_eq!(held(0), Held { settled: 4160, asked: 2048 });
        assert_eq!(held(1), Held { settled: 64, asked: 0 });
        // Repeated queries are always answered.
        for _ in 0..20 {
            assert_eq!(held(2).settled, 4096);
        }
        // As if a child that was just spawned had it.
        let _spawned = asks.try_clone().expect("a descriptor");
        end(asks.as_fd());
        drop((asks, two));
        assert_eq!(held(0), Held { settled: 4096, asked: 0 });
        let _same = claim(&nic, "dm", 1, 4096, false).expect("another name");
        assert_eq!(held(0), Held { settled: 4096, asked: 0 }, "a process counts once");
    }
}

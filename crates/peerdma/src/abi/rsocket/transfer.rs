//! The bytes of a stream, piece by piece, until the call is done.

use std::ffi::c_int;
use std::sync::{MutexGuard, PoisonError};

use libc::ssize_t;
use rsocket::{End, Stream};

use super::conn::Conn;
use super::memory::Pieces;
use crate::abi::rdmacm::{Answer, Failure};

/// The sizes of the pieces in which data is sent: each twice as large as the one before, so that
/// the first are on the wire while the others are copied.
struct Growth(u32);

impl Growth {
    /// `RS_OLAP_START_SIZE` and `RS_MAX_TRANSFER`.
    const FIRST: u32 = 2048;
    const LAST: u32 = 65536;

    /// The next piece of `left` bytes.
    fn next(&mut self, left: usize) -> u32 {
        let size = self.0;
        if (size as usize) < left {
            self.0 = (size * 2).min(Self::LAST);
            size
        } else {
            left as u32
        }
    }
}

/// The count of a call that sent or received `done` bytes before `why` stopped it.
fn count(done: usize, why: Answer) -> Answer<ssize_t> {
    match why {
        Err(failure) if done == 0 => Err(failure),
        _ => Ok(done.cast_signed()),
    }
}

/// Sends a stream's next bytes with `post`, piece by piece, until all are sent, or it would have to
/// wait and must not, or `post` says that nothing is left to do.
pub(super) fn send_all(
    conn: &Conn,
    from: &mut Pieces<'_>,
    may_wait: bool,
    mut post: impl FnMut(&Conn, &mut Stream, u32, &mut Pieces<'_>) -> Answer<bool>,
) -> Answer<ssize_t> {
    let _sender = conn.sender.lock().unwrap_or_else(PoisonError::into_inner);
    send_mappings(conn, may_wait)?;
    let whole = from.left();
    let mut growth = Growth(Growth::FIRST);
    let mut send = || -> Answer {
        while from.left() > 0 {
            let mut core = may_send(conn, may_wait)?;
            let wanted = growth.next(from.left());
            if !post(conn, &mut core, wanted, from)? {
                break;
            }
        }
        Ok(())
    };
    let why = send();
    count(whole - from.left(), why)
}

/// Waits until something can be sent.
///
/// # Errors
/// ECONNRESET if nothing can be sent any more.
fn may_send(conn: &Conn, may_wait: bool) -> Answer<MutexGuard<'_, Stream>> {
    let mut core = conn.core();
    if !core.is_writable() || !conn.may_send(&core) {
        drop(core);
        core = conn.wait_for(may_wait, |core| conn.may_send(core) || !core.is_writable())?;
    }
    if !core.is_writable() {
        return Err(Failure::new(libc::ECONNRESET, "the connection accepts no more data"));
    }
    Ok(core)
}

/// Sends all bytes, or as many as it can without a wait that is not allowed.
pub(super) fn send_stream(conn: &Conn, mut from: Pieces<'_>, may_wait: bool) -> Answer<ssize_t> {
    send_all(conn, &mut from, may_wait, |conn, core, wanted, from| {
        conn.send(core, wanted, from).map(|()| true)
    })
}

/// Receives the data that is there, or, with `MSG_WAITALL`, as much as there is room for.
pub(super) fn receive_stream(
    conn: &Conn,
    mut to: Pieces<'_>,
    flags: c_int,
    may_wait: bool,
) -> Answer<ssize_t> {
    let _receiver = conn.receiver.lock().unwrap_or_else(PoisonError::into_inner);
    let whole = to.left();
    let is_peek = flags & libc::MSG_PEEK != 0;
    let wants_all = flags & libc::MSG_WAITALL != 0 && !is_peek;
    let mut receive = || -> Answer {
        while to.left() > 0 {
            let mut core = conn.core();
            if core.available() == 0 {
                drop(core);
                core =
                    conn.wait_for(may_wait, |core| core.available() > 0 || !core.is_readable())?;
            }
            if core.available() == 0 {
                if core.end() == Some(End::Failed) {
                    return Err(Failure::new(libc::ECONNRESET, "the connection broke"));
                }
                return Ok(());
            }
            conn.read(&mut core, &mut to, is_peek)?;
            if !wants_all {
                return Ok(());
            }
        }
        Ok(())
    };
    let why = receive();
    count(whole - to.left(), why)
}

/// Tells the peer of mappings that it does not know yet. The caller holds the `sender` lock.
fn send_mappings(conn: &Conn, may_wait: bool) -> Answer {
    while conn.maps().has_untold() {
        let mut core = may_send(conn, may_wait)?;
        let Some((index, mapping)) = conn.maps().take_untold() else { continue };
        let (mut bytes, write) = core.send_mapping(index, mapping);
        // SAFETY: the bytes outlive the call, and nobody else has them.
        let mut from = unsafe { Pieces::one(bytes.as_mut_ptr().cast(), bytes.len()) };
        conn.post_write(&mut core, &write, &mut from)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_grow_until_they_are_large() {
        let mut growth = Growth(Growth::FIRST);
        let sizes: Vec<_> = [1000, 1 << 20, 1 << 20, 5000].map(|left| growth.next(left)).into();
        assert_eq!(sizes, [1000, 2048, 4096, 5000]);
        let mut growth = Growth(Growth::LAST);
        assert_eq!((growth.next(1 << 20), growth.next(1 << 20)), (65536, 65536));
    }
}

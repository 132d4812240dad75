//! The calls about memory that a peer may write directly: `riomap(3)`, `riounmap(3)`,
//! `riowrite(3)`.

use std::ffi::{c_int, c_void};

use iba::Access;
use libc::{off_t, size_t, ssize_t};
use rsocket::Write;

use super::mappings::Map;
use super::memory::Pieces;
use super::socket::find_stream;
use super::transfer::send_all;
use super::{call, done};
use crate::abi::rdmacm::objects::Region;
use crate::abi::rdmacm::{Answer, Failure};

pub(crate) unsafe extern "C" fn riomap(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    call("riomap", || {
        let invalid = |what: String| Failure::new(libc::EINVAL, format!("riomap: {what}"));
        let stream = find_stream("riomap", fd)?;
        let conn = stream.conn().map_err(|_| invalid("the rsocket is not connected".to_owned()))?;
        if prot & !libc::PROT_WRITE != 0 {
            return Err(invalid(format!("protection {prot:#x}: PROT_NONE or PROT_WRITE")));
        }
        if u32::try_from(len).is_err() {
            return Err(invalid(format!("{len} bytes; the protocol has 32 bits for the length")));
        }
        let room = conn.core().peer_mappings();
        let mut maps = conn.maps();
        let index = if prot & libc::PROT_WRITE != 0 {
            let free = maps.free(room).ok_or_else(|| {
                Failure::new(libc::ENOMEM, format!("riomap: the peer has room for {room} mappings"))
            })?;
            Some(free)
        } else {
            None
        };
        let by_peer = if index.is_some() { Access::REMOTE_WRITE } else { Access::empty() };
        let access = Access::LOCAL_WRITE | by_peer;
        // SAFETY: contract: the memory is the program's until it unmaps it.
        let region = unsafe { Region::of_program(&conn.domain, buf, len, access) }?;
        // -1 asks for any offset: the address is one that no other mapping has.
        let offset = if offset == -1 { buf.addr() as off_t } else { offset };
        let own = offset.cast_unsigned();
        maps.add(Map { addr: buf.addr(), length: len, offset: own, region, index });
        Ok(offset)
    })
}

pub(crate) unsafe extern "C" fn riounmap(fd: c_int, buf: *mut c_void, len: size_t) -> c_int {
    done("riounmap", || {
        let stream = find_stream("riounmap", fd)?;
        let removed = stream.conn()?.maps().remove(buf.addr(), len);
        removed.map(drop).ok_or_else(|| {
            let what = format!("riounmap: {len} bytes at {buf:p} are not mapped");
            Failure::new(libc::EINVAL, what)
        })
    })
}

pub(crate) unsafe extern "C" fn riowrite(
    fd: c_int,
    buf: *const c_void,
    count: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    call("riowrite", || -> Answer<ssize_t> {
        let stream = find_stream("riowrite", fd)?;
        let conn = stream.conn()?;
        // SAFETY: contract: the memory is the program's.
        let mut from = unsafe { Pieces::one(buf.cast_mut(), count) };
        let mut at = offset.cast_unsigned();
        send_all(conn, &mut from, stream.common.may_wait(flags), |conn, core, wanted, from| {
            let Some((addr, left, key)) = conn.find_mapping(core, at) else {
                // As in the original: the call returns what was written, and 0 is no error.
                tracing::info!(target: "peerdma::refusal", "riowrite: the peer has mapped nothing at offset {at}");
                return Ok(false);
            };
            let write: Write = core.send_direct(wanted.min(left), addr, key);
            at = at.wrapping_add(write.length.into());
            conn.post_write(core, &write, from).map(|()| true)
        })
    })
    .cast_unsigned()
}

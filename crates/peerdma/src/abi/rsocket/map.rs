//! Memory that a peer may write directly: `riomap(3)`, `riounmap(3)`, `riowrite(3)`.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::PoisonError;

use iba::Access;
use libc::{off_t, size_t, ssize_t};
use rsocket::{Mapping, Sge, Write};

use super::conn::Conn;
use super::io::{may_send, send_all};
use super::memory::Pieces;
use super::socket::find;
use super::{call, done};
use crate::abi::rdmacm::objects::Region;
use crate::abi::rdmacm::{Answer, Failure};

/// What a program mapped on one connection.
#[derive(Default)]
pub(super) struct Maps {
    all: Vec<Map>,
    /// Entries of the peer's table that it has not been told yet.
    untold: VecDeque<u32>,
}

/// One stretch of the program's memory.
struct Map {
    addr: usize,
    length: usize,
    offset: u64,
    region: Region,
    /// The entry of the peer's table; none if the peer may not write there.
    index: Option<u32>,
}

impl Maps {
    /// An entry of the peer's table, of `room`, that is free.
    fn free(&self, room: u32) -> Option<u32> {
        (0..room).find(|index| self.all.iter().all(|map| map.index != Some(*index)))
    }

    /// The entry that is told next, and what it says.
    fn next(&self) -> Option<(u32, Mapping)> {
        let index = *self.untold.front()?;
        let map = self.all.iter().find(|map| map.index == Some(index))?;
        let key = map.region.rkey();
        let length = u32::try_from(map.length).unwrap_or(u32::MAX);
        Some((
            index,
            Mapping { offset: map.offset, sge: Sge { addr: map.addr as u64, key, length } },
        ))
    }
}

impl Conn {
    fn maps(&self) -> std::sync::MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the peer of mappings that it does not know. Whoever calls is the sender.
    pub(super) fn send_mappings(&self, may_wait: bool) -> Answer {
        while self.maps().next().is_some() {
            let mut core = may_send(self, may_wait)?;
            let mut maps = self.maps();
            let Some((index, mapping)) = maps.next() else { continue };
            maps.untold.pop_front();
            drop(maps);
            let (mut bytes, write) = core.send_mapping(index, mapping);
            // SAFETY: the bytes live through the call, and nobody else knows them.
            let mut from = unsafe { Pieces::one(bytes.as_mut_ptr().cast(), bytes.len()) };
            self.post_write(&mut core, &write, &mut from)?;
        }
        Ok(())
    }
}

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
        let socket = find(fd)?;
        let stream = socket.stream("riomap")?;
        let conn = stream.conn().map_err(|_| invalid("the rsocket is not connected".to_owned()))?;
        if prot & !libc::PROT_WRITE != 0 {
            return Err(invalid(format!("protection {prot:#x}: PROT_NONE or PROT_WRITE")));
        }
        if u32::try_from(len).is_err() {
            return Err(invalid(format!("{len} bytes; a peer is told 32 bits of it")));
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
        // -1 asks for an offset: the address is one that no other mapping has.
        let offset = if offset == -1 { buf.addr() as off_t } else { offset };
        let map =
            Map { addr: buf.addr(), length: len, offset: offset.cast_unsigned(), region, index };
        maps.all.push(map);
        maps.untold.extend(index);
        Ok(offset)
    })
}

pub(crate) unsafe extern "C" fn riounmap(fd: c_int, buf: *mut c_void, len: size_t) -> c_int {
    done("riounmap", || {
        let socket = find(fd)?;
        let conn = socket.stream("riounmap")?.conn()?;
        let mut maps = conn.maps();
        let found = maps.all.iter().position(|map| (map.addr, map.length) == (buf.addr(), len));
        let Some(at) = found else {
            return Err(Failure::new(
                libc::EINVAL,
                format!("riounmap: {len} bytes at {buf:p} are not mapped"),
            ));
        };
        let map = maps.all.remove(at);
        maps.untold.retain(|index| Some(*index) != map.index);
        drop(maps);
        drop(map);
        Ok(())
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
        let socket = find(fd)?;
        let conn = socket.stream("riowrite")?.conn()?;
        // SAFETY: contract: the memory is the program's.
        let mut from = unsafe { Pieces::one(buf.cast_mut(), count) };
        let mut at = offset.cast_unsigned();
        send_all(conn, &mut from, socket.may_wait(flags), |conn, core, wanted, from| {
            let Some((addr, left, key)) = conn.find_mapping(core, at) else {
                // As of the original: what was written counts, and that is no error even if it is
                // nothing.
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

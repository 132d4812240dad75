//! Payloads: gathered into carriers, and scattered from them.

use iba::{Access, LKey};
use transport::env::{LocalError, RemoteError, Source, TransmitError};
use transport::wr::Sge;
use umem::{Fault, Foreign, Pieces, Umem};
use wire::icrc;

use crate::carrier::udp::queue::Fill;
use crate::ids::PdId;
use crate::memory::mr::MrTable;

/// The payload of a packet that arrived.
pub(crate) enum InPayload<'a> {
    /// In a receive buffer of our own.
    Bytes(&'a [u8]),
    /// In a ring that the peer can still change.
    Ring(Foreign<'a>),
    /// In memory of this process.
    Parts(&'a [Part]),
    /// In a receive buffer of our own, cut into packets.
    Train(Cut<'a>),
}

/// The payloads of packets of one length that arrived in one train, and together are a piece of a
/// message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut<'a> {
    /// The bytes from the first packet on.
    pub(crate) bytes: &'a [u8],
    /// Where the payloads are in them.
    pub(crate) pieces: Pieces,
}

impl Cut<'_> {
    /// How many bytes there are.
    fn len(&self) -> u32 {
        (self.pieces.len * self.pieces.count) as u32
    }

    /// Visits `length` bytes at `from` piece by piece.
    fn for_each(
        &self,
        from: u64,
        length: u32,
        mut visit: impl FnMut(&[u8]) -> Result<(), LocalError>,
    ) -> Result<(), LocalError> {
        let Pieces { first, len, stride, count } = self.pieces;
        for_each_piece((0..count).map(|_| len as u32), from, length, |index, within, piece| {
            visit(&self.bytes[first + index * stride + within as usize..][..piece as usize])
        })
    }

    /// Copies its first bytes.
    fn copy_head(&self, to: &mut [u8]) {
        let (length, mut at) = (to.len() as u32, 0);
        // No visit fails.
        let _ = self.for_each(0, length, |piece| {
            to[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
            Ok(())
        });
    }
}

/// A piece of memory of this process, kept alive by its region's memory.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) umem: Umem,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl InPayload<'_> {
    /// How many bytes there are.
    pub(crate) fn len(&self) -> u32 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u32,
            Self::Ring(foreign) => foreign.len() as u32,
            Self::Parts(parts) => parts.iter().map(|part| part.length).sum(),
            Self::Train(cut) => cut.len(),
        }
    }

    /// Copies the whole payload into `bytes`, which has the same length. Not for a reference to
    /// memory of this process.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> bool {
        match self {
            Self::Bytes(payload) if payload.len() == bytes.len() => bytes.copy_from_slice(payload),
            Self::Ring(foreign) if foreign.len() == bytes.len() => {
                return foreign.copy_to(bytes).is_ok();
            }
            Self::Train(cut) if self.len() as usize == bytes.len() => cut.copy_head(bytes),
            _ => return false,
        }
        true
    }

    /// Copies the first bytes of the payload into `bytes` and returns how many there are; 0 if they
    /// cannot be read.
    pub(crate) fn head(&self, bytes: &mut [u8]) -> usize {
        let length = bytes.len().min(self.len() as usize);
        let bytes = &mut bytes[..length];
        match self {
            Self::Bytes(payload) => bytes.copy_from_slice(&payload[..length]),
            Self::Train(cut) => cut.copy_head(bytes),
            Self::Ring(foreign) => {
                let head = foreign.slice(0, length);
                if head.is_none_or(|head| head.copy_to(bytes).is_err()) {
                    return 0;
                }
            }
            Self::Parts(parts) => {
                let lengths = parts.iter().map(|part| part.length);
                let mut at = 0;
                let read = for_each_piece(lengths, 0, length as u32, |index, within, piece| {
                    let part = &parts[index];
                    let to = &mut bytes[at..at + piece as usize];
                    at += piece as usize;
                    part.umem.read(part.offset + within, to).map_err(|fault| local_fault(&fault))
                });
                if read.is_err() {
                    return 0;
                }
            }
        }
        length
    }

    /// A copy of the payload, as far as it can be read now.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len() as usize];
        match self {
            Self::Bytes(payload) => bytes.copy_from_slice(payload),
            Self::Train(cut) => cut.copy_head(&mut bytes),
            // As below.
            Self::Ring(foreign) => drop(foreign.copy_to(&mut bytes)),
            Self::Parts(parts) => {
                let mut left = &mut bytes[..];
                for part in *parts {
                    let (piece, rest) = left.split_at_mut(part.length as usize);
                    part.umem.bounced(u64::from(part.length));
                    // Memory that can no longer be read was removed in the meantime; then the zeros
                    // stay.
                    let _ = part.umem.read(part.offset, piece);
                    left = rest;
                }
            }
        }
        bytes
    }

    /// Copies `length` bytes at `from` of the payload to `offset` of `umem`.
    pub(crate) fn copy_to(
        &self,
        from: u64,
        length: u32,
        umem: &Umem,
        offset: u64,
    ) -> Result<(), LocalError> {
        let (start, len) = (from as usize, length as usize);
        match self {
            Self::Bytes(bytes) => {
                let bytes = bytes.get(start..start + len).ok_or(LocalError::Fault)?;
                umem.write(offset, bytes).map_err(|fault| local_fault(&fault))
            }
            Self::Ring(foreign) => {
                let bytes = foreign.slice(start, len).ok_or(LocalError::Fault)?;
                umem.write_from(offset, bytes).map_err(|fault| local_fault(&fault))
            }
            Self::Train(cut) if from == 0 && length == cut.len() => umem
                .write_pieces(offset, cut.bytes, cut.pieces)
                .map_err(|fault| local_fault(&fault)),
            Self::Train(cut) => {
                let mut to = offset;
                cut.for_each(from, length, |piece| {
                    umem.write(to, piece).map_err(|fault| local_fault(&fault))?;
                    to += piece.len() as u64;
                    Ok(())
                })
            }
            Self::Parts(parts) => {
                let mut to = offset;
                for_each_piece(
                    parts.iter().map(|part| part.length),
                    from,
                    length,
                    |index, within, piece| {
                        let part = &parts[index];
                        Umem::copy(umem, to, &part.umem, part.offset + within, u64::from(piece))
                            .map_err(|fault| local_fault(&fault))?;
                        to += u64::from(piece);
                        Ok(())
                    },
                )
            }
        }
    }
}

/// Logs that the memory under a region of ours is gone, as the completion cannot say where. If it
/// only moved, it is absent for the moment.
#[cold]
pub(crate) fn local_fault(fault: &Fault) -> LocalError {
    if let Fault::Stale { .. } = fault {
        return LocalError::NotPresent;
    }
    report_stale_access(fault);
    tracing::warn!(target: "peerdma::fault", "a region's memory is gone: {fault}");
    LocalError::Fault
}

/// Like [`local_fault`], for an access of a peer.
#[cold]
pub(crate) fn remote_fault(fault: &Fault) -> RemoteError {
    match fault {
        Fault::Stale { .. } => return RemoteError::NotPresent,
        // Its address was aligned but the memory behind it is not, as in a zero-based region that
        // begins at any address.
        Fault::Misaligned { .. } => return RemoteError::Misaligned,
        _ => {}
    }
    report_stale_access(fault);
    tracing::warn!(target: "peerdma::fault", "the memory of a region that a peer uses is gone: {fault}");
    RemoteError::Fault
}

/// Logs an access that got past the gate to an address that its exporter had retired, by an
/// importer that ignored an invalidation: whose address it was, and since when it is invalid.
fn report_stale_access(fault: &Fault) {
    if let Fault::Page { at, .. } = fault
        && let Some(retired) = dmabuf::window::report_stale(*at)
    {
        tracing::error!(
            target: "peerdma::peer-memory",
            "stale access at {at:#x}: {} was retired at {:?}: {}",
            retired.what, retired.when, retired.why
        );
    }
}

/// Checks whether memory can be read, before a reference to it is passed on: later it would be
/// impossible to tell whether the source failed or the destination.
pub(crate) fn check_readable(umem: &Umem, offset: u64, length: u32) -> Result<(), Fault> {
    const PAGE: u64 = 4096;
    if length == 0 || umem.is_dma_buf() {
        return Ok(());
    }
    let mut byte = [0];
    let (start, end) = (umem.addr() as u64 + offset, offset + u64::from(length));
    umem.read(offset, &mut byte)?;
    let mut at = offset + (PAGE - start % PAGE);
    while at < end {
        umem.read(at, &mut byte)?;
        at += PAGE;
    }
    Ok(())
}

/// Walks `length` bytes at `offset` of a list of pieces with the given lengths: the piece's index,
/// the offset in it, and the length.
fn for_each_piece(
    lengths: impl Iterator<Item = u32>,
    offset: u64,
    length: u32,
    mut visit: impl FnMut(usize, u64, u32) -> Result<(), LocalError>,
) -> Result<(), LocalError> {
    let (mut skip, mut left) = (offset, length);
    for (index, piece) in lengths.enumerate() {
        if left == 0 {
            return Ok(());
        }
        if skip >= u64::from(piece) {
            skip -= u64::from(piece);
            continue;
        }
        let take = left.min(piece - skip as u32);
        visit(index, skip, take)?;
        skip = 0;
        left -= take;
    }
    if left == 0 { Ok(()) } else { Err(LocalError::Protection) }
}

/// Visits the memory under `length` bytes at `offset` of a gather or scatter list.
#[inline]
pub(crate) fn for_each_sge(
    mrs: &MrTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    length: u32,
    access: Access,
    mut visit: impl FnMut(&Umem, u64, u32) -> Result<(), LocalError>,
) -> Result<(), LocalError> {
    // Most lists have one element.
    if let [sge] = sges
        && length > 0
        && offset + u64::from(length) <= u64::from(sge.length)
        && !mrs.is_null(sge.lkey)
    {
        let (umem, at) = mrs.local(pd, sge.lkey, sge.addr.wrapping_add(offset), length, access)?;
        return visit(umem, at, length);
    }
    for_each_piece(sges.iter().map(|sge| sge.length), offset, length, |index, within, piece| {
        let sge = &sges[index];
        let key: LKey = sge.lkey;
        if mrs.is_null(key) {
            return mrs.for_each_null(piece, access, &mut visit);
        }
        let (umem, at) = mrs.local(pd, key, sge.addr.wrapping_add(within), piece, access)?;
        visit(umem, at, piece)
    })
}

/// The memory under a payload, if one region has all of it.
pub(crate) fn in_one_piece<'a>(
    mrs: &'a MrTable,
    pd: PdId,
    source: &Source<'_>,
) -> Option<(&'a Umem, u64)> {
    match *source {
        Source::Empty | Source::Bytes(_) => None,
        Source::Sges { sges, mut offset, length } => {
            let sge = sges.iter().find(|sge| {
                let is_here = offset < u64::from(sge.length);
                if !is_here {
                    offset -= u64::from(sge.length);
                }
                is_here
            })?;
            let has_all = offset + u64::from(length) <= u64::from(sge.length);
            if !has_all || mrs.is_null(sge.lkey) {
                return None;
            }
            mrs.local(pd, sge.lkey, sge.addr.wrapping_add(offset), length, Access::empty()).ok()
        }
        Source::Remote { rkey, addr, length } => {
            mrs.remote(pd, rkey, addr, u64::from(length), Access::REMOTE_READ).ok()
        }
    }
}

/// Reads memory, and continues a CRC-32 over it, if there is one.
#[inline]
fn read(umem: &Umem, from: u64, to: &mut [u8], crc: Option<&mut u32>) -> Result<(), Fault> {
    match crc {
        Some(crc) => *crc = umem.read_crc32(from, to, *crc)?,
        None => umem.read(from, to)?,
    }
    Ok(())
}

/// Copies a payload to the buffer that it is sent from, and continues a CRC-32 over it, if there is
/// one.
pub(crate) fn fill(
    mrs: &MrTable,
    pd: PdId,
    source: Source<'_>,
    room: &mut [u8],
    mut crc: Option<&mut u32>,
) -> Result<(), TransmitError> {
    match source {
        Source::Empty => Ok(()),
        Source::Bytes(bytes) => {
            room.copy_from_slice(bytes);
            if let Some(crc) = crc {
                *crc = icrc::go_on(*crc, bytes);
            }
            Ok(())
        }
        Source::Sges { sges, offset, length } => {
            let mut at = 0;
            for_each_sge(mrs, pd, sges, offset, length, Access::empty(), |umem, from, piece| {
                let to = &mut room[at..at + piece as usize];
                at += piece as usize;
                read(umem, from, to, crc.as_deref_mut()).map_err(|fault| local_fault(&fault))
            })
            .map_err(TransmitError::Memory)
        }
        Source::Remote { rkey, addr, length } => {
            let (umem, from) = mrs
                .remote(pd, rkey, addr, u64::from(length), Access::REMOTE_READ)
                .map_err(TransmitError::Remote)?;
            read(umem, from, room, crc).map_err(|fault| TransmitError::Remote(remote_fault(&fault)))
        }
    }
}

/// A message that is cut into packets.
pub(crate) struct Gather<'a> {
    pub(crate) mrs: &'a MrTable,
    pub(crate) pd: PdId,
    pub(crate) source: Source<'a>,
    /// The memory under it, if it is in one piece and was looked up once for all packets.
    pub(crate) whole: Option<(&'a Umem, u64)>,
}

impl Fill for Gather<'_> {
    fn one(
        &mut self,
        at: u32,
        room: &mut [u8],
        mut crc: Option<&mut u32>,
    ) -> Result<(), TransmitError> {
        if let Some((umem, from)) = self.whole
            && read(umem, from + u64::from(at), room, crc.as_deref_mut()).is_ok()
        {
            return Ok(());
        }
        // Memory that cannot be read is found again, and reported.
        let part = self.source.part(at, room.len() as u32);
        fill(self.mrs, self.pd, part, room, crc)
    }

    fn several(&mut self, at: u32, train: &mut [u8], pieces: Pieces, crcs: &mut [u32]) -> bool {
        self.whole.is_some_and(|(umem, from)| {
            umem.read_pieces_crc32(from + u64::from(at), train, pieces, crcs)
        })
    }
}

#[cfg(test)]
mod tests {
    use dmabuf::{BusWindow, Iommu};
    use umem::{HostBuf, Touch};

    use super::*;

    #[test]
    fn a_fault_at_a_retired_address_is_a_stale_access() {
        let page = 4096;
        let window = BusWindow::new(1 << 20, Iommu::On).expect("addresses");
        let pages = HostBuf::memfd("stale", page as usize).expect("memory exists");
        let file = pages.fd().expect("a memfd");
        let placed = window.place(file, 0, page, "bo1").expect("room");
        let at = placed.addr();
        let fault = Fault::Page { touch: Touch::Write, addr: at, len: 8, at };
        let before = dmabuf::window::stale_accesses();

        assert_eq!(remote_fault(&fault), RemoteError::Fault);
        assert_eq!(window.stale_accesses(), 0, "the address is in force");
        placed.retire("moved");
        assert_eq!(remote_fault(&fault), RemoteError::Fault);
        assert_eq!(local_fault(&fault), LocalError::Fault);
        assert_eq!(window.stale_accesses(), 2);
        assert!(dmabuf::window::stale_accesses() >= before + 2);
    }
}

//! Memory regions and the key table.

use std::sync::Arc;

use iba::{Access, LKey, RKey};
use slab::Slab;
use transport::env::{LocalError, RemoteError};
use transport::wr::Sge;
use umem::Umem;

use crate::ids::{DmId, MrId, PdId};
use crate::memory::import::Import;
use crate::memory::null::Null;
use crate::memory::odp::Odp;
use crate::memory::peer::PeerRegion;
use crate::memory::window::WindowTable;
use crate::objects::charges::Charge;
use crate::objects::uses::Use;
use crate::random::random;

/// The kind of a region's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MrKind {
    /// Memory of the program.
    User,
    /// Memory of a peer device, registered by its address.
    Peer,
    /// A dma-buf.
    Dmabuf,
    /// Device memory.
    Dm(DmId),
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) pd: PdId,
    pub(crate) pd_use: Use,
    /// The use of the device memory that it is on.
    pub(crate) _dm_use: Option<Use>,
    pub(crate) key: u32,
    pub(crate) access: Access,
    /// The address of its first byte, in the addresses that work requests use.
    pub(crate) iova: u64,
    pub(crate) length: u64,
    pub(crate) umem: Umem,
    /// Its offset in `umem`.
    pub(crate) offset: u64,
    pub(crate) kind: MrKind,
    /// For a dma-buf, the attachment that `umem` came from.
    pub(crate) import: Option<Arc<Import>>,
    /// For a peer device's memory registered by address, the pages of `umem`.
    pub(crate) peer: Option<PeerRegion>,
    /// For an on-demand region, the pages that are present.
    pub(crate) odp: Option<Box<Odp>>,
    /// Set when the memory was revoked for good: the key is dead, and stays reserved until the
    /// region is deregistered (`docs/semantics.md` 2.4).
    pub(crate) is_revoked: bool,
    /// Pages charged to the limit of locked memory.
    pub(crate) pinned: u64,
    /// Whether the memory was registered for writing, which later rights may require.
    pub(crate) is_writable: bool,
    pub(crate) _charge: Charge,
}

impl Mr {
    /// The offset of `[addr, addr + length)` in [`Mr::umem`], if it is inside the region.
    pub(super) fn place(&self, addr: u64, length: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.iova)?;
        let end = offset.checked_add(length)?;
        (end <= self.length).then_some(self.offset + offset)
    }

    /// Brings in pages of a region that is paged on demand: `fault` does so in its count, which
    /// forgets those that the kernel took away. Returns what `fault` does, and how many went.
    pub(crate) fn page_in<T>(
        &mut self,
        addr: u64,
        length: u64,
        fault: impl FnOnce(&mut Odp) -> (T, bool),
    ) -> Option<(T, u64)> {
        let (iova, offset) = (self.iova, self.offset);
        let odp = self.odp.as_mut()?;
        let place = |addr: u64| offset.wrapping_add(addr.wrapping_sub(iova));
        let gone = odp.forget(addr, length, |addr, length| {
            let at = place(addr);
            let absent = self.umem.absent(at, length).into_iter();
            absent.map(|gone| addr + (gone.start - at)..addr + (gone.end - at)).collect()
        });
        let (result, is_done) = fault(odp);
        if is_done {
            self.umem.bring_in(place(addr), length);
        }
        Some((result, gone))
    }

    /// Whether the pages under `length` bytes at `addr` are there: in the count of a region that is
    /// paged on demand, and in memory.
    #[inline]
    fn is_present(&self, addr: u64, length: u64) -> bool {
        self.odp.as_ref().is_none_or(|odp| {
            odp.is_present(addr, length)
                && self.place(addr, length).is_none_or(|at| self.umem.is_resident(at, length))
        })
    }
}

/// All regions, by key: the index in the upper 24 bits, a tag in the lower 8 that begins anywhere
/// and changes with each use of the index.
#[derive(Debug, Default)]
pub(crate) struct MrTable {
    slots: Slab<Mr>,
    tags: Vec<u8>,
    /// The null region, if it was requested.
    pub(super) null: Option<Null>,
    /// How many regions were created, and the ordinal of the one in each slot, from 1.
    made: u64,
    ordinals: Vec<u64>,
    /// Memory windows: keys that expose parts of regions.
    pub(crate) windows: WindowTable,
}

impl MrTable {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds a region whose key is made by the table.
    pub(crate) fn insert(&mut self, make: impl FnOnce(u32) -> Mr) -> (MrId, u32) {
        let entry = self.slots.vacant_entry();
        let index = entry.key();
        if index >= self.tags.len() {
            // No key can be predicted before it exists.
            self.tags.resize_with(index + 1, || random() as u8);
        }
        // Programs write key 0 where they mean no key, so index 0 never has tag 0.
        self.tags[index] = match self.tags[index].wrapping_add(1) {
            0 if index == 0 => 1,
            tag => tag,
        };
        if index >= self.ordinals.len() {
            self.ordinals.resize(index + 1, 0);
        }
        self.made += 1;
        self.ordinals[index] = self.made;
        let key = (index as u32) << 8 | u32::from(self.tags[index]);
        entry.insert(make(key));
        (index.into(), key)
    }

    /// The region with this ordinal in the order of creation, from 1, if it still exists.
    pub(crate) fn by_ordinal(&self, ordinal: u64) -> Option<MrId> {
        self.ids().find(|id| self.ordinals.get(id.index()) == Some(&ordinal))
    }

    pub(crate) fn get(&self, id: MrId) -> Option<&Mr> {
        self.slots.get(id.index())
    }

    pub(crate) fn get_mut(&mut self, id: MrId) -> Option<&mut Mr> {
        self.slots.get_mut(id.index())
    }

    pub(crate) fn remove(&mut self, id: MrId) -> Option<Mr> {
        self.slots.try_remove(id.index())
    }

    /// Gives a region another key at the same index.
    pub(crate) fn rekey(&mut self, id: MrId) -> Option<u32> {
        let mr = self.slots.get_mut(id.index())?;
        let tag = &mut self.tags[id.index()];
        *tag = match tag.wrapping_add(1) {
            0 if id.index() == 0 => 1,
            tag => tag,
        };
        mr.key = id.0 << 8 | u32::from(*tag);
        Some(mr.key)
    }

    /// All regions.
    pub(crate) fn ids(&self) -> impl Iterator<Item = MrId> {
        self.slots.iter().map(|(index, _)| index.into())
    }

    /// The regions of some protection domains.
    pub(crate) fn ids_in(&self, pds: &[PdId]) -> Vec<MrId> {
        let of_pds = self.slots.iter().filter(|(_, mr)| pds.contains(&mr.pd));
        of_pds.map(|(index, _)| index.into()).collect()
    }

    fn by_key(&self, key: u32) -> Option<&Mr> {
        self.slots.get((key >> 8) as usize).filter(|mr| mr.key == key && !mr.is_revoked)
    }

    /// The region that has this key, dead or alive.
    pub(crate) fn id_of(&self, key: u32) -> Option<MrId> {
        let index = (key >> 8) as usize;
        self.slots.get(index).filter(|mr| mr.key == key).map(|_| index.into())
    }

    /// The region with a key.
    pub(super) fn find(&self, key: u32) -> Option<(MrId, &Mr)> {
        self.by_key(key).map(|mr| (MrId(key >> 8), mr))
    }

    /// The kind of a region's memory.
    pub(crate) fn kind_of(&self, key: u32) -> Option<MrKind> {
        self.find(key).map(|(_, mr)| mr.kind)
    }

    /// The protection domain of a region.
    pub(crate) fn pd_of(&self, key: RKey) -> Option<PdId> {
        self.by_key(key.0).map(|mr| mr.pd)
    }

    /// The memory of a scatter/gather element (IBA 10.6.7.2, o10-37).
    #[inline]
    pub(crate) fn local(
        &self,
        pd: PdId,
        key: LKey,
        addr: u64,
        length: u32,
        access: Access,
    ) -> Result<(&Umem, u64), LocalError> {
        let (mr, offset) = self.find_local(pd, key, addr, length, access)?;
        if !mr.is_present(addr, u64::from(length)) {
            return Err(LocalError::NotPresent);
        }
        Ok((&mr.umem, offset))
    }

    #[inline]
    fn find_local(
        &self,
        pd: PdId,
        key: LKey,
        addr: u64,
        length: u32,
        access: Access,
    ) -> Result<(&Mr, u64), LocalError> {
        let mr = self.by_key(key.0).ok_or(LocalError::Protection)?;
        if mr.pd != pd || !mr.access.contains(access) {
            return Err(LocalError::Protection);
        }
        let offset = mr.place(addr, u64::from(length)).ok_or(LocalError::Protection)?;
        Ok((mr, offset))
    }

    /// Checks every element of a list; elements of no length need no key.
    pub(crate) fn check_local(
        &self,
        pd: PdId,
        sges: &[Sge],
        access: Access,
    ) -> Result<(), LocalError> {
        for sge in sges.iter().filter(|sge| sge.length > 0 && !self.is_null(sge.lkey)) {
            self.find_local(pd, sge.lkey, sge.addr, sge.length, access)?;
        }
        Ok(())
    }

    /// Whether a peer may do something to a region as a whole.
    pub(crate) fn remote_whole(
        &self,
        pd: PdId,
        key: RKey,
        access: Access,
    ) -> Result<(), RemoteError> {
        match self.by_key(key.0) {
            Some(mr) if mr.pd == pd && mr.access.contains(access) => Ok(()),
            _ => Err(RemoteError::Access),
        }
    }

    /// The memory that a peer names.
    #[inline]
    pub(crate) fn remote(
        &self,
        pd: PdId,
        key: RKey,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<(&Umem, u64), RemoteError> {
        let (mr, addr) = self.find_remote(pd, key, addr, length, access)?;
        let offset = mr.place(addr, length).ok_or(RemoteError::Access)?;
        if !mr.is_present(addr, length) {
            return Err(RemoteError::NotPresent);
        }
        Ok((&mr.umem, offset))
    }

    /// Whether a peer may use a range, whether or not its pages are present.
    pub(crate) fn check_remote(
        &self,
        pd: PdId,
        key: RKey,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<(), RemoteError> {
        let (mr, addr) = self.find_remote(pd, key, addr, length, access)?;
        mr.place(addr, length).map(|_| ()).ok_or(RemoteError::Access)
    }

    /// The region that a peer names, by its key or by that of a window on it, and the address in
    /// it.
    #[inline]
    fn find_remote(
        &self,
        pd: PdId,
        key: RKey,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<(&Mr, u64), RemoteError> {
        let Some(mr) = self.by_key(key.0) else {
            return self.through_window(pd, key, addr, length, access);
        };
        if mr.pd != pd || !mr.access.contains(access) {
            return Err(RemoteError::Access);
        }
        Ok((mr, addr))
    }
}

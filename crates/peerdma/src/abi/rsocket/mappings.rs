//! What a program mapped for its peer, and which mappings the peer must still be told.

use std::collections::VecDeque;

use rsocket::{Mapping, Sge};

use crate::abi::rdmacm::objects::Region;

/// What a program mapped on one connection.
#[derive(Default)]
pub(super) struct Maps {
    all: Vec<Map>,
    /// Entries of the peer's table that it has not been told yet.
    untold: VecDeque<u32>,
}

/// One range of the program's memory.
pub(super) struct Map {
    pub(super) addr: usize,
    pub(super) length: usize,
    pub(super) offset: u64,
    pub(super) region: Region,
    /// The entry of the peer's table; none if the peer may not write there.
    pub(super) index: Option<u32>,
}

impl Maps {
    /// An entry of the peer's table, of `room`, that is free.
    pub(super) fn free(&self, room: u32) -> Option<u32> {
        (0..room).find(|index| self.all.iter().all(|map| map.index != Some(*index)))
    }

    /// Adds one. The peer must be told of its entry.
    pub(super) fn add(&mut self, map: Map) {
        self.untold.extend(map.index);
        self.all.push(map);
    }

    /// Removes the mapping of these bytes.
    pub(super) fn remove(&mut self, addr: usize, length: usize) -> Option<Map> {
        let at = self.all.iter().position(|map| (map.addr, map.length) == (addr, length))?;
        let map = self.all.remove(at);
        self.untold.retain(|index| Some(*index) != map.index);
        Some(map)
    }

    /// Whether the peer must still be told of an entry.
    pub(super) fn has_untold(&self) -> bool {
        self.next().is_some()
    }

    /// Takes the next entry that the peer must be told, and its contents.
    pub(super) fn take_untold(&mut self) -> Option<(u32, Mapping)> {
        let next = self.next()?;
        self.untold.pop_front();
        Some(next)
    }

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

//! Importers in other processes, as the exporter sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use descriptors::PrivateFd;
use rustix::io::Errno;

use super::message::{Attach, Note};
use super::socket::{self, Bell};
use crate::attached::{DeviceAddr, ImporterClass};
use crate::attachment::{Attachment, MapGuard, PinGuard};
use crate::gate::Gate;
use crate::importer::Importer;
use crate::resv::ResvGuard;

/// An importer in another process.
pub(super) struct StandIn {
    name: String,
    class: ImporterClass,
    peer2peer: bool,
    device: Option<DeviceAddr>,
    process: u32,
    note: Note,
    notes: Arc<Notes>,
    gate: Option<Gate>,
    held: Mutex<Held>,
}

/// Its pins and maps, by the numbers that its process chose.
#[derive(Default)]
pub(super) struct Held {
    pub(super) pins: BTreeMap<u64, PinGuard>,
    pub(super) maps: BTreeMap<u64, MapGuard>,
}

impl StandIn {
    pub(super) fn new(
        attach: &Attach,
        pid: Option<u32>,
        gate: Option<&Gate>,
        notes: Arc<Notes>,
    ) -> Self {
        let process = pid.unwrap_or(0);
        Self {
            name: match pid {
                Some(pid) => format!("{} of process {pid}", attach.name),
                None => format!("{} of a process of another pid namespace", attach.name),
            },
            class: attach.class,
            peer2peer: attach.peer2peer,
            device: attach.device,
            process,
            note: Note::Invalidate { buf: attach.buf, attachment: attach.attachment },
            notes,
            gate: gate.cloned(),
            held: Mutex::default(),
        }
    }

    pub(super) fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the other process can no longer use the addresses of this map.
    fn is_void(&self, map: &MapGuard) -> bool {
        let closed = |gate: &Gate| map.table().epoch.is_some_and(|epoch| !gate.admits(epoch));
        self.gate.as_ref().is_some_and(closed)
    }
}

impl Importer for StandIn {
    fn name(&self) -> &str {
        &self.name
    }

    fn class(&self) -> ImporterClass {
        self.class
    }

    fn allow_peer2peer(&self) -> bool {
        self.peer2peer
    }

    fn device(&self) -> Option<DeviceAddr> {
        self.device
    }

    fn process(&self) -> Option<u32> {
        Some(self.process)
    }

    /// The exporter has closed the gate, so access has ended whatever the other process does, and
    /// its maps can be dropped at once: an exporter that waits until nothing is mapped does not
    /// wait for another process. Maps without a gate are dropped when the other process asks for
    /// it.
    fn invalidate_mappings(&self, resv: &ResvGuard<'_>, _: &Attachment) {
        let (maps, pins) = {
            let mut held = self.held();
            let (void, rest) = std::mem::take(&mut held.maps)
                .into_iter()
                .partition::<BTreeMap<_, _>, _>(|(_, map)| self.is_void(map));
            held.maps = rest;
            let is_over = self.class == ImporterClass::PinnedRevocable && held.maps.is_empty();
            let pins = if is_over { std::mem::take(&mut held.pins) } else { BTreeMap::new() };
            (void, pins)
        };
        for map in maps.into_values() {
            map.unmap(resv);
        }
        for pin in pins.into_values() {
            pin.unpin(resv);
        }
        self.notes.push(self.note);
    }
}

/// Notes for one process. Notes for which it has no room are kept, each once, and sent when it has.
#[derive(Debug)]
pub(super) struct Notes {
    socket: PrivateFd,
    pending: Mutex<BTreeSet<Note>>,
    /// Wakes the thread that sends the kept notes.
    bell: Bell,
}

impl Notes {
    pub(super) fn new(socket: OwnedFd) -> Result<Self, Errno> {
        let (socket, pending) = (PrivateFd::new(socket), Mutex::default());
        Ok(Self { socket, pending, bell: Bell::new()? })
    }

    /// Sends a note, now or later. Never waits.
    pub(super) fn push(&self, note: Note) {
        self.pending().insert(note);
        if self.flush() {
            self.bell.ring();
        }
    }

    /// Sends the kept notes, and returns whether any remain.
    pub(super) fn flush(&self) -> bool {
        if self.socket.is_husk() {
            return false;
        }
        let mut pending = self.pending();
        while let Some(note) = pending.first().copied() {
            match socket::send(&self.socket, &note.encode(), &[]) {
                Ok(()) => {
                    pending.pop_first();
                }
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return true,
                Err(_) => {
                    // The process is gone; its connection shows that as well.
                    pending.clear();
                }
            }
        }
        false
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    fn pending(&self) -> MutexGuard<'_, BTreeSet<Note>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Notes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

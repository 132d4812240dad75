//! The direct path: one-sided operations on another process's memory, carried out by the initiator.
//!
//! A NIC needs no thread of its target to write its memory. Where the kernel lets us, neither do
//! we: the initiator looks the key up in the target's published table, copies, and is done. Between
//! two processes of one user with ptrace permission that is `process_vm_writev`, or a plain copy
//! where the target's memory is a file that both map.
//!
//! While it copies, the initiator holds its *guard slot* ([`Outbound::hold`]). A thread that takes
//! a region away first kills its table entry and then waits for the slots that were held for its
//! key; a copy checks, every 256 KiB, whether the entry is still valid. So once a region is
//! deregistered, nothing touches its memory. [`crate::Hca`] does the waiting, and releases the
//! engine's lock meanwhile.
//!
//! A process is reached by its number, which outlives it. Its table has a mark that the kernel
//! clears before the process ends or executes another program ([`umem::mark`]), and that is checked
//! right before each piece.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use descriptors::Known;
use dmabuf::GateSlot;
use iba::{Access, Qpn, RKey};
use link::shm::{Outbound, OutboundState};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use smallvec::{Array, SmallVec};
use transport::RUN;
use transport::env::{AtomicOp, Direct, Local, OneSided, OneSidedKind};
use umem::{Fault, HostBuf, LocalPart, RemoteFault, RemotePart, RemoteProcess, Touch, Umem};

use super::table::{MrWords, PeerTable};
use crate::carrier::atomic;
use crate::ids::PdId;
use crate::memory::mr::MrTable;
use crate::payload::{for_each_sge, local_fault};

/// Mapped files kept for one peer.
const MAX_MAPPED: usize = 256;
/// Bytes between two checks of the table.
pub(crate) const PIECE: u64 = 256 << 10;
/// Room for the inline bytes of operations that are carried out together.
const INLINE: usize = 16 << 10;

/// Memory of ours, where a range begins in it, and how long the range is.
type LocalRange = (Umem, u64, u64);

/// What is needed to touch a peer's memory.
#[derive(Debug)]
pub(super) struct DirectPeer {
    table: PeerTable,
    process: RemoteProcess,
    files: Files,
    mapped: MappedRegions,
    /// The region of the last operation, if it cannot be mapped.
    ordinary: Option<u32>,
    /// Where inline bytes lie while they are copied.
    inline: HostBuf,
}

/// A region of a peer, mapped here: for the entry that had these words.
#[derive(Debug)]
struct Mapped {
    words: MrWords,
    umem: Option<Umem>,
}

/// Regions of a peer that are mapped here, by the index in their keys: an index has one key at a
/// time.
#[derive(Debug, Default)]
struct MappedRegions {
    slots: Vec<Option<Box<Mapped>>>,
    count: usize,
}

impl MappedRegions {
    /// The region that was mapped for this key.
    #[inline]
    fn get(&self, key: u32) -> Option<&Mapped> {
        let mapped = self.slots.get(index_of(key))?.as_deref()?;
        // CAST: the key is the lower half of the word.
        (mapped.words.version as u32 == key).then_some(mapped)
    }

    /// The place of a region that the peer's table has, so that its index is one of that table.
    fn slot(&mut self, key: u32) -> &mut Option<Box<Mapped>> {
        let index = index_of(key);
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        &mut self.slots[index]
    }

    /// Keeps the regions whose key `lives`.
    fn retain(&mut self, lives: impl Fn(u32) -> bool) {
        for slot in &mut self.slots {
            // CAST: as above.
            if slot.as_ref().is_some_and(|mapped| !lives(mapped.words.version as u32)) {
                *slot = None;
                self.count -= 1;
            }
        }
        if self.count == 0 {
            self.slots.clear();
        }
    }
}

const fn index_of(key: u32) -> usize {
    (key >> 8) as usize
}

/// Files of a peer that are open here, and gates of its buffers, by inode: an inode is not reused
/// while they are.
#[derive(Debug)]
struct Files {
    pidfd: Option<Known>,
    open: HashMap<u64, HostBuf>,
    gates: HashMap<u64, GateSlot>,
}

impl Files {
    /// A file of the peer, if the descriptor still refers to that file.
    fn take(&self, fd: i32, inode: u64) -> Option<OwnedFd> {
        let file = pidfd_getfd(self.pidfd.as_ref()?, fd, PidfdGetfdFlags::empty()).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        (stat.st_ino == inode).then_some(file)
    }

    /// The file that has the first `end` bytes of it, mapped.
    fn open(&mut self, fd: i32, inode: u64, end: u64) -> Option<&HostBuf> {
        // One that has grown is mapped anew. The regions that were there before keep what they
        // have.
        if self.open.get(&inode).is_none_or(|buffer| (buffer.len() as u64) < end) {
            let file = self.take(fd, inode)?;
            let size = rustix::fs::fstat(&file).ok()?.st_size;
            let buffer = HostBuf::received(file, usize::try_from(size).ok()?).ok()?;
            buffer.dont_fork().ok()?;
            self.open.insert(inode, buffer);
        }
        self.open.get(&inode)
    }

    fn gate(&mut self, fd: i32, inode: u64) -> Option<GateSlot> {
        if !self.gates.contains_key(&inode) {
            let slot = GateSlot::claim(self.take(fd, inode)?.as_fd()).ok()?;
            self.gates.insert(inode, slot);
        }
        self.gates.get(&inode).cloned()
    }

    /// A region of the peer in our own address space, if it is a file.
    fn map(&mut self, words: &MrWords) -> Option<Umem> {
        let (fd, offset, inode) = words.file?;
        let gate = match words.gate {
            Some((fd, inode, epoch)) => Some((self.gate(fd, inode)?, epoch)),
            None => None,
        };
        let buffer = self.open(fd, inode, offset.checked_add(words.length)?)?;
        let there = match gate {
            Some((gate, epoch)) => {
                Umem::host_range_behind(buffer, offset, words.length, gate, epoch).ok()
            }
            None => Umem::host_range(buffer, offset, words.length).ok(),
        };
        Some(there?.reached(words.way))
    }

    fn forget(&mut self) {
        self.open.clear();
        self.gates.clear();
    }
}

/// Checks whether a peer that answered can be reached directly, and logs the result.
pub(super) fn probe(outbound: &mut Outbound) -> Result<DirectPeer, String> {
    let OutboundState::Up(info) = *outbound.state() else {
        return Err("it has not answered yet".to_owned());
    };
    let pid = info.pid.ok_or("it lives in another pid namespace")?;
    let table = outbound.take_table().ok_or("it belongs to another user")?;
    let table = PeerTable::map(table).ok_or("its table has another layout")?;
    let pidfd = Pid::from_raw(pid as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    // As long as the mark is set, the pid was the peer's here, too.
    let process = RemoteProcess::probe(pid as i32, info.probe.addr, info.probe.value)
        .map_err(|refused| refused.to_string())?
        .while_marked(table.mark());
    let inline = HostBuf::anonymous(INLINE).map_err(|error| error.to_string())?;
    let pidfd = pidfd.map(Known::new);
    let files = Files { pidfd, open: HashMap::new(), gates: HashMap::new() };
    let mapped = MappedRegions::default();
    Ok(DirectPeer { table, process, files, mapped, ordinary: None, inline })
}

impl MrWords {
    /// Where an operation begins in the region, if all of it lies inside.
    fn offset_of(&self, op: &OneSided<'_>) -> Option<u64> {
        let offset = op.remote_addr.checked_sub(self.iova)?;
        (offset.checked_add(u64::from(op.length))? <= self.length).then_some(offset)
    }
}

/// The two ends of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parties {
    pub(crate) own: Qpn,
    pub(crate) peer: Qpn,
    pub(crate) pd: PdId,
}

impl DirectPeer {
    /// Carries out an operation, or declines it.
    pub(super) fn one_sided(
        &mut self,
        outbound: &mut Outbound,
        mrs: &MrTable,
        parties: Parties,
        op: &OneSided<'_>,
    ) -> Direct {
        let RKey(key) = op.rkey;
        // Key 0 is not a key, and a slot held for it would be free.
        if key == 0 {
            return Direct::Declined;
        }
        let guard = outbound.hold(key);
        let Some((words, offset)) = self.check(parties, op) else { return Direct::Declined };
        let result = match op.kind {
            OneSidedKind::Atomic(atomic) => {
                self.atomic(mrs, parties.pd, op, &words, offset, atomic)
            }
            OneSidedKind::Write | OneSidedKind::Read => {
                self.copy(mrs, parties.pd, op, &words, offset)
            }
        };
        drop(guard);
        result
    }

    /// Carries out a WRITE or READ of one piece of at most [`PIECE`] bytes, if the peer's region is
    /// mapped here.
    pub(super) fn one_sided_at_hand(
        &mut self,
        outbound: &mut Outbound,
        mrs: &MrTable,
        parties: Parties,
        op: &OneSided<'_>,
    ) -> bool {
        let RKey(key) = op.rkey;
        let Local::Sges([sge]) = op.local else { return false };
        if matches!(op.kind, OneSidedKind::Atomic(_)) {
            return false;
        }
        let (need, local_need) = (op.kind.remote_access(), op.kind.local_access());
        let Some(Mapped { words, umem: Some(there) }) = self.mapped.get(key) else { return false };
        let Some(offset) = words.offset_of(op) else { return false };
        if u64::from(op.length) > PIECE || !words.access.contains(need) || mrs.is_null(sge.lkey) {
            return false;
        }
        let here = mrs.local(parties.pd, sge.lkey, sge.addr, op.length, local_need);
        let Ok((here, at)) = here else { return false };
        let guard = outbound.hold(key);
        // The words are those of the entry as long as it has the same first one.
        let is_granted = self.process.lives()
            && self.table.is_at(key, words.version)
            && self.may(parties, need, words.pd);
        let length = u64::from(op.length);
        let is_done = is_granted
            && match op.kind {
                OneSidedKind::Write => Umem::copy(there, offset, here, at, length),
                _ => Umem::copy(here, at, there, offset, length),
            }
            .is_ok();
        drop(guard);
        if is_done {
            self.ordinary = None;
        }
        is_done
    }

    /// Carries out several operations that are alike in one call. Returns how many, from the first
    /// one.
    pub(super) fn one_sided_run(
        &mut self,
        outbound: &mut Outbound,
        mrs: &MrTable,
        parties: Parties,
        ops: &[OneSided<'_>],
    ) -> usize {
        let Some(RKey(key)) = ops.first().map(|op| op.rkey).filter(|key| *key != RKey(0)) else {
            return 0;
        };
        let guard = outbound.hold(key);
        let done = self.copy_run(mrs, parties, ops);
        drop(guard);
        done
    }

    fn copy_run(&mut self, mrs: &MrTable, parties: Parties, ops: &[OneSided<'_>]) -> usize {
        let Some((words, _)) = self.check(parties, &ops[0]) else { return 0 };
        // In memory that is mapped here, each operation is a copy without a call.
        if words.gate.is_some()
            || Self::map(&mut self.mapped, &mut self.files, ops[0].rkey.0, &words).is_some()
        {
            return 0;
        }
        let is_write = ops[0].kind == OneSidedKind::Write;
        let mut ours: SmallVec<[LocalRange; RUN]> = SmallVec::new();
        let mut theirs: SmallVec<[RemotePart; RUN]> = SmallVec::new();
        let (mut inline, mut total) = (0, 0);
        for op in ops {
            let Some(offset) = words.offset_of(op) else { break };
            let before = ours.len();
            total += u64::from(op.length);
            let found = local_parts(&self.inline, inline, mrs, parties.pd, op, &mut ours);
            if let Local::Bytes(bytes) = op.local {
                inline += bytes.len();
            }
            if found.is_err() || total > PIECE {
                ours.truncate(before);
                break;
            }
            theirs.push(RemotePart { addr: words.addr + offset, len: u64::from(op.length) });
        }
        let local: SmallVec<[LocalPart<'_>; RUN]> = ours
            .iter()
            .map(|(umem, offset, len)| LocalPart { umem, offset: *offset, len: *len })
            .collect();
        if is_write {
            self.process.write_each(&local, &theirs)
        } else {
            self.process.read_each(&local, &theirs)
        }
    }

    /// Whether operations on a region cost a system call each, so that several together cost less.
    pub(super) fn gathers(&self, RKey(key): RKey) -> bool {
        RemoteProcess::GATHERS && self.ordinary == Some(key)
    }

    /// Whether the table lists the region now.
    pub(super) fn is_published(&self, RKey(key): RKey) -> bool {
        self.table.lives(key)
    }

    /// Permissions are decided as the target's responder decides them. Requests that it would
    /// refuse are declined here, so that the refusal comes from the target itself.
    fn check(&self, parties: Parties, op: &OneSided<'_>) -> Option<(MrWords, u64)> {
        let need = op.kind.remote_access();
        // Memory mapped here stays when the peer ends, and so does its table.
        if !self.process.lives() {
            return None;
        }
        let words = self.table.mr(op.rkey.0)?;
        let offset = words.offset_of(op)?;
        let may = words.access.contains(need) && self.may(parties, need, words.pd);
        may.then_some((words, offset))
    }

    /// Whether the peer's QP lets us do something to regions of this protection domain.
    #[inline]
    fn may(&self, parties: Parties, need: Access, pd: u32) -> bool {
        self.table.qp(parties.peer).is_some_and(|qp| qp.lets(parties.own, need, pd))
    }

    fn copy(
        &mut self,
        mrs: &MrTable,
        pd: PdId,
        op: &OneSided<'_>,
        words: &MrWords,
        offset: u64,
    ) -> Direct {
        let is_write = op.kind == OneSidedKind::Write;
        let mut parts: SmallVec<[LocalRange; 4]> = SmallVec::new();
        if let Err(refused) = local_parts(&self.inline, 0, mrs, pd, op, &mut parts) {
            return refused;
        }
        let (table, key) = (&self.table, op.rkey.0);
        let process = &self.process;
        self.ordinary = None;
        if let Some(there) = Self::map(&mut self.mapped, &mut self.files, key, words) {
            return copy_mapped(there, offset, &parts, is_write, || {
                process.lives() && table.lives(key)
            });
        }
        if words.gate.is_some() {
            // Its address in the other process may refer to other memory by now.
            return Direct::Declined;
        }
        self.ordinary = Some(key);
        let local: SmallVec<[LocalPart<'_>; 4]> = parts
            .iter()
            .map(|(umem, offset, len)| LocalPart { umem, offset: *offset, len: *len })
            .collect();
        let there = words.addr + offset;
        let mut lives = || table.lives(key);
        let copied = if is_write {
            process.write(&local, there, &mut lives)
        } else {
            process.read(&local, there, &mut lives)
        };
        match copied {
            Ok(()) => Direct::Done,
            Err(RemoteFault::Local(fault)) => Direct::Local(local_fault(&fault)),
            // Gone, refused, or withdrawn in the meantime: the target itself will report it.
            Err(_) => Direct::Declined,
        }
    }

    fn atomic(
        &mut self,
        mrs: &MrTable,
        pd: PdId,
        op: &OneSided<'_>,
        words: &MrWords,
        offset: u64,
        atomic: AtomicOp,
    ) -> Direct {
        match Self::map(&mut self.mapped, &mut self.files, op.rkey.0, words) {
            Some(there) => atomic::carry_out(mrs, pd, op, there, offset, atomic),
            None => Direct::Declined,
        }
    }

    /// The peer's region in our own address space, if it is a file.
    fn map<'m>(
        mapped: &'m mut MappedRegions,
        files: &mut Files,
        key: u32,
        words: &MrWords,
    ) -> Option<&'m Umem> {
        if mapped.count >= MAX_MAPPED && mapped.slot(key).is_none() {
            *mapped = MappedRegions::default();
            files.forget();
        }
        mapped.count += usize::from(mapped.slot(key).is_none());
        let slot = mapped.slot(key);
        if slot.as_ref().is_none_or(|mapped| mapped.words.version != words.version) {
            *slot = Some(Box::new(Mapped { words: *words, umem: files.map(words) }));
        }
        slot.as_ref()?.umem.as_ref()
    }

    /// Unmaps regions that are gone.
    pub(super) fn forget_dead(&mut self) {
        let table = &self.table;
        self.mapped.retain(|key| table.lives(key));
        if self.mapped.count == 0 {
            self.files.forget();
        }
    }
}

/// Adds the local memory of a WRITE or READ to `parts`. Inline bytes are stored at `at` of
/// `inline`.
fn local_parts<A: Array<Item = LocalRange>>(
    inline: &HostBuf,
    at: usize,
    mrs: &MrTable,
    pd: PdId,
    op: &OneSided<'_>,
    parts: &mut SmallVec<A>,
) -> Result<(), Direct> {
    match op.local {
        Local::Bytes(bytes) => {
            inline.write(at, bytes).map_err(|_| Direct::Declined)?;
            parts.push((Umem::host(inline), at as u64, bytes.len() as u64));
            Ok(())
        }
        Local::Sges(sges) => {
            let need = op.kind.local_access();
            for_each_sge(mrs, pd, sges, 0, op.length, need, |umem, at, length| {
                umem.for_each_part(at, u64::from(length), |umem, at, length| {
                    parts.push((umem.clone(), at, length));
                });
                Ok(())
            })
            .map_err(Direct::Local)
        }
    }
}

fn copy_mapped(
    there: &Umem,
    offset: u64,
    parts: &[LocalRange],
    is_write: bool,
    lives: impl Fn() -> bool,
) -> Direct {
    let mut at = offset;
    for (umem, start, length) in parts {
        let mut done = 0;
        while done < *length {
            if at > offset && !lives() {
                return Direct::Declined;
            }
            let piece = PIECE.min(length - done);
            let copied = if is_write {
                Umem::copy(there, at, umem, start + done, piece)
            } else {
                Umem::copy(umem, start + done, there, at, piece)
            };
            match copied {
                Ok(()) => {}
                // The memory moved in the meantime, at either end: packets will find it.
                Err(Fault::Stale { .. }) => return Direct::Declined,
                // The fault is on the target's side: the target itself will report it.
                Err(Fault::Page { touch, .. }) if (touch == Touch::Write) == is_write => {
                    return Direct::Declined;
                }
                Err(fault) => return Direct::Local(local_fault(&fault)),
            }
            at += piece;
            done += piece;
        }
    }
    Direct::Done
}

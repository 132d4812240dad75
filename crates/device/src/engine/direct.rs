//! The direct path: one-sided operations on another process's memory, carried out by the initiator.
//!
//! A NIC needs no thread of its target to write its memory. Where the kernel lets us, neither do we: the initiator looks
//! the key up in the target's published table, copies, and is done. Between two processes of one user with ptrace
//! permission that is `process_vm_writev`, or a plain copy where the target's memory is a file that both map.
//!
//! While it copies, the initiator holds a *guard slot*: the key, in a word of the page it shares with the target. Who
//! takes a region away first kills its table entry and then waits for the slots that hold its key; who copies looks,
//! every 256 KiB, whether the entry still lives. So once a region is deregistered nothing touches its memory.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use iba::{Access, Qpn, RKey};
use link::shm::{Inbound, InboundState, Outbound, OutboundState};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use smallvec::SmallVec;
use transport::env::{AtomicOp, Direct, Local, OneSided, OneSidedKind};
use umem::{Backing, Fault, HostBuf, LocalPart, RemoteFault, RemoteProcess, Touch, Umem};

use super::Engine;
use super::env::Route;
use super::mr::MrTable;
use super::payload::{for_each_sge, local_fault};
use super::table::{MrWords, PeerTable, Table, qp_word};
use crate::ids::{MrId, PdId, QpId};

/// Where the guard slot lies in the page that initiator and target share.
const SLOT: usize = 0;
/// Mapped files kept for one peer.
const MAX_MAPPED: usize = 256;
/// Bytes between two looks at the table.
const PIECE: u64 = 256 << 10;

/// What it takes to touch a peer's memory.
#[derive(Debug)]
pub(crate) struct DirectPeer {
    table: PeerTable,
    process: RemoteProcess,
    pidfd: Option<OwnedFd>,
    mapped: HashMap<u32, Option<Mapped>>,
    /// Where inline bytes lie while they are copied.
    inline: HostBuf,
}

/// A region of a peer, mapped here.
#[derive(Debug)]
struct Mapped {
    umem: Umem,
}

/// Finds out whether a peer that answered can be reached directly, and says so in words.
pub(crate) fn probe(outbound: &mut Outbound) -> Result<DirectPeer, String> {
    let OutboundState::Up(info) = *outbound.state() else {
        return Err("it has not answered yet".to_owned());
    };
    let pid = info.pid.ok_or("it lives in another pid namespace")?;
    let table = outbound.take_table().ok_or("it belongs to another user")?;
    let table = PeerTable::map(table).ok_or("its table has another layout")?;
    let process = RemoteProcess::probe(pid as i32, info.probe.addr, info.probe.value)
        .map_err(|refused| refused.to_string())?;
    let pidfd = Pid::from_raw(pid as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let inline = HostBuf::anonymous(4096).map_err(|error| error.to_string())?;
    Ok(DirectPeer { table, process, pidfd, mapped: HashMap::new(), inline })
}

/// The guard slot, held. Dropping it frees it.
struct Slot<'a>(&'a Outbound);

impl<'a> Slot<'a> {
    fn hold(outbound: &'a Outbound, key: u32) -> Self {
        // ORDERING: the slot is taken before the table is read, and the table is changed before the slot is read: of a
        // copy and a withdrawal at the same moment at least one sees the other.
        let _ = outbound.scratch().store_u64(SLOT, u64::from(key), Ordering::SeqCst);
        Self(outbound)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let _ = self.0.scratch().store_u64(SLOT, 0, Ordering::Release);
    }
}

/// Who asks, of whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parties {
    pub(crate) own: Qpn,
    pub(crate) peer: Qpn,
    pub(crate) pd: PdId,
}

impl DirectPeer {
    /// Carries out an operation, or declines it.
    pub(crate) fn one_sided(
        &mut self,
        outbound: &Outbound,
        mrs: &MrTable,
        parties: Parties,
        op: &OneSided<'_>,
    ) -> Direct {
        let RKey(key) = op.rkey;
        let slot = Slot::hold(outbound, key);
        let Some((words, offset)) = self.check(parties, op) else { return Direct::Declined };
        let result = match op.kind {
            OneSidedKind::Atomic(atomic) => {
                self.atomic(mrs, parties.pd, op, &words, offset, atomic)
            }
            OneSidedKind::Write | OneSidedKind::Read => {
                self.copy(mrs, parties.pd, op, &words, offset)
            }
        };
        drop(slot);
        result
    }

    /// Who may do what is decided as the target's responder would. What it would refuse is declined here, so that the
    /// refusal comes from the target itself.
    fn check(&self, parties: Parties, op: &OneSided<'_>) -> Option<(MrWords, u64)> {
        let need = match op.kind {
            OneSidedKind::Write => Access::REMOTE_WRITE,
            OneSidedKind::Read => Access::REMOTE_READ,
            OneSidedKind::Atomic(_) => Access::REMOTE_ATOMIC,
        };
        let qp = self.table.qp(parties.peer)?;
        if qp.peer != parties.own || !qp.access.contains(need) {
            return None;
        }
        let words = self.table.mr(op.rkey.0)?;
        let offset = op.remote_addr.checked_sub(words.iova)?;
        let inside = offset.checked_add(u64::from(op.length))? <= words.length;
        (inside && words.pd == qp.pd && words.access.contains(need)).then_some((words, offset))
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
        let mut parts: SmallVec<[(Umem, u64, u64); 4]> = SmallVec::new();
        match op.local {
            Local::Bytes(bytes) => {
                if self.inline.write(0, bytes).is_err() {
                    return Direct::Declined;
                }
                parts.push((Umem::host(&self.inline), 0, bytes.len() as u64));
            }
            Local::Sges(sges) => {
                let need = if is_write { Access::empty() } else { Access::LOCAL_WRITE };
                let found = for_each_sge(mrs, pd, sges, 0, op.length, need, |umem, at, length| {
                    parts.push((umem.clone(), at, u64::from(length)));
                    Ok(())
                });
                if let Err(error) = found {
                    return Direct::Local(error);
                }
            }
        }
        let (table, key) = (&self.table, op.rkey.0);
        if let Some(mapped) = Self::map(&mut self.mapped, self.pidfd.as_ref(), key, words) {
            return copy_mapped(&mapped.umem, offset, &parts, is_write, || table.lives(key));
        }
        let local: SmallVec<[LocalPart<'_>; 4]> = parts
            .iter()
            .map(|(umem, offset, len)| LocalPart { umem, offset: *offset, len: *len })
            .collect();
        let there = words.addr + offset;
        let mut lives = || table.lives(key);
        let copied = if is_write {
            self.process.write(&local, there, &mut lives)
        } else {
            self.process.read(&local, there, &mut lives)
        };
        match copied {
            Ok(()) => Direct::Done,
            Err(RemoteFault::Local(fault)) => Direct::Local(local_fault(&fault)),
            // Gone, refused, or withdrawn meanwhile: the target itself will say.
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
        let Local::Sges(sges) = op.local else { return Direct::Declined };
        let Some(mapped) = Self::map(&mut self.mapped, self.pidfd.as_ref(), op.rkey.0, words)
        else {
            return Direct::Declined;
        };
        if !op.remote_addr.is_multiple_of(8) {
            return Direct::Declined;
        }
        if let Err(error) = mrs.check_local(pd, sges, Access::LOCAL_WRITE) {
            return Direct::Local(error);
        }
        let old = match atomic {
            AtomicOp::CompareSwap { compare, swap } => {
                mapped.umem.compare_swap(offset, compare, swap)
            }
            AtomicOp::FetchAdd { add } => mapped.umem.fetch_add(offset, add),
        };
        let Ok(old) = old else { return Direct::Declined };
        let (bytes, mut from) = (old.to_ne_bytes(), 0);
        let stored = for_each_sge(mrs, pd, sges, 0, 8, Access::LOCAL_WRITE, |umem, at, length| {
            let piece = &bytes[from..from + length as usize];
            from += length as usize;
            umem.write(at, piece).map_err(|fault| local_fault(&fault))
        });
        match stored {
            Ok(()) => Direct::Done,
            Err(error) => Direct::Local(error),
        }
    }

    /// The peer's region in our own address space, if it is a file.
    fn map<'m>(
        mapped: &'m mut HashMap<u32, Option<Mapped>>,
        pidfd: Option<&OwnedFd>,
        key: u32,
        words: &MrWords,
    ) -> Option<&'m Mapped> {
        let (fd, file_offset, inode) = words.file?;
        if mapped.len() >= MAX_MAPPED && !mapped.contains_key(&key) {
            mapped.clear();
        }
        let entry = mapped.entry(key).or_insert_with(|| {
            let file = pidfd_getfd(pidfd?, fd, PidfdGetfdFlags::empty()).ok()?;
            let stat = rustix::fs::fstat(&file).ok()?;
            // The number may mean another file by now.
            if stat.st_ino != inode {
                return None;
            }
            let buffer = HostBuf::received(file, usize::try_from(stat.st_size).ok()?).ok()?;
            buffer.dont_fork().ok()?;
            Some(Mapped { umem: Umem::host_range(&buffer, file_offset, words.length).ok()? })
        });
        entry.as_ref()
    }

    /// Unmaps regions that are gone.
    pub(crate) fn forget_dead(&mut self) {
        let table = &self.table;
        self.mapped.retain(|key, _| table.lives(*key));
    }
}

fn copy_mapped(
    there: &Umem,
    offset: u64,
    parts: &[(Umem, u64, u64)],
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
                // Theirs: the target itself will say.
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

/// Waits until a peer does not hold its guard slot for what is meant. A peer that died holds none.
fn drain(inbound: &mut Inbound, is_meant: impl Fn(u64) -> bool) {
    let mut rounds = 0u32;
    while inbound.scratch().load_u64(SLOT, Ordering::SeqCst).is_ok_and(&is_meant) {
        rounds += 1;
        if rounds.is_multiple_of(64) {
            if inbound.poll() == InboundState::Gone {
                return;
            }
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

impl Engine {
    /// Says, or no longer says, that the peer of a QP may use it without our engine.
    pub(crate) fn publish_qp(&mut self, id: QpId) {
        let Some(table) = self.core.table.as_ref() else { return };
        let word = self.qps.get(id).and_then(|entry| {
            let shared = matches!(entry.facts.route, Route::Shm(_));
            let open = shared && entry.qp.state().receives();
            open.then(|| {
                qp_word(entry.facts.dest_qpn, entry.qp.query().access_flags, entry.facts.pd)
            })
        });
        table.set_qp(id, word);
        if word.is_none() {
            for inbound in &mut self.receivers.inbounds {
                drain(inbound, |held| held != 0);
            }
        }
    }

    fn table(&self) -> Option<&Table> {
        self.core.table.as_ref()
    }

    /// Makes a region known to peers that may touch it without our engine.
    pub(crate) fn publish_mr(&mut self, id: MrId) {
        let Some(mr) = self.core.mrs.get(id) else { return };
        // A dma-buf of the kernel needs brackets around each access, which only its importer can give.
        let is_plain = !matches!(mr.umem.backing(), Backing::DmaBuf { .. });
        if mr.access.intersects(Access::REMOTE)
            && is_plain
            && let Some(table) = self.table()
        {
            table.publish(id, mr);
        }
    }

    /// Takes a region back from such peers, and waits until none touches it.
    pub(crate) fn withdraw_mr(&mut self, id: MrId) {
        let Some(key) = self.core.mrs.get(id).map(|mr| mr.key) else { return };
        if let Some(table) = self.table() {
            table.withdraw(id);
            for inbound in &mut self.receivers.inbounds {
                drain(inbound, |held| held == u64::from(key));
            }
        }
    }
}

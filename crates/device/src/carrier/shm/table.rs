//! The published table: the memory that peers of our user may access without our engine.
//!
//! A sealed memfd that peers can only read. For each QP, one word says which peer may use it and
//! how; sixteen words describe each memory region. A region's first word holds its key while it is
//! valid, so killing a region is one store. It also counts how often the entry was written: a
//! reader of the words reads the first one again at the end.
//!
//! | offset | what |
//! |---|---|
//! | 0 | [`MAGIC`] |
//! | [`MARK`] | set while the process lives and this is its memory ([`umem::mark`]) |
//! | [`QPS`] | a word for each QP index: valid, rights, peer, protection domain |
//! | [`MRS`] | sixteen words for each region |
//!
//! The words of a region: key, rights and count, protection domain, iova, length, address in the
//! process, file descriptor plus one, offset in the file, inode; then, of memory that can move, its
//! gate's descriptor plus one, inode and epoch.
//!
//! Readers hold a guard slot ([`crate::carrier::shm::direct`]).

use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;

use iba::{Access, Qpn};
use umem::ways::Way;
use umem::{Backing, HostBuf, Mark, PeerMark};

use crate::ids::{MrId, PdId, QpId};
use crate::memory::mr::Mr;
use crate::refusal::Result;

/// Layout version.
const MAGIC: u64 = 0x7065_6572_646d_0003;
const MARK: usize = 8;
const QPS: usize = 4096;
const MRS: usize = QPS + 8 * (1 << crate::qp::INDEX_BITS);
/// Regions that can be published; others are reached through the ring.
const MAX_MRS: usize = 1 << 16;
const MR_SIZE: usize = 128;
const LENGTH: usize = MRS + MAX_MRS * MR_SIZE;
/// The bit of a QP's word that says that its peer may use it.
const QP_VALID: u64 = 1 << 63;

const fn qp_at(index: usize) -> usize {
    QPS + 8 * index
}

/// Our table.
#[derive(Debug)]
pub(crate) struct Table {
    memory: HostBuf,
    /// Entries written so far.
    written: Cell<u64>,
}

/// A peer's table.
#[derive(Debug)]
pub(super) struct PeerTable {
    memory: HostBuf,
}

/// The location of the mark in our table.
#[derive(Debug)]
pub(crate) struct Marker(HostBuf);

impl Marker {
    /// Marks this process as alive, for as long as the calling thread lives and keeps the returned
    /// value. Without the mark, no peer touches the published memory.
    pub(crate) fn set(&self) -> Option<Mark> {
        let set = Mark::set(&self.0, MARK);
        set.inspect_err(|error| {
            tracing::info!(
                target: "peerdma::path",
                "operations of other processes go through the ring: {error}, and nothing else tells them in time when \
                 this one ends"
            );
        })
        .ok()
    }
}

/// The contents of a QP's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpWord {
    pub(crate) peer: Qpn,
    pub(super) access: Access,
    pub(crate) pd: u32,
}

impl QpWord {
    /// Whether the QP lets a peer do something to regions of a protection domain.
    #[inline]
    pub(crate) fn lets(self, peer: Qpn, need: Access, pd: u32) -> bool {
        self.peer == peer && self.access.contains(need) && self.pd == pd
    }
}

/// The contents of a region's words.
#[derive(Clone, Copy, Debug)]
pub(super) struct MrWords {
    pub(super) access: Access,
    pub(crate) pd: u32,
    pub(super) iova: u64,
    pub(crate) length: u64,
    /// The address of the first byte in the peer's process.
    pub(super) addr: u64,
    /// The peer's descriptor of the file that holds the memory, the offset in it, and its inode.
    pub(super) file: Option<(i32, u64, u64)>,
    /// The peer's path to the memory, if it is a dma-buf.
    pub(crate) way: Option<Way>,
    /// The peer's descriptor of the gate that each access must enter, its inode, and the epoch in
    /// which it may be entered.
    pub(crate) gate: Option<(i32, u64, u64)>,
    /// The first word: if it differs, the entry was written again.
    pub(super) version: u64,
}

/// The rights a peer can have, in three bits.
const fn pack_access(access: Access) -> u64 {
    ((access.bits() & Access::REMOTE.bits()) >> 1) as u64
}

const fn unpack_access(bits: u64) -> Access {
    Access::from_bits_retain(((bits & 7) << 1) as u32)
}

impl Table {
    pub(crate) fn new() -> Result<Self> {
        let memory = HostBuf::memfd_read_only_for_others("peerdma-table", LENGTH)
            .map_err(|error| crate::refusal::no_memory("published table", &error))?;
        // A forked child is another VF; without the mapping it cannot disturb ours.
        memory.dont_fork().map_err(|error| crate::refusal::no_memory("published table", &error))?;
        let table = Self { memory, written: Cell::new(0) };
        table.store(0, MAGIC);
        Ok(table)
    }

    /// The file, for peers.
    pub(crate) fn fd(&self) -> Option<std::os::fd::OwnedFd> {
        self.memory.fd()?.try_clone_to_owned().ok()
    }

    /// The location of the mark, for the thread that sets it.
    pub(crate) fn marker(&self) -> Marker {
        Marker(self.memory.clone())
    }

    /// For an engine without a thread: marks the process as alive until the mark is removed.
    #[cfg(test)]
    pub(crate) fn pretend_mark(&self, lives: bool) {
        self.store(MARK, u64::from(lives));
    }

    fn store(&self, offset: usize, word: u64) {
        // Every offset is computed from a bounded index, so the store cannot miss the table.
        let _ = self.memory.store_u64(offset, word, Ordering::SeqCst);
    }

    /// Publishes which peer may use a QP, or that none may. If that is a change, returns the peer
    /// that may still act on what was there before.
    pub(crate) fn set_qp(&self, id: QpId, word: Option<QpWord>) -> Option<Qpn> {
        let bits = word.map_or(0, |word| {
            QP_VALID
                | pack_access(word.access) << 56
                | u64::from(word.peer.value()) << 32
                | u64::from(word.pd)
        });
        let at = qp_at(id.index());
        // Only we write here.
        let before = self.memory.load_u64(at, Ordering::Relaxed).unwrap_or(0);
        self.store(at, bits);
        (before != 0 && before != bits).then_some(peer_in(before))
    }

    /// Withdraws a QP that is in ERR. What else its word says stays, so that the next
    /// [`Table::set_qp`] is a change: copies that began before may still be in progress.
    pub(crate) fn withdraw_qp(&self, id: QpId) {
        let at = qp_at(id.index());
        let before = self.memory.load_u64(at, Ordering::Relaxed).unwrap_or(0);
        self.store(at, before & !QP_VALID);
    }

    /// The word of a QP of this process.
    pub(crate) fn qp(&self, qpn: Qpn) -> Option<QpWord> {
        qp_word_in(&self.memory, qpn)
    }

    /// Whether the table has an entry for a region.
    fn has_room_for(id: MrId) -> bool {
        id.index() < MAX_MRS
    }

    /// Publishes a region, if the table has an entry for it.
    pub(crate) fn publish(&self, id: MrId, mr: &Mr) {
        if !Self::has_room_for(id) {
            return;
        }
        let at = MRS + id.index() * MR_SIZE;
        let addr = mr.umem.addr() as u64 + mr.offset;
        let (fd, file_offset, inode) = match mr.umem.backing() {
            Backing::File { fd, offset } => {
                // The number of the path is stored above the descriptor, which has 31 bits.
                let way = mr.umem.way().map_or(0, |way| u64::from(way.code()));
                ((fd.as_raw_fd() as u64 + 1) | (way << 32), offset + mr.offset, inode_of(fd))
            }
            _ => (0, 0, 0),
        };
        let gate = match mr.umem.gate() {
            Some((gate, epoch)) => [gate.fd().as_raw_fd() as u64 + 1, inode_of(gate.fd()), epoch],
            None => [0; 3],
        };
        let words = [u64::from(mr.pd.0), mr.iova, mr.length, addr, fd, file_offset, inode];
        let words = words.into_iter().chain(gate);
        for (index, word) in words.enumerate() {
            self.store(at + 8 * (index + 1), word);
        }
        let written = self.written.get().wrapping_add(1);
        self.written.set(written);
        self.store(at, u64::from(mr.key) | pack_access(mr.access) << 32 | written << 35);
    }

    /// The reason why a region cannot be published.
    pub(crate) fn obstacle(id: MrId, mr: &Mr) -> Option<&'static str> {
        if mr.odp.is_some() {
            return Some("its pages are faulted in on demand, by the process that owns them");
        }
        match mr.umem.backing() {
            // A bracket is an ioctl on the descriptor of the process that attached the buffer.
            Backing::DmaBuf { .. } => Some(
                "it is a dma-buf of the kernel, and each access needs the brackets of its importer",
            ),
            Backing::Process { .. } | Backing::File { .. } if Self::has_room_for(id) => None,
            Backing::Process { .. } | Backing::File { .. } => Some("the published table is full"),
            _ => Some("it consists of several pieces, or only its importer knows its address"),
        }
    }

    /// Publishes a region again that has moved.
    pub(crate) fn publish_again(&self, id: MrId, mr: &Mr) {
        if mr.access.intersects(Access::REMOTE)
            && !mr.is_revoked
            && Self::obstacle(id, mr).is_none()
        {
            self.publish(id, mr);
        }
    }

    /// Kills a region's entry. Accesses that began before continue until their guard slots are
    /// free.
    pub(crate) fn withdraw(&self, id: MrId) {
        if id.index() < MAX_MRS {
            self.store(MRS + id.index() * MR_SIZE, 0);
        }
    }
}

impl PeerTable {
    /// Maps the table a peer sent, if it is one.
    pub(super) fn map(file: impl Into<descriptors::Known>) -> Option<Self> {
        let memory = HostBuf::received_read_only(file, LENGTH).ok()?;
        memory.dont_fork().ok()?;
        let table = Self { memory };
        (table.load(0) == MAGIC).then_some(table)
    }

    #[inline]
    fn load(&self, offset: usize) -> u64 {
        self.memory.load_u64(offset, Ordering::SeqCst).unwrap_or(0)
    }

    /// The word of a QP: which peer may use it.
    pub(super) fn qp(&self, qpn: Qpn) -> Option<QpWord> {
        qp_word_in(&self.memory, qpn)
    }

    /// The mark of a live process.
    pub(super) fn mark(&self) -> PeerMark {
        PeerMark::new(&self.memory, MARK)
    }

    /// Whether a region with this key is valid.
    pub(super) fn lives(&self, key: u32) -> bool {
        let index = (key >> 8) as usize;
        index < MAX_MRS && self.load(MRS + index * MR_SIZE) as u32 == key && key != 0
    }

    /// Whether the entry of this key, which is not 0, has this first word: then it was not written
    /// since its words were read, and they are still right.
    #[inline]
    pub(super) fn is_at(&self, key: u32, version: u64) -> bool {
        // The region of a key in the table has an index in it.
        self.load(MRS + (key >> 8) as usize * MR_SIZE) == version
    }

    /// The region with this key.
    pub(super) fn mr(&self, key: u32) -> Option<MrWords> {
        let index = (key >> 8) as usize;
        if index >= MAX_MRS {
            return None;
        }
        let at = MRS + index * MR_SIZE;
        let first = self.load(at);
        if first as u32 != key || key == 0 {
            return None;
        }
        let word = |n: usize| self.load(at + 8 * n);
        let three = |n: usize| match word(n) {
            0 => None,
            fd => Some(((fd as u32).wrapping_sub(1) as i32, word(n + 1), word(n + 2))),
        };
        let words = MrWords {
            access: unpack_access(first >> 32),
            pd: word(1) as u32,
            iova: word(2),
            length: word(3),
            addr: word(4),
            file: three(5),
            way: Way::from_code((word(5) >> 32) as u8),
            gate: three(8),
            version: first,
        };
        // ORDERING: the loads are sequentially consistent, as the stores are: an unchanged first
        // word means that no word was written in between.
        (self.load(at) == first).then_some(words)
    }
}

fn inode_of(fd: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(fd).map_or(0, |stat| stat.st_ino)
}

/// The peer in the word of a QP.
const fn peer_in(bits: u64) -> Qpn {
    Qpn::new((bits >> 32) as u32)
}

/// The word of a QP in a table: which peer may use it.
#[inline]
fn qp_word_in(table: &HostBuf, qpn: Qpn) -> Option<QpWord> {
    let index = qpn.value() as usize & ((1 << crate::qp::INDEX_BITS) - 1);
    let bits = table.load_u64(qp_at(index), Ordering::SeqCst).unwrap_or(0);
    (bits & QP_VALID != 0).then_some(QpWord {
        peer: peer_in(bits),
        access: unpack_access(bits >> 56),
        pd: bits as u32,
    })
}

/// The word for a QP, from what the engine knows about it.
pub(crate) fn qp_word(peer: Qpn, access: Access, pd: PdId) -> QpWord {
    QpWord { peer, access: access & Access::REMOTE, pd: pd.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::uses::Uses;

    fn tables() -> (Table, PeerTable) {
        let ours = Table::new().unwrap();
        let theirs = PeerTable::map(ours.fd().unwrap()).unwrap();
        (ours, theirs)
    }

    #[test]
    fn a_qp_word_survives_packing() {
        let (ours, theirs) = tables();
        let word =
            qp_word(Qpn::new(0xab_cdef), Access::REMOTE_READ | Access::REMOTE_ATOMIC, PdId(7));
        ours.set_qp(QpId(0x3fff), Some(word));
        assert_eq!(theirs.qp(Qpn::new(5 << 14 | 0x3fff)), Some(word));
        assert_eq!(theirs.qp(Qpn::new(0x3ffe)), None);
        ours.set_qp(QpId(0x3fff), None);
        assert_eq!(theirs.qp(Qpn::new(0x3fff)), None);
    }

    #[test]
    fn a_region_is_found_by_its_whole_key_while_it_lives() {
        let (ours, theirs) = tables();
        let buffer = HostBuf::memfd("peerdma-test", 8192).unwrap();
        let umem = umem::Umem::host(&buffer);
        let key = 3 << 8 | 0x5a;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = Mr {
            pd: PdId(1),
            pd_use: Uses::default().take(),
            _dm_use: None,
            key,
            access,
            iova: 0x1000,
            length: 4096,
            umem,
            offset: 64,
            kind: crate::engine::MrKind::User,
            import: None,
            peer: None,
            odp: None,
            is_revoked: false,
            pinned: 0,
            is_writable: true,
            _charge: crate::objects::charges::Charge::none(),
        };
        ours.publish(MrId(3), &mr);
        let words = theirs.mr(key).unwrap();
        assert_eq!((words.iova, words.length, words.pd), (0x1000, 4096, 1));
        assert_eq!(words.access, Access::REMOTE_WRITE);
        assert_eq!(words.addr, buffer.as_ptr().addr() as u64 + 64);
        assert_eq!(words.file.map(|(_, offset, _)| offset), Some(64));
        assert!(theirs.mr(key + 1).is_none() && theirs.lives(key) && !theirs.lives(key + 1));
        ours.withdraw(MrId(3));
        assert!(theirs.mr(key).is_none() && !theirs.lives(key));
    }
}

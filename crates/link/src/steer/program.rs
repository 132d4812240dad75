//! The table of VFs and indexes, and the classic BPF program made of it.

use std::collections::BTreeMap;

use super::question::QUESTION;

/// Which socket of a reuseport group belongs to which VF.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(BTreeMap<u16, u16>);

/// A value that the kernel treats as no socket, after which it uses its hash
/// (`reuseport_select_sock`).
const NO_SOCKET: u32 = u32::MAX;

/// Up to this number, entries are compared one by one; above it, the search first halves them.
const LEAF: usize = 4;

impl Table {
    /// The table with `entries`: a VF and the index of its socket. An empty table leaves everything
    /// to the hash.
    pub fn new(entries: impl IntoIterator<Item = (u16, u16)>) -> Self {
        Self(entries.into_iter().collect())
    }

    /// The table that follows from the answers at each index: every VF has one socket, at the
    /// lowest index it answered for. Indexes past the end of the group are answered by the socket
    /// that the hash picked.
    pub(super) fn from_answers(answers: &[Option<u16>]) -> Self {
        let mut table = BTreeMap::new();
        for (index, vf) in answers.iter().enumerate() {
            if let Some(vf) = vf {
                table.entry(*vf).or_insert(index as u16);
            }
        }
        Self(table)
    }

    /// The index of a VF's socket.
    pub fn index_of(&self, vf: u16) -> Option<u16> {
        self.0.get(&vf).copied()
    }

    /// VFs and indexes, by VF.
    pub fn entries(&self) -> impl Iterator<Item = (u16, u16)> {
        self.0.iter().map(|(vf, index)| (*vf, *index))
    }

    /// How many VFs are known.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no VF is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The program for this table. Offsets count from the UDP payload: the kernel strips the UDP
    /// header for a reuseport program (`run_bpf_filter`). A packet that is too short for what is
    /// read goes to index 0.
    ///
    /// A packet for no VF of the table goes to one that answered recently, which forwards it: the
    /// hash might choose a process that is stopped.
    pub fn program(&self) -> Vec<libc::sock_filter> {
        let answered = self.0.values().next().copied().map(u32::from);
        let (other, first) = (answered.unwrap_or(NO_SOCKET), answered.unwrap_or(0));
        let mut code = vec![
            load(4),
            operation(libc::BPF_ALU | libc::BPF_AND, 0x00ff_ffff),
            // QPN 0: a question goes to the index in it.
            jump_if_equal(0, 0, 5),
            load(0),
            jump_if_equal(QUESTION, 0, 2),
            load(8),
            operation(libc::BPF_RET | libc::BPF_A, 0),
            give(first),
            // The GSI and multicast belong to no VF; the process that gets them distributes them.
            jump_if_equal(1, 0, 1),
            give(first),
            jump_if_equal(0x00ff_ffff, 0, 1),
            give(first),
            operation(libc::BPF_ALU | libc::BPF_RSH, 14),
        ];
        let entries: Vec<_> = self.entries().collect();
        search(&mut code, &entries, other);
        code
    }
}

/// Appends the search for the VF in A among `entries`, which are sorted; any other VF goes to
/// `other`. Depth grows with the logarithm of their number.
fn search(code: &mut Vec<libc::sock_filter>, entries: &[(u16, u16)], other: u32) {
    if entries.len() <= LEAF {
        for (vf, index) in entries {
            code.push(jump_if_equal(u32::from(*vf), 0, 1));
            code.push(give(u32::from(*index)));
        }
        code.push(give(other));
        return;
    }
    let (low, high) = entries.split_at(entries.len() / 2);
    // Conditional jumps reach 255 instructions, the unconditional jump any.
    code.push(jump(libc::BPF_JGE, u32::from(high[0].0), 0, 1));
    let to_high = code.len();
    code.push(operation(libc::BPF_JMP | libc::BPF_JA, 0));
    search(code, low, other);
    code[to_high].k = (code.len() - to_high - 1) as u32;
    search(code, high, other);
}

/// Loads the big-endian word at `offset`; beyond the packet the program ends with index 0.
fn load(offset: u32) -> libc::sock_filter {
    operation(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn give(index: u32) -> libc::sock_filter {
    operation(libc::BPF_RET | libc::BPF_K, index)
}

fn jump_if_equal(value: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    jump(libc::BPF_JEQ, value, then, otherwise)
}

fn jump(condition: u32, value: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    let code = (libc::BPF_JMP | condition | libc::BPF_K) as u16;
    libc::sock_filter { code, jt: then, jf: otherwise, k: value }
}

fn operation(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

//! Tag matching: a shared receive queue with a list of receives that wait for messages with their
//! tag.
//!
//! `ibv_srq_ops(3)` and rdma-core's `Documentation/tag_matching.md` have the rules. The one that is
//! easily missed: a message that matches nothing goes to the program, which may have posted a
//! receive for it meanwhile. Until the program has told how many such messages it has seen,
//! receives that were added since must not meet a later message.

use std::collections::VecDeque;

use transport::wr::RecvWr;

use crate::ids::CqId;

/// What makes a shared queue one of tag matching.
#[derive(Debug)]
pub(crate) struct TagList {
    /// Where everything completes.
    pub(crate) cq: CqId,
    pub(crate) max_num_tags: u32,
    /// In the order in which they are tried.
    entries: VecDeque<Entry>,
    next_handle: u32,
    /// Messages with a tag that met no entry, and how many of them the program has told to have
    /// seen.
    unexpected: u32,
    seen: u32,
}

/// A receive that waits for a message with its tag.
#[derive(Debug)]
struct Entry {
    handle: u32,
    tag: u64,
    mask: u64,
    wr: RecvWr,
    /// Whether the program had seen all unexpected messages when it added this, or has since.
    is_active: bool,
}

/// An operation on a list of tags.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_ops_wr")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct TagOp {
    /// Given back in the completion.
    pub wr_id: u64,
    /// Whether its success completes visibly. A failure always does.
    pub signaled: bool,
    /// How many unexpected messages the program has seen, if it tells.
    pub unexpected_cnt: Option<u32>,
    /// What to do.
    pub kind: TagOpKind,
}

/// What a [`TagOp`] does.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_ops_wr_opcode")]
#[expect(clippy::exhaustive_enums, reason = "the three operations of libibverbs")]
pub enum TagOpKind {
    /// Adds a receive for messages whose tag, and-ed with `mask`, is `tag`.
    Add {
        /// The receive; its `wr_id` is that of its completions.
        wr: RecvWr,
        /// The tag.
        tag: u64,
        /// Which bits of a message's tag count.
        mask: u64,
    },
    /// Takes back the receive with a handle.
    Del(u32),
    /// Only tells how many unexpected messages were seen.
    Sync,
}

impl TagList {
    /// A list with room for this many tags, which completes on `cq`.
    pub(crate) fn new(cq: CqId, max_num_tags: u32) -> Self {
        let entries = VecDeque::new();
        Self { cq, max_num_tags, entries, next_handle: 0, unexpected: 0, seen: 0 }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.max_num_tags as usize
    }

    /// Adds a receive, and gives its handle.
    pub(crate) fn add(&mut self, wr: RecvWr, tag: u64, mask: u64) -> u32 {
        let handle = self.next_handle;
        self.next_handle = handle.wrapping_add(1);
        let is_active = self.is_in_step();
        self.entries.push_back(Entry { handle, tag, mask, wr, is_active });
        handle
    }

    /// Takes a receive back. False if there is none with this handle.
    pub(crate) fn remove(&mut self, handle: u32) -> bool {
        let at = self.entries.iter().position(|entry| entry.handle == handle);
        at.and_then(|at| self.entries.remove(at)).is_some()
    }

    /// A message with a tag met no receive.
    pub(crate) fn met_none(&mut self) {
        self.unexpected = self.unexpected.wrapping_add(1);
    }

    /// Whether the program has seen all unexpected messages.
    pub(crate) fn is_in_step(&self) -> bool {
        self.unexpected == self.seen
    }

    /// The program has seen this many unexpected messages.
    pub(crate) fn tell(&mut self, seen: u32) {
        self.seen = seen;
        if self.is_in_step() {
            self.entries.iter_mut().for_each(|entry| entry.is_active = true);
        }
    }

    /// The receive for a message with this tag.
    pub(crate) fn meet(&mut self, tag: u64) -> Option<RecvWr> {
        let at = self.entries.iter().position(|e| e.is_active && tag & e.mask == e.tag)?;
        self.entries.remove(at).map(|entry| entry.wr)
    }
}

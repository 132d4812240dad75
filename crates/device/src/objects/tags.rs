//! Tag matching: a shared receive queue with a list of receives that wait for messages with their
//! tag.
//!
//! `ibv_srq_ops(3)` and rdma-core's `Documentation/tag_matching.md` have the rules. One of them is
//! easily missed: a message that matches nothing goes to the program, which may have posted a
//! receive for it in the meantime. Until the program has reported how many such messages it has
//! seen, receives that were added since must not match a later message.

use std::collections::VecDeque;

use transport::wr::RecvWr;

use crate::ids::CqId;

/// The tag list of a shared queue with tag matching.
#[derive(Debug)]
pub(crate) struct TagList {
    /// Where everything completes.
    pub(crate) cq: CqId,
    pub(crate) max_num_tags: u32,
    /// In the order in which they are tried.
    entries: VecDeque<Entry>,
    next_handle: u32,
    /// Messages with a tag that matched no entry, and how many of them the program has reported as
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

/// An operation on a tag list.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_ops_wr")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct TagOp {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Whether its success completes visibly. A failure always does.
    pub signaled: bool,
    /// How many unexpected messages the program has seen, if it reports that.
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
        /// The bits of a message's tag that count.
        mask: u64,
    },
    /// Removes the receive with this handle.
    Del(u32),
    /// Only reports how many unexpected messages were seen.
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

    /// Adds a receive, and returns its handle.
    pub(crate) fn add(&mut self, wr: RecvWr, tag: u64, mask: u64) -> u32 {
        let handle = self.next_handle;
        self.next_handle = handle.wrapping_add(1);
        let is_active = self.is_in_step();
        self.entries.push_back(Entry { handle, tag, mask, wr, is_active });
        handle
    }

    /// Removes a receive. Returns false if there is none with this handle.
    pub(crate) fn remove(&mut self, handle: u32) -> bool {
        let at = self.entries.iter().position(|entry| entry.handle == handle);
        at.and_then(|at| self.entries.remove(at)).is_some()
    }

    /// Notes that a message with a tag matched no receive.
    pub(crate) fn met_none(&mut self) {
        self.unexpected = self.unexpected.wrapping_add(1);
    }

    /// Whether the program has seen all unexpected messages.
    pub(crate) fn is_in_step(&self) -> bool {
        self.unexpected == self.seen
    }

    /// Notes that the program has seen this many unexpected messages.
    pub(crate) fn tell(&mut self, seen: u32) {
        self.seen = seen;
        if self.is_in_step() {
            self.entries.iter_mut().for_each(|entry| entry.is_active = true);
        }
    }

    /// Takes the receive for a message with this tag.
    pub(crate) fn meet(&mut self, tag: u64) -> Option<RecvWr> {
        let at = self.entries.iter().position(|e| e.is_active && tag & e.mask == e.tag)?;
        self.entries.remove(at).map(|entry| entry.wr)
    }
}

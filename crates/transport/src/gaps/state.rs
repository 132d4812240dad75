//! What the requester remembers about answers that are missing.

use iba::Psn;

use crate::ranges::Ranges;

/// Answers that were requested again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(super) first: Psn,
    pub(super) end: Psn,
    /// The number after the highest that had been requested by then. If an answer to something
    /// after that comes, and these have not, they are lost again.
    pub(super) until: Psn,
}

impl Asked {
    /// Whether it is about any of these numbers.
    pub(super) fn is_within(&self, first: Psn, end: Psn) -> bool {
        self.first.is_before(end) && self.end.is_after(first)
    }
}

/// What is missing of the answers.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    /// The number up to which the peer carried out everything, if that is after `una`: answers
    /// before it are missing.
    pub(crate) executed: Option<Psn>,
    /// The highest that `executed` was since `una` passed that: a timeout forgets `executed`, and
    /// what is said again then is no progress.
    highest: Option<Psn>,
    /// Answers that are kept ([`Early`](crate::Early)).
    pub(crate) kept: Ranges,
    /// What was requested again, and not answered.
    pub(super) asked: Vec<Asked>,
    /// The end of the last part that was requested again.
    pub(super) part_end: Option<Psn>,
    /// The end of what had been requested when the window last shrank.
    pub(super) shrunk_until: Option<Psn>,
}

impl Gaps {
    /// After `una` moved: forgets what it passed.
    #[inline]
    pub(crate) fn follow(&mut self, una: Psn) {
        if self.part_end.is_some() || self.highest.is_some() || self.shrunk_until.is_some() {
            self.follow_far(una);
        }
    }

    #[cold]
    fn follow_far(&mut self, una: Psn) {
        let Self { executed, highest, part_end, shrunk_until, .. } = self;
        for end in [executed, highest, part_end, shrunk_until] {
            *end = end.filter(|end| end.is_after(una));
        }
        self.asked.retain(|asked| asked.end.is_after(una));
    }

    /// What was requested again will be requested once more, as its answers cannot be expected.
    pub(crate) fn ask_anew(&mut self) {
        self.asked.clear();
    }

    /// Nothing is certain but what was acknowledged.
    pub(crate) fn forget(&mut self) {
        self.executed = None;
        self.asked.clear();
    }

    /// Everything before `to` is carried out. Returns whether more is than ever before.
    pub(super) fn note_executed(&mut self, to: Psn) -> bool {
        self.executed = Some(to);
        let is_news = self.highest.is_none_or(|highest| to.is_after(highest));
        if is_news {
            self.highest = Some(to);
        }
        is_news
    }

    /// Forgets what was requested again and has come, or is lost again, as later answers came.
    /// Returns whether anything is lost.
    pub(super) fn forget_lost(&mut self, una: Psn) -> bool {
        let Self { asked, kept, executed, .. } = self;
        let Some(executed) = *executed else { return false };
        let mut is_lost = false;
        asked.retain(|part| {
            let first = if part.first.is_before(una) { una } else { part.first };
            let is_here = !part.end.is_after(first.add(kept.run_at(first)));
            let is_over = executed.is_after(part.until);
            is_lost |= is_over && !is_here;
            !is_here && !is_over
        });
        is_lost
    }

    pub(super) fn note_asked(&mut self, asked: Asked) {
        if self.part_end.is_none_or(|last| asked.end.is_after(last)) {
            self.part_end = Some(asked.end);
        }
        self.asked.push(asked);
    }
}

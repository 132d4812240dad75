//! The answer of the fault thread about a buffer, until the access that asked takes it.

use std::time::{Duration, Instant};

use dmabuf::gate::GateState;
use umem::Umem;

use crate::memory::import::Remapped;

/// How long an exporter's refusal waits for the access that asked: longer than a peer that was told
/// to try again waits (at most 655 ms, IBA table 45).
const REFUSED: Duration = Duration::from_secs(1);

/// The result of an attempt to bring memory in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it decides whether an access continues, waits or fails"]
pub(crate) enum BroughtIn {
    /// The access must be tried again at once. It finds the memory, or that its key is dead.
    Here,
    /// Not now: the access is tried again later.
    NotYet,
    /// The exporter refused the memory to this access, which fails. The region stays, and another
    /// access may succeed (`docs/semantics.md` 2.5, 5).
    Refused,
}

impl BroughtIn {
    /// The combined result for two parts of one access.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Refused, _) | (_, Self::Refused) => Self::Refused,
            (Self::NotYet, _) | (_, Self::NotYet) => Self::NotYet,
            _ => Self::Here,
        }
    }
}

/// A question to the fault thread and its answer.
///
/// The answer is for accesses that asked. An access gives up after a while and is tried again, so
/// the answer waits for it; but an old refusal must not reach an access that did not ask.
#[derive(Debug, Default)]
pub(super) struct Finding {
    /// The thread was asked, and has not released the buffer yet.
    is_asked: bool,
    /// An access waits for the answer, or will be tried again.
    is_awaited: bool,
    found: Option<Remapped>,
    found_at: Option<Asked>,
}

/// When the exporter was asked, and the state of the buffer's gate then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) when: Instant,
    pub(super) gate: Option<GateState>,
}

/// Whether an access to this memory could begin now.
pub(super) fn is_current(umem: &Umem) -> bool {
    umem.gate().is_some_and(|(gate, epoch)| gate.is_current(epoch))
}

impl Finding {
    /// An access asks. Returns true if the thread must be asked.
    pub(super) fn want(&mut self, gate: Option<GateState>) -> bool {
        self.is_awaited = true;
        if self.is_asked || self.still_holds(gate) {
            return false;
        }
        self.is_asked = true;
        self.found = None;
        true
    }

    /// The answer. There may be no access left that waits for it.
    pub(super) fn put(&mut self, found: Remapped, asked: Asked) {
        (self.found, self.found_at) = (self.is_awaited.then_some(found), Some(asked));
    }

    /// The access takes the answer. An outdated one does not count.
    pub(super) fn take(&mut self, gate: Option<GateState>) -> Option<Remapped> {
        let holds = self.still_holds(gate);
        let found = self.found.take().filter(|_| holds);
        self.is_awaited = found.is_none();
        found
    }

    /// The access found the answer by itself.
    pub(super) fn forget(&mut self) {
        (self.is_awaited, self.found) = (false, None);
    }

    /// The thread has released the buffer, or could not be asked.
    pub(super) fn end(&mut self) {
        self.is_asked = false;
    }

    /// Whether there is an answer.
    pub(super) const fn is_found(&self) -> bool {
        self.found.is_some()
    }

    /// The thread's answer, future or present, for an access that is tried again. A refusal is
    /// consumed, as it fails the access; memory that is present stays so until the access takes it.
    pub(super) fn outlook(&mut self, gate: Option<GateState>) -> BroughtIn {
        match &self.found {
            None if self.is_asked => BroughtIn::NotYet,
            Some(Remapped::Refused) => match self.take(gate) {
                Some(_) => BroughtIn::Refused,
                None => BroughtIn::Here,
            },
            _ => BroughtIn::Here,
        }
    }

    /// Whether the answer is still valid. A refusal may come from a reset, for example, which the
    /// gate shows to be over.
    fn still_holds(&self, gate: Option<GateState>) -> bool {
        let Some(asked) = self.found_at else { return false };
        match &self.found {
            None => false,
            Some(Remapped::Here(umem)) => is_current(umem),
            Some(_) => asked.when.elapsed() < REFUSED && gate == asked.gate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Option<GateState> = Some(GateState::Open { epoch: 2 });
    const RESET: Option<GateState> = Some(GateState::Closed { epoch: 3 });
    const MOVE: Option<GateState> = Some(GateState::Closed { epoch: 5 });

    fn asked(gate: Option<GateState>) -> Asked {
        Asked { when: Instant::now(), gate }
    }

    /// A refusal in the middle of a reset, which no access has taken yet.
    fn refused() -> Finding {
        let mut finding = Finding::default();
        assert!(finding.want(RESET));
        assert_eq!(finding.outlook(RESET), BroughtIn::NotYet);
        finding.put(Remapped::Refused, asked(RESET));
        finding.end();
        finding
    }

    #[test]
    fn a_refusal_waits_for_the_access_that_asked() {
        let mut finding = refused();
        assert!(!finding.want(RESET), "it is known");
        assert!(matches!(finding.take(RESET), Some(Remapped::Refused)));
        assert!(finding.want(RESET), "the next access asks for itself");
    }

    #[test]
    fn a_refusal_that_failed_one_access_meets_no_other() {
        let mut finding = refused();
        assert_eq!(finding.outlook(RESET), BroughtIn::Refused);
        assert!(finding.want(RESET));
    }

    #[test]
    fn a_refusal_that_comes_when_the_gate_is_open_again_is_void() {
        let mut finding = Finding::default();
        assert!(finding.want(RESET));
        finding.put(Remapped::Refused, asked(RESET));
        // The thread has not released it yet.
        assert!(!finding.want(OPEN));
        assert!(finding.take(OPEN).is_none());
        finding.end();
        assert!(finding.want(OPEN));
    }

    #[test]
    fn a_refusal_during_a_reset_does_not_apply_to_the_move_after_it() {
        let mut finding = refused();
        assert_eq!(finding.outlook(MOVE), BroughtIn::Here);
        assert!(finding.want(MOVE), "it is asked again");
        assert!(finding.take(MOVE).is_none());
    }

    #[test]
    fn a_refusal_is_void_once_the_gate_has_opened() {
        let mut finding = refused();
        assert!(finding.want(OPEN));
    }

    #[test]
    fn a_refusal_does_not_wait_forever() {
        let mut finding = Finding::default();
        assert!(finding.want(RESET));
        let when = Instant::now().checked_sub(REFUSED).expect("the clock began earlier");
        finding.put(Remapped::Refused, Asked { when, gate: RESET });
        finding.end();
        assert_eq!(finding.outlook(RESET), BroughtIn::Here);
        assert!(finding.want(RESET));
    }

    #[test]
    fn an_answer_that_no_access_waits_for_reaches_none() {
        let mut finding = Finding::default();
        assert!(finding.want(RESET));
        finding.forget();
        finding.put(Remapped::Refused, asked(RESET));
        assert!(!finding.is_found());
        finding.end();
        assert!(finding.want(RESET));
    }

    #[test]
    fn only_one_question_is_asked_at_a_time() {
        let mut finding = Finding::default();
        assert!(finding.want(OPEN));
        assert!(!finding.want(OPEN), "it is asked already");
        finding.put(Remapped::Refused, asked(OPEN));
        assert!(finding.is_found());
        assert!(finding.take(OPEN).is_some());
        assert!(!finding.want(OPEN), "the thread still holds the buffer");
        finding.end();
        assert!(finding.want(OPEN));
    }
}

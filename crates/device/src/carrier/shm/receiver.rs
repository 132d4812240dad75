//! The receiving half: the rings of other processes to us.

use link::shm::{Held, Inbound, InboundState};
use smallvec::SmallVec;

/// The most records taken at once from the ring of a process that is gone: as many as a ring of the
/// default size can hold.
pub(crate) const GONE_BURST: usize = 4096;
/// The most records taken from one ring before the next one has its turn.
pub(crate) const RING_BURST: usize = 32;

/// The rings to us.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    inbounds: Vec<Inbound>,
    /// Whether a packet waits in its ring for the program to post a receive.
    is_holding: bool,
}

/// Copies by peers that were in progress when something was withdrawn. The thread that withdrew it
/// waits for them, without the engine's lock: a peer that was stopped in the middle of one holds up
/// no other thread. The random number of each connection identifies it.
#[derive(Debug, Default)]
#[must_use = "what was withdrawn may be touched until these copies are over"]
pub(crate) struct UnderWay(SmallVec<[(u64, Held); 4]>);

impl UnderWay {
    pub(crate) fn join(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

impl Receiver {
    pub(crate) fn len(&self) -> usize {
        self.inbounds.len()
    }

    /// Adds a ring. A VF has one ring to us: records in an older one are still taken, as from a
    /// process that is gone.
    pub(crate) fn add(&mut self, inbound: Inbound) {
        let vf = inbound.peer().vf;
        self.inbounds.iter_mut().filter(|old| old.peer().vf == vf).for_each(Inbound::hang_up);
        self.inbounds.push(inbound);
    }

    pub(crate) fn get(&self, index: usize) -> &Inbound {
        &self.inbounds[index]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> &mut Inbound {
        &mut self.inbounds[index]
    }

    /// Closes a ring. Another one may take its index.
    pub(crate) fn remove(&mut self, index: usize) {
        self.inbounds.swap_remove(index);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Inbound> {
        self.inbounds.iter()
    }

    /// Whether no ring holds a record.
    #[inline]
    pub(crate) fn is_idle(&mut self) -> bool {
        self.inbounds.iter_mut().all(Inbound::is_idle)
    }

    /// A ring that holds a record.
    #[inline]
    pub(crate) fn busy(&mut self) -> Option<&mut Inbound> {
        let index = self.inbounds.iter_mut().position(|inbound| !inbound.is_idle())?;
        self.inbounds.get_mut(index)
    }

    /// Whether a packet waits in its ring for the program to post a receive.
    pub(crate) fn is_holding(&self) -> bool {
        self.is_holding
    }

    pub(crate) fn set_holding(&mut self, is_holding: bool) {
        self.is_holding = is_holding;
    }

    /// Checks which peers' processes are gone.
    pub(crate) fn find_gone(&mut self, gone: &mut Vec<u16>) {
        for inbound in &mut self.inbounds {
            if inbound.poll() == InboundState::Gone {
                gone.push(inbound.peer().vf);
            }
        }
    }

    /// Closes the rings of processes that are gone, once nothing is left in them.
    pub(crate) fn close_gone(&mut self) {
        self.inbounds.retain_mut(|inbound| {
            inbound.state() != InboundState::Gone || inbound.may_hold_last_words()
        });
    }

    /// The copies of peers that are in progress now, as far as `is_meant` selects them.
    pub(crate) fn copies(&self, is_meant: impl Fn(Held) -> bool) -> UnderWay {
        let held = self.inbounds.iter().map(|from| (from.peer().nonce, from.held()));
        UnderWay(held.filter(|(_, held)| is_meant(*held)).collect())
    }

    /// Whether any of these copies is still in progress. A peer that has died makes none.
    pub(crate) fn goes_on(&self, under_way: &mut UnderWay) -> bool {
        under_way.0.retain(|(nonce, held)| {
            self.inbounds.iter().any(|from| {
                from.peer().nonce == *nonce
                    && from.state() == InboundState::Up
                    && from.held() == *held
            })
        });
        !under_way.0.is_empty()
    }

    /// Hangs up on every peer. The pages that peers share stay, for their guard slots.
    pub(crate) fn hang_up(&mut self) {
        self.inbounds.iter_mut().for_each(Inbound::hang_up);
    }

    /// In a forked child, closes what belongs to the parent.
    pub(crate) fn abandon_in_child(&mut self) {
        self.inbounds.drain(..).for_each(Inbound::abandon_in_child);
    }
}

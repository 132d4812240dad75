//! Which process of this host got a request, for messages that name neither service nor
//! communication id.

use std::collections::{HashMap, VecDeque};

use iba::Gid;
use wire::cm::CommId;

/// The most requests that are remembered.
const MOST: usize = 1024;

/// The last requests that were passed on, by their sender and its id.
#[derive(Debug, Default)]
pub(super) struct Passed {
    to: HashMap<(Gid, CommId), u16>,
    /// In the order in which they first came.
    order: VecDeque<(Gid, CommId)>,
}

impl Passed {
    /// The process that got a request.
    pub(super) fn to(&self, from: Gid, id: CommId) -> Option<u16> {
        self.to.get(&(from, id)).copied()
    }

    /// A request, perhaps one that came before, goes to this process.
    pub(super) fn remember(&mut self, from: Gid, id: CommId, vf: u16) {
        if self.to.insert((from, id), vf).is_some() {
            return;
        }
        self.order.push_back((from, id));
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.to.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_requests_are_remembered() {
        let (mut passed, from) = (Passed::default(), Gid::default());
        for id in 0..MOST as CommId {
            passed.remember(from, id, 1);
        }
        passed.remember(from, 0, 2);
        assert_eq!(passed.to(from, 0), Some(2), "a request that is repeated needs no more room");
        passed.remember(from, MOST as CommId, 3);
        assert_eq!((passed.to(from, 0), passed.to(from, 1)), (None, Some(1)));
        assert_eq!(passed.to(from, MOST as CommId), Some(3));
        assert_eq!(passed.to.len(), passed.order.len());
    }
}

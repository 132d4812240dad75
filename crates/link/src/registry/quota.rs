//! The resources that processes of other users may take from us.
//!
//! Each connection costs us a descriptor and the pages of its ring, which we touch when we read.
//! Our own user's processes are not counted: they can harm us without a ring.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::Resource;

/// Connections of one user, from it and to it.
pub(super) const CONNECTIONS_PER_USER: usize = 256;
/// Connections of all other users together.
pub(super) const CONNECTIONS_OF_STRANGERS: usize = 512;
/// Bytes of the rings that one user has given us.
pub(super) const RINGS_PER_USER: usize = 64 << 20;
/// Bytes of the rings that all other users together have given us.
pub(super) const RINGS_OF_STRANGERS: usize = 256 << 20;
/// Accepted connections of one user that have not identified themselves.
pub(super) const SILENT_PER_USER: usize = 32;

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    connections: usize,
    rings: usize,
}

/// The shares of each other user.
#[derive(Clone, Debug, Default)]
pub(super) struct Quotas(Arc<Mutex<BTreeMap<u32, Used>>>);

/// A connection that counts, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    quotas: Quotas,
    uid: u32,
    ring: usize,
}

impl Quotas {
    /// Counts a connection with a user that gives us a ring of this many bytes, or none.
    ///
    /// # Errors
    ///
    /// Which limit it would exceed, in words.
    pub(super) fn take(&self, uid: u32, ring: usize) -> Result<Share, String> {
        // The program also needs descriptors: at most half of them are for strangers.
        let open = rustix::process::getrlimit(Resource::Nofile).current;
        let open = open.map_or(usize::MAX, |open| usize::try_from(open).unwrap_or(usize::MAX));
        let (one, all) =
            (CONNECTIONS_PER_USER.min(open / 4), CONNECTIONS_OF_STRANGERS.min(open / 2));
        let mut users = self.users();
        let sum = |used: fn(&Used) -> usize| users.values().map(used).sum::<usize>();
        let (connections, rings) = (sum(|used| used.connections), sum(|used| used.rings));
        let used = users.get(&uid).copied().unwrap_or_default();
        if used.connections >= one {
            return Err(format!(
                "user {uid} has {} connections with us, the most it may have",
                one
            ));
        }
        if connections >= all {
            return Err(format!(
                "other users have {all} connections with us, the most they may have"
            ));
        }
        if ring > RINGS_PER_USER.saturating_sub(used.rings) {
            return Err(format!("the rings of user {uid} would exceed {RINGS_PER_USER} bytes"));
        }
        if ring > RINGS_OF_STRANGERS.saturating_sub(rings) {
            return Err(format!(
                "the rings of other users would exceed {RINGS_OF_STRANGERS} bytes"
            ));
        }
        let used = users.entry(uid).or_default();
        used.connections += 1;
        used.rings += ring;
        drop(users);
        Ok(Share { quotas: self.clone(), uid, ring })
    }

    fn users(&self) -> MutexGuard<'_, BTreeMap<u32, Used>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut users = self.quotas.users();
        if let Some(used) = users.get_mut(&self.uid) {
            used.connections -= 1;
            used.rings -= self.ring;
            if used.connections == 0 {
                users.remove(&self.uid);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_limits_of_connections_and_bytes_and_gets_both_back() {
        let quotas = Quotas::default();
        let mut shares = Vec::new();
        let refused = loop {
            match quotas.take(7, 0) {
                Ok(share) => shares.push(share),
                Err(refused) => break refused,
            }
        };
        assert!(refused.contains("user 7") && shares.len() <= CONNECTIONS_PER_USER, "{refused}");
        let other = quotas.take(8, RINGS_PER_USER).expect("another user has its own");
        assert!(quotas.take(8, 1).is_err_and(|refused| refused.contains("bytes")));
        shares.pop();
        drop(other);
        quotas.take(7, RINGS_PER_USER).expect("one connection was given back");
        drop(shares);
        assert!(quotas.users().is_empty());
    }

    #[test]
    fn all_strangers_together_have_a_limit() {
        let quotas = Quotas::default();
        let shares: Vec<_> = (1..).map_while(|uid| quotas.take(uid, RINGS_PER_USER).ok()).collect();
        assert_eq!(shares.len(), RINGS_OF_STRANGERS / RINGS_PER_USER);
        let most = (1..).map_while(|uid| quotas.take(uid, 0).ok()).collect::<Vec<_>>();
        assert!(shares.len() + most.len() <= CONNECTIONS_OF_STRANGERS);
    }
}

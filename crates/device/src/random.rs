//! Numbers that two processes do not share by accident.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A number that cannot be predicted. Not a secret.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

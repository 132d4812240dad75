//! Numbers that two processes do not share by accident.

use std::hash::{BuildHasher, Hasher, RandomState};

/// One that cannot be told beforehand. Not a secret.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

//! Symbols for `libpeerdma-preload.so`, which comes from the same build. Programs have no use for them, and they change
//! from version to version.

use super::Answer::In;
use super::{Symbol, verb};

/// What our preload library binds, when it needs it.
pub(crate) const OWN: &[Symbol] = &[verb("peerdma_drm_door", &["PEERDMA_PRIVATE_1"], In("drm"))];

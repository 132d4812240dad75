//! Symbols for `libpeerdma-preload.so`, `libpeerdma-cuda.so`, `libpeerdma-hsa.so` and
//! `libpeerdma-ze.so`, which come from the same build. Programs have no use for them, and they
//! change from version to version.

use super::Answer::In;
use super::{Symbol, verb};

/// What our own libraries bind, when they need it.
pub(crate) const OWN: &[Symbol] = &[
    verb("peerdma_node_file_ops", &["PEERDMA_PRIVATE_1"], In("drm")),
    verb("peerdma_cuda_resolver", &["PEERDMA_PRIVATE_1"], In("cuda")),
    verb("peerdma_hsa_lookup", &["PEERDMA_PRIVATE_1"], In("hsa")),
    verb("peerdma_level_zero_ddi", &["PEERDMA_PRIVATE_1"], In("level_zero")),
];

//! The way to the driver of Level Zero, for `libpeerdma-ze.so`, which has its names.

use super::boundary::control;
use super::context::watch_the_end;

/// What is behind the names. Null is never returned but after a panic.
pub(crate) extern "C" fn peerdma_level_zero_ddi() -> *const levelzero::Ddi {
    control("peerdma_level_zero_ddi", std::ptr::null(), || {
        watch_the_end();
        levelzero::ddi()
    })
}

//! The tables of the Level Zero driver, for `libpeerdma-ze.so`, which has its names.

use super::boundary::control;
use super::context::watch_the_end;

/// Where to find the tables. Null only after a panic.
pub(crate) extern "C" fn peerdma_level_zero_ddi() -> *const levelzero::Ddi {
    control("peerdma_level_zero_ddi", std::ptr::null(), || {
        watch_the_end();
        levelzero::ddi()
    })
}

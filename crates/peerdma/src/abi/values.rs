//! The values that a device reports at run time (`ibv_query_rt_values_ex(3)`).

use std::ffi::c_int;

use libc::timespec;

use super::boundary::control;
use super::object::given_mut;
use super::own::context::opened;
use super::types::context::{Context, ValuesEx};

/// `IBV_VALUES_MASK_RAW_CLOCK`.
const RAW_CLOCK: u32 = 1;

pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut Context,
    values: *mut ValuesEx,
) -> c_int {
    control("ibv_query_rt_values_ex", libc::EIO, || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        // SAFETY: contract: the structure is valid and the program's alone.
        let values = unsafe { given_mut(values) };
        if values.comp_mask & !RAW_CLOCK != 0 {
            return libc::EINVAL;
        }
        if values.comp_mask & RAW_CLOCK != 0 {
            // The clock counts nanoseconds, and programs read its value as ticks
            // (`ibv_query_rt_values_ex(3)`).
            let ticks = open.hca.lock().clock_nanos();
            values.raw_clock = timespec { tv_sec: 0, tv_nsec: ticks as libc::c_long };
        }
        0
    })
}

//! The functions of the nodes in `/dev`, for `libpeerdma-preload.so`, which intercepts calls on
//! them.

use super::boundary::control;
use super::context::watch_the_end;

static PROCESS: nodes::Process = nodes::Process { opening: watch_the_end, broken };

fn broken(call: &'static str, panic: &(dyn std::any::Any + Send)) {
    device::fail_all(call, panic);
}

/// Where to find the functions. Null only after a panic.
pub(crate) extern "C" fn peerdma_node_file_ops() -> *const nodes::FileOps {
    control("peerdma_node_file_ops", std::ptr::null(), || nodes::file_ops(&PROCESS))
}

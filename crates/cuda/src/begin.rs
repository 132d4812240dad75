//! How a process begins to have CUDA.

use crate::machine;
use crate::peer;
use crate::process::{Process, get, is_absent, make};
use crate::status::{Refusal, Result, Status};

/// `cuInit`: makes what a process has, if that was not done yet.
///
/// # Errors
///
/// No GPU; or a child of a process that had one.
pub(crate) fn init() -> Result<&'static Process> {
    if !is_absent() {
        return get();
    }
    let given = environment::var("CUDA_VISIBLE_DEVICES");
    let hidden = environment::is_empty("CUDA_VISIBLE_DEVICES").then(String::new);
    let visible = machine::visible(hidden.or(given).as_deref());
    if visible.is_empty() {
        return Err(Refusal::new(Status::NoDevice, "there is no GPU that this program may see"));
    }
    let devices: Vec<_> = visible.into_iter().map(|index| &machine::devices()[index]).collect();
    let (process, is_new) = make(devices)?;
    if is_new {
        peer::register(process);
        umd::stray::watch(&process.space, process.devices(), "cuMemcpy");
    }
    get()
}

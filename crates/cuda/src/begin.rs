//! Initialisation of CUDA in a process.

use crate::machine;
use crate::peer;
use crate::process::{Process, get, is_absent, make};
use crate::status::{Refusal, Result, Status};

/// `cuInit`: creates the state of the process, unless it exists.
///
/// # Errors
///
/// No GPU is visible; or the process is a child of one that called `cuInit`.
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

//! aarch64: types checked, and run in an emulated machine (`interop/tests/aarch64.rs`).

use crate::groups::{Context, Tested, interop};
use crate::sh::{Outcome, cargo, check, tool};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Checks the types of all targets. Returns why that is impossible, if it is.
pub(crate) fn types() -> Outcome<Option<String>> {
    if let Err(why) = standard_library() {
        return Ok(Some(why));
    }
    let mut command = cargo();
    command.args(["check", "--workspace", "--all-targets", "--locked", "--target", TARGET]);
    check(&mut command).map(|()| None)
}

/// Builds for the emulated machine, and tests in it.
pub(crate) fn machine(context: &Context) -> Outcome<Tested> {
    in_the_machine(context, "aarch64")
}

/// rdma-core's tests in it.
pub(crate) fn pyverbs(context: &Context) -> Outcome<Tested> {
    in_the_machine(context, "aarch64_pyverbs")
}

fn in_the_machine(context: &Context, name: &str) -> Outcome<Tested> {
    // The tests report what is missing.
    if let Err(why) = standard_library() {
        eprintln!("{why}");
    }
    interop(context, name, 1)
}

/// Fetches it once; a no-op if it is there.
fn standard_library() -> Outcome {
    check(tool("rustup").args(["target", "add", TARGET]))
        .map_err(|why| format!("no standard library for {TARGET}: {why}"))
}

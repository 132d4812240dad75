//! aarch64: types checked, and run in an emulated machine (`interop/tests/aarch64.rs`).

use crate::groups::{Context, Tested, interop};
use crate::setup;
use crate::sh::{Outcome, cargo, check, tool};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Beside those of `cargo xtask setup`.
const PACKAGES: [(&str, &str); 2] = [
    ("gcc-aarch64-linux-gnu", "links programs for arm64, and compiles our C programs"),
    ("libc6-dev-arm64-cross", "C headers and libraries for arm64"),
];

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
pub(crate) fn group(context: &Context) -> Outcome<Tested> {
    let ready = standard_library();
    match ready.and_then(|()| setup::install("aarch64", &PACKAGES, !context.setup)) {
        Ok(()) => interop(context, "aarch64", 1),
        Err(why) => Ok(Tested::Impossible(why)),
    }
}

/// Fetches it once; a no-op if it is there.
fn standard_library() -> Outcome {
    check(tool("rustup").args(["target", "add", TARGET]))
        .map_err(|why| format!("no standard library for {TARGET}: {why}"))
}

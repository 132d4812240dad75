//! Test suites of others, and what it takes to run them as tests of ours: their sources, a host of
//! their own, their verdicts, and what is known of them.

pub(crate) mod built;
mod expected;
mod follow;
pub(crate) mod host;
pub(crate) mod page;
mod sources;
mod toolkit;
mod verdicts;
mod wheels;

pub(crate) use self::expected::Expected;
pub(crate) use self::follow::{End, follow, show};
pub(crate) use self::sources::Source;
pub(crate) use self::toolkit::{rocm, toolkit};
pub(crate) use self::verdicts::{Verdict, Verdicts};
pub(crate) use self::wheels::{PYTHON, wheels};

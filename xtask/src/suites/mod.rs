//! Third-party test suites, and what is needed to run them as our tests: their sources, a host of
//! their own, their verdicts, and what is known about them.

pub(crate) mod built;
mod expected;
mod follow;
pub(crate) mod gtest;
pub(crate) mod host;
pub(crate) mod page;
mod parallel;
mod sources;
mod toolkit;
mod verdicts;
mod wheels;

pub(crate) use self::expected::Expected;
pub(crate) use self::follow::{End, follow, show};
pub(crate) use self::parallel::side_by_side;
pub(crate) use self::sources::Source;
pub(crate) use self::toolkit::{rocm, toolkit};
pub(crate) use self::verdicts::{Verdict, Verdicts};
pub(crate) use self::wheels::{PYTHON, wheels};

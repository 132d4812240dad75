//! Unmodified programs, run on peerdma as a user would run them.
//!
//! Each test starts third-party programs (Debian's `ibverbs-utils` and `perftest`) or small C and
//! Python programs linked against the system's headers, lets them communicate, and checks what they
//! print. Nothing here depends on the internals of peerdma: the tests see what a user sees.
//!
//! ```text
//!   Program  --start-->  Running  --finish-->  Output        one process group, one deadline
//!      |                    |
//!      | in a Netns,        | stop(), resume(), kill()
//!      | as nobody,         | wait_listening(port), wait_busy()
//!      | in a pid namespace |
//!      +----- Pair: a server, readiness, a client ----- Finished { server, client }
//! ```
//!
//! * A server is ready when its TCP socket listens (`/proc/PID/net/tcp`), never after a sleep.
//! * Every process carries a tag in its environment. When a [`Running`] ends, no process with that
//!   tag may be left; otherwise it is killed and the test fails.
//! * Ports are leased ([`Port`]), so tests run side by side.
//! * A test that cannot run reports it through [`needs!`]: it is recorded as skipped, and fails
//!   under `PEERDMA_REQUIRE=all`.
//! * `PEERDMA_FULL=1` runs more than CI has time for ([`need::full`]).
//!
//! It does not build peerdma: `cargo xtask test` does, or `cargo build --release` by hand. Other
//! programs of the workspace are built by the tests that run them ([`built`](fn@built)).
//!
//! ```no_run
//! use interop::Pair;
//!
//! let done = Pair::new("ibv_rc_pingpong").args(["-n", "10"]).run();
//! assert!(done.client.stdout.contains("10 iters in"));
//! ```

pub mod arm64;
mod artefacts;
mod built;
mod capture;
mod cases;
mod csource;
mod cuda_program;
mod dist;
mod hardware;
mod mpi;
pub mod need;
mod netns;
mod output;
mod pair;
pub mod perftest;
mod place;
mod port;
mod program;
mod recorded;
mod running;
pub mod scratch;
mod tag;
mod vm;
mod wheel;

pub use artefacts::{Artefacts, target_dir};
pub use built::built;
pub use capture::{Capture, Captured, Frame, icrc};
pub use cases::{Case, Cases, CasesOutput, Guest};
pub use csource::{
    compile, compile_arm64, compile_installed, compile_mpi, compile_mpi_by, compile_with,
};
pub use cuda_program::{by_nic, cuda_program, libfabric, row, sum};
pub use dist::{dist, wheel_of, workspace};
pub use hardware::Hardware;
pub use mpi::Mpi;
pub use netns::{Lan, Netns, Tap, Veth};
pub use output::{DROPS, Output};
pub use pair::{Finished, Pair, RunningPair};
pub use place::{Place, own_address};
pub use port::Port;
pub use program::{Mode, Program};
pub use recorded::{Recorded, Recording};
pub use running::Running;
pub use scratch::Scratch;
pub use vm::{Vm, VmOutput, module};
pub use wheel::wheel;

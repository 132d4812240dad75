//! `PEERDMA_LOG`: the reasons for refusals, on standard error.

use std::io::{self, IsTerminal};

use threads::first::First;
use tracing_subscriber::EnvFilter;

/// Starts the log if `PEERDMA_LOG` asks for one. Called by entries of the C interface, because
/// nothing may run when the library is loaded; a program that never calls a verb never pays for it.
pub(crate) fn init() {
    static START: First = First::new();
    START.call(|| {
        let said = environment::var("PEERDMA_LOG");
        let Some(Ok(filter)) = said.map(EnvFilter::try_new) else { return };
        // It fails only if a subscriber is set already, which then decides.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .try_init();
    });
}

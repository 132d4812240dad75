//! What completion counters are told (`ibv_qp_attach_comp_cntr(3)`): each operation that ends, on
//! either side of a QP, whether or not a completion queue shows it.
//!
//! Atomics, binds, invalidations, FLUSH and ATOMIC WRITE have no bit in that call's mask, and are
//! not reported.

/// How an operation ended that a completion counter may count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a counter has two values")]
pub enum Ended {
    /// Success, with this many bytes moved.
    Well {
        /// What a completion's `byte_len` would be.
        bytes: u32,
    },
    /// In error, flushed ones included.
    InError,
}

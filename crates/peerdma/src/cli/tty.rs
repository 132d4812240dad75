//! Terminals.

/// Whether the terminal says that it knows no sequences.
pub(super) fn is_dumb() -> bool {
    environment::var("TERM").is_some_and(|term| term == "dumb")
}

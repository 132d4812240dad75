//! verbs.

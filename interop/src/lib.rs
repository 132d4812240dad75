//! Unmodified programs, run as tests.

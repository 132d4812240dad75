//! umem.

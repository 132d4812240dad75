//! preload.

//! The rules of `docs/semantics.md` 1, at the buffer.

mod actors;
mod exporters;
mod fences;
mod info;
mod locking;

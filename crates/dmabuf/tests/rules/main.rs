//! The rules of `docs/semantics.md` 1, at the buffer.

mod actors;
mod fences;
mod info;
mod locking;

//! What the kernel does with addresses: io_uring, `pread` and `pwrite`.
//!
//! The only module of this crate with `unsafe` in it. Callers name memory by a [`Place`], which
//! keeps the pages in place, and never by an address.

#![allow(unsafe_code, reason = "the kernel reads and writes memory by its address")]

mod calls;
#[cfg(test)]
mod fork;
mod place;
mod ring;

pub(crate) use calls::call;
pub(crate) use place::Place;
pub(crate) use ring::{Fixed, Ring, Waiter};

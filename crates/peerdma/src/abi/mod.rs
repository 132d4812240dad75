//! The C interface, one file per object of the verbs.
//!
//! # The contract
//!
//! Every function here has the contract of its manual page, which no compiler checks: a pointer to
//! an object was returned by a call that makes objects; a pointer to a structure points to a valid
//! one, or to room for one; a pointer to memory points to memory of the program. `SAFETY: contract`
//! in these files means this paragraph. What a program *can* get wrong without breaking it is
//! checked and refused: numbers, lengths, states, keys, null pointers, objects of another kind,
//! objects that were destroyed (a while ago, [`object`]).
//!
//! # Objects
//!
//! An object is a C structure with a word before it that says what it is, and the library's part
//! behind it ([`object::Object`]). The header reads the C part; the library's part names the object
//! in the engine. Objects give the engine their address as a cookie, which the engine returns with
//! their events.

// The structures that a program and this library both read.
use verbs_abi as types;

mod acks;
mod boundary;
mod cancel;
mod errno;
mod functions;
mod gpu_trace;
mod lists;
mod object;
mod own;
mod pointers;
mod refuse;
mod report;
mod turn;
mod uobject;
mod waiting;

pub(crate) mod ah;
pub(crate) mod buf;
pub(crate) mod comp_cntr;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod cuda;
pub(crate) mod device;
pub(crate) mod dm;
pub(crate) mod domain;
pub(crate) mod drm;
pub(crate) mod events;
pub(crate) mod flow;
pub(crate) mod hsa;
pub(crate) mod import;
pub(crate) mod level_zero;
pub(crate) mod mcast;
pub(crate) mod misc;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod poll;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod qp_attr;
pub(crate) mod rdmacm;
pub(crate) mod rsocket;
pub(crate) mod srq;
pub(crate) mod tm;
pub(crate) mod values;
pub(crate) mod wq;
pub(crate) mod wr;
pub(crate) mod xrc;

/// The exported entries. A test program has no version nodes for them.
#[cfg(not(test))]
#[expect(non_snake_case, reason = "some C names begin with underscores")]
mod exports {
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

//! Arguments from C ([`umd::c`]).

use crate::status::Refusal;

/// A pointer to store a result through.
pub(crate) type Out<T> = umd::c::Out<T, Refusal>;

/// A pointer to read an argument through.
pub(crate) type In<T> = umd::c::In<T, Refusal>;

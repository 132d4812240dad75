//! What C passes ([`umd::c`]).

use crate::status::Refusal;

/// Where a result goes.
pub(crate) type Out<T> = umd::c::Out<T, Refusal>;

/// Where an argument is.
pub(crate) type In<T> = umd::c::In<T, Refusal>;

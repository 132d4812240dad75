//! Arguments from C, with CUDA's errors: [`umd::c`].

use crate::status::Refusal;

/// A pointer to store a result through.
pub(crate) type Out<T> = umd::c::Out<T, Refusal>;

/// A pointer to read an argument through.
pub(crate) type In<T> = umd::c::In<T, Refusal>;

/// A NUL-terminated string.
pub(crate) type Text = umd::c::Text<Refusal>;

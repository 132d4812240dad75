//! What a call of the library returned.

use std::io;

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", io::Error::from_raw_os_error(*errno))]
#[non_exhaustive]
pub struct Error {
    /// The call, by its name in C.
    pub call: &'static str,
    /// Its error number; 0 if the library gave none.
    pub errno: i32,
}

impl Error {
    pub(crate) const fn new(call: &'static str, errno: i32) -> Self {
        Self { call, errno }
    }

    /// The error of a call that sets `errno`. A library that fails and sets none is answered by
    /// EIO.
    pub(crate) fn last(call: &'static str) -> Self {
        let errno = io::Error::last_os_error().raw_os_error().filter(|errno| *errno != 0);
        Self::new(call, errno.unwrap_or(libc::EIO))
    }

    /// The operation is not one of the provider's.
    pub(crate) const fn absent(call: &'static str) -> Self {
        Self::new(call, libc::EOPNOTSUPP)
    }
}

/// What most calls return.
pub type Result<T> = std::result::Result<T, Error>;

/// For calls that return 0 or an error number. Some providers return -1 and set errno, as old
/// manual pages said (`ibv_query_port(3)`).
pub(crate) fn check(call: &'static str, returned: i32) -> Result<()> {
    match returned {
        0 => Ok(()),
        -1 => Err(Error::last(call)),
        errno => Err(Error::new(call, errno.unsigned_abs().try_into().unwrap_or(libc::EIO))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_returns_its_error_number_needs_no_errno() {
        assert_eq!(check("ibv_modify_qp", 0), Ok(()));
        assert_eq!(
            check("ibv_modify_qp", libc::EBUSY),
            Err(Error::new("ibv_modify_qp", libc::EBUSY))
        );
        let negative = check("ibv_modify_qp", -libc::EBUSY).unwrap_err();
        assert_eq!(negative.errno, libc::EBUSY);
        assert_eq!(negative.to_string(), "ibv_modify_qp: Device or resource busy (os error 16)");
    }
}

//! The two providers of an object: the software device in this process, and a library of the
//! system.
//!
//! Every type of this crate holds one [`Arm`], so a call has one branch, which always goes the same
//! way, and users' signatures name no provider.

use std::sync::Arc;

use device::{EngineGuard, Hca};

use crate::{Kind, Refusal, Result};

/// An object of one of the two.
#[derive(Clone, Debug)]
pub(crate) enum Arm<S, H> {
    /// Of the software device.
    Soft(S),
    /// Of a library.
    Hard(H),
}

impl<S, H> Arm<S, H> {
    /// For an operation that only the software device has.
    pub(crate) fn soft(&self, call: &str) -> Result<&S> {
        match self {
            Self::Soft(soft) => Ok(soft),
            Self::Hard(_) => {
                let what = format!("{call}: only the software device has this, not a library");
                Err(Refusal::new(Kind::NotSupported, what))
            }
        }
    }

    /// For an object whose device was compared: of the software device, too.
    pub(crate) fn same_soft(&self) -> Option<&S> {
        match self {
            Self::Soft(soft) => Some(soft),
            Self::Hard(_) => None,
        }
    }

    /// For an object whose device was compared: of a library, too.
    pub(crate) fn same_hard(&self) -> Option<&H> {
        match self {
            Self::Soft(_) => None,
            Self::Hard(hard) => Some(hard),
        }
    }
}

/// An object of the software device: its number, and whose number it is.
#[derive(Clone, Debug)]
pub(crate) struct On<Id> {
    pub(crate) hca: Arc<Hca>,
    pub(crate) id: Id,
}

impl<Id> On<Id> {
    /// The object of this number on the same device.
    pub(crate) fn with<Other>(&self, id: Other) -> On<Other> {
        On { hca: Arc::clone(&self.hca), id }
    }

    pub(crate) fn lock(&self) -> EngineGuard<'_> {
        self.hca.lock()
    }

    /// The same for a post.
    #[inline]
    pub(crate) fn lock_to_post(&self) -> EngineGuard<'_> {
        self.hca.lock_to_post()
    }

    pub(crate) fn alive(&self) -> Result<EngineGuard<'_>> {
        self.hca.alive()
    }
}

/// Refuses an object of another device: objects are numbers or addresses, which mean other objects
/// on another device.
pub(crate) fn other_device(call: &str, object: &str) -> Refusal {
    Refusal::new(Kind::Invalid, format!("{call}: the {object} is of another device"))
}

/// A library's error as a refusal. The inverse of the table in the C interface; a number that it
/// does not have stands in the text.
pub(crate) fn refused(error: sysverbs::Error) -> Refusal {
    use rustix::io::Errno as E;
    let kind = match E::from_raw_os_error(error.errno) {
        E::ADDRINUSE => Kind::AddressInUse,
        E::ADDRNOTAVAIL => Kind::AddressNotAvailable,
        E::FAULT => Kind::BadAddress,
        E::BADF => Kind::BadFd,
        E::BUSY => Kind::Busy,
        E::INVAL => Kind::Invalid,
        E::NODEV => Kind::NoDevice,
        E::NOMEM | E::NOSPC | E::MFILE => Kind::NoMemory,
        E::NOENT => Kind::NotFound,
        E::PERM => Kind::NotPermitted,
        E::OPNOTSUPP | E::NOSYS => Kind::NotSupported,
        E::ACCESS => Kind::ReadOnly,
        E::TIMEDOUT => Kind::TimedOut,
        E::NETUNREACH | E::HOSTUNREACH => Kind::Unreachable,
        E::AGAIN => Kind::WouldBlock,
        _ => Kind::Io,
    };
    Refusal::new(kind, format!("{error}; the library gives no reason"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_a_library_has_no_software_device() {
        let arm: Arm<(), ()> = Arm::Hard(());
        let refusal = arm.soft("explain").unwrap_err();
        assert_eq!(refusal.kind(), Kind::NotSupported);
        assert_eq!(refusal.what(), "explain: only the software device has this, not a library");
        assert!(arm.same_soft().is_none() && arm.same_hard().is_some());
    }
}

//! Why a request did not succeed.

use std::fmt;

use iba::WcStatus;

use crate::{PostError, Refusal, Wc};

/// The result of a request, and the memory that it had.
pub type Outcome<T, B> = (Result<T, Error>, B);

/// Why a request did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It was not posted: the QP does not take it.
    #[error("not posted: {0}")]
    Post(#[from] PostError),
    /// It was not posted: it breaks a rule of this library.
    #[error("not posted: {0}")]
    Refused(#[from] Refusal),
    /// It was carried out, and failed.
    #[error(transparent)]
    Failed(#[from] Box<Failure>),
}

impl Error {
    /// The status of a request that was carried out.
    pub fn status(&self) -> Option<WcStatus> {
        match self {
            Self::Failed(failure) => Some(failure.wc.status),
            _ => None,
        }
    }
}

/// A request that was carried out and failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// The completion. Of a QP with a shared receive queue, where no receive is flushed, the end of
    /// its messages is told as if one had been.
    pub wc: Wc,
    /// Why, in a sentence, if the device knows it.
    pub why: Option<String>,
    /// Whether it was a receive; a failed completion does not say so.
    is_receive: bool,
}

impl Failure {
    pub(super) fn new(wc: Wc, why: Option<String>, is_receive: bool) -> Box<Self> {
        Box::new(Self { wc, why, is_receive })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_receive { "receive" } else { "request" };
        let (qpn, status) = (self.wc.qpn.value(), self.wc.status.name());
        let why = self.why.as_deref().unwrap_or(status);
        write!(f, "a {what} of QP {qpn:#x} failed: {why}")
    }
}

impl std::error::Error for Failure {}
